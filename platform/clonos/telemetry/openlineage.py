"""OpenLineage events of a driver: topics read and written, start and end of the run; off unless there is a URL.

Clonos sends its own events. OpenLineage's agent for Spark sends two events for each micro-batch, and does not connect
Kafka with the output of `foreachBatch` (OpenLineage/OpenLineage#3398).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from clonos.errors import SpecError
from clonos.settings import LineageSettings
from clonos.telemetry.driver_events import DriverEvent, Failed, Finished, Report, State, Stopped, Superseded

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_PRODUCER: Final = "clonos"
_CLOSE_S: Final = 1.0
_QUEUE_SIZE: Final = 100
# Last event of a driver → state of the OpenLineage run.
_FINAL_STATES: Final[dict[type[DriverEvent], str]] = {
    Stopped: "COMPLETE",
    Finished: "COMPLETE",
    Superseded: "ABORT",
    Failed: "FAIL",
}
_log = structlog.get_logger("clonos")


@dataclass
class Lineage:
    """Sends the OpenLineage events of one driver process (one OpenLineage run) from a background thread."""

    job: str
    settings: LineageSettings
    client: OpenLineageClient
    broker: str = ""
    """First broker of the cluster; with ``kafka://`` the namespace of topics."""
    read: Collection[str] = ()
    """Topics that the job reads."""
    written: Collection[str] = ()
    """Topics that the job writes."""
    _run: str = field(default_factory=lambda: str(uuid.uuid4()))
    _running: bool = False
    _waiting: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(_QUEUE_SIZE))
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        # A daemon thread: the process does not wait for a hanging backend when it exits.
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="clonos-lineage")
        self._thread.start()

    def set_topics(self, broker: str, read: Collection[str], written: Collection[str]) -> None:
        """Set the broker and the topics read and written, before the job runs."""
        self.broker, self.read, self.written = broker, sorted(read), sorted(written)

    def take(self, event: DriverEvent) -> None:
        """Convert an event of the driver to an OpenLineage event and queue it; other events are ignored."""
        if isinstance(event, State):
            if event.state == "RUNNING" and not self._running:
                self._running = True
                self._put("START", event.at)
        elif (final := _FINAL_STATES.get(type(event))) is not None and self._running:
            self._running = False
            self._put(final, event.at, why=event.what if isinstance(event, Report) else None)

    def close(self) -> None:
        """Wait until all queued OpenLineage events are sent, at most one second."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_CLOSE_S)

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self.client.emit(event)
            except Exception as error:  # any error of its transport: lineage must not fail a job
                _log.warning("lineage-not-sent", why=f"{type(error).__name__}: {error}")

    def _put(self, state: str, at: float, why: str | None = None) -> None:
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
        with contextlib.suppress(queue.Full):  # the backend is too slow
            self._waiting.put_nowait(event)


@contextlib.contextmanager
def lineage(job: str, settings: LineageSettings) -> Iterator[Lineage | None]:
    """Provide the OpenLineage sender of a driver; None without a URL, or without its packages (a warning)."""
    sender = None
    if settings.url:
        try:
            sender = Lineage(job, settings, _client(settings))
        except SpecError as error:
            _log.warning("no-lineage", why=error.what, hint=error.hint)
    try:
        yield sender
    finally:
        if sender is not None:
            sender.close()


def load() -> None:
    """Import the OpenLineage packages, if installed.

    This takes a third of a second; call it early, so that it does not delay a takeover.
    """
    with contextlib.suppress(ModuleNotFoundError):
        import openlineage.client.event_v2
        import openlineage.client.facet_v2  # noqa: F401


def _client(settings: LineageSettings) -> OpenLineageClient:
    try:
        from openlineage.client import OpenLineageClient
    except ModuleNotFoundError as error:
        raise SpecError(
            f"CLONOS_LINEAGE__URL is set, and {error.name} is not installed.",
            hint="run pip install '/path/to/clone[lineage]', or unset the variable.",
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
