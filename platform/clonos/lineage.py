"""OpenLineage events of a driver: what it reads and writes, when it began, how it ended; off unless there is a URL.

Ours and not those of OpenLineage's agent for Spark, which tells two events for each micro-batch and does not connect
Kafka with what `foreachBatch` writes (OpenLineage/OpenLineage#3398).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from clonos.errors import SpecError
from clonos.settings import LineageSettings

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_PRODUCER: Final = "clonos"
_CLOSE_S: Final = 1.0
_KEPT: Final = 100
# How a driver's last event is told.
_ENDS: Final = {"stopped": "COMPLETE", "finished": "COMPLETE", "superseded": "ABORT", "failed": "FAIL"}
_log = structlog.get_logger("clonos")


@dataclass
class Lineage:
    """Takes the events of one driver process, which is a run, and tells of it in a thread of its own.

    Attributes:
        broker: First of the cluster's; with ``kafka://`` the namespace of topics.
        read: Topics.
        written: The same.
    """

    job: str
    settings: LineageSettings
    client: OpenLineageClient
    broker: str = ""
    read: Collection[str] = ()
    written: Collection[str] = ()
    _run: str = field(default_factory=lambda: str(uuid.uuid4()))
    _begun: bool = False
    _waiting: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(_KEPT))
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon: the end of the process does not wait for a backend that hangs.
        self._thread = threading.Thread(target=self._send, daemon=True, name="clonos-lineage")
        self._thread.start()

    def flows(self, broker: str, read: Collection[str], written: Collection[str]) -> None:
        """Say what it reads and writes, before it runs."""
        self.broker, self.read, self.written = broker, sorted(read), sorted(written)

    def take(self, event: Mapping[str, Any]) -> None:
        """An event of the driver (`docs/observing.md`)."""
        kind = event["event"]
        if kind == "state" and event["state"] == "RUNNING" and not self._begun:
            self._begun = True
            self._tell("START", event["at"])
        elif kind in _ENDS and self._begun:
            self._begun = False
            self._tell(_ENDS[kind], event["at"], why=event.get("what"))

    def close(self) -> None:
        """Whoever ends waits no longer than a second for what is not sent yet."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_CLOSE_S)

    def _send(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self.client.emit(event)
            except Exception as error:  # whatever its transport raises: lineage is no reason to fail a job
                _log.warning("lineage-not-told", why=f"{type(error).__name__}: {error}")

    def _tell(self, state: str, at: float, why: str | None = None) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run

        namespace = f"kafka://{self.broker}"
        facets = {}
        if why is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(why, "Python")
        event = RunEvent(
            eventType=RunState[state],
            eventTime=datetime.fromtimestamp(at, UTC).isoformat(),
            run=Run(self._run, facets=dict(facets)),
            job=Job(self.settings.namespace, self.job),
            producer=_PRODUCER,
            inputs=[InputDataset(namespace, topic) for topic in self.read],
            outputs=[OutputDataset(namespace, topic) for topic in self.written],
        )
        with contextlib.suppress(queue.Full):  # nobody takes them
            self._waiting.put_nowait(event)


@contextlib.contextmanager
def lineage(job: str, settings: LineageSettings) -> Iterator[Lineage | None]:
    """Lineage of a driver of `job`, if somebody wants it; where that cannot be had it is said, and the job runs."""
    telling = None
    if settings.url:
        try:
            telling = Lineage(job, settings, _client(settings))
        except SpecError as error:
            _log.warning("no-lineage", why=error.what, hint=error.hint)
    try:
        yield telling
    finally:
        if telling is not None:
            telling.close()


def load() -> None:
    """Import what it needs, where that is installed: a third of a second that a takeover is not to wait for."""
    with contextlib.suppress(ModuleNotFoundError):
        import openlineage.client.event_v2
        import openlineage.client.facet_v2  # noqa: F401


def _client(settings: LineageSettings) -> OpenLineageClient:
    try:
        from openlineage.client import OpenLineageClient
    except ModuleNotFoundError as error:
        raise SpecError(
            f"CLONOS_LINEAGE__URL is set, and {error.name} is not installed.",
            hint="pip install 'clonos[lineage]', or leave it unset.",
        ) from error
    transport: dict[str, Any] = {
        "type": "http",
        "url": settings.url,
        "timeout": settings.timeout_s,
        "retry": {"total": 1},
    }
    if settings.api_key is not None:
        transport["auth"] = {"type": "api_key", "api_key": settings.api_key.get_secret_value()}
    return OpenLineageClient(config={"transport": transport})
