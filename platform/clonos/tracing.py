"""OpenTelemetry traces of epochs and recoveries; off unless `TraceSettings.endpoint` says where they go.

Both are known when they are over, with the times of their parts: a span is made afterwards, with these times. Names of
spans and attributes are here and nowhere else, because the conventions for messaging are still being developed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from clonos.errors import SpecError
from clonos.settings import TraceSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

# As the semantic conventions for messaging name them (status: development).
_SYSTEM: Final = "messaging.system"
_COUNT: Final = "messaging.batch.message_count"
JOB: Final = "clonos.job"
GENERATION: Final = "clonos.generation"
_EPOCH: Final = "clonos.epoch"
_QUERY: Final = "clonos.query"
_REPLAY: Final = "clonos.replay"
_READ: Final = "clonos.records_in"
_CAUSE: Final = "clonos.recovery.cause"
_OUTCOME: Final = "clonos.recovery.outcome"
_GAP: Final = "clonos.recovery.gap_ms"
_FROM: Final = "clonos.host.from"
_TO: Final = "clonos.host.to"
_NS: Final = 1_000_000
_CLOSE_S: Final = 1.0
_BATCH: Final = 512
_EVERY_MS: Final = 1000
_log = structlog.get_logger("clonos")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what is traced; seconds since 1970, milliseconds."""

    name: str
    at: float
    duration_ms: float


class Traces:
    """Makes spans and sends them, in a thread of its own; who cannot be reached loses them.

    Args:
        service: Which part of the platform tells (``service.name``).
        settings: Where to.
        exporter: For tests; default OTLP over HTTP.

    Raises:
        SpecError: The packages are not installed.
    """

    def __init__(self, service: str, settings: TraceSettings, exporter: SpanExporter | None = None) -> None:
        self._provider = _provider(service, settings, exporter)
        self._tracer = self._provider.get_tracer("clonos")

    def epoch(self, event: Mapping[str, Any]) -> None:
        """An ``epoch`` event of a driver."""
        took, end = float(event["duration_ms"]), float(event["at"])
        attributes = {
            _SYSTEM: "kafka",
            _COUNT: event["records"],
            JOB: event["job"],
            GENERATION: event["generation"],
            _EPOCH: event["epoch"],
            _QUERY: event["query"],
            _REPLAY: event["replay"],
            _READ: event["read"],
        }
        self._span("epoch", end - took / 1000, took, attributes, _one_after_another(end - took / 1000, event["spans"]))

    def recovery(self, job: str, at: float, ended: float, body: Mapping[str, Any], phases: Iterable[Part]) -> None:
        """A recovery that has ended.

        Args:
            job: Its name.
            at: When it began, in seconds since 1970.
            ended: When it ended; a phase by another host's clock may end later.
            body: What is known of it (`clonos.resources.jobs.Recovery`).
            phases: Its parts.
        """
        parts = list(phases)
        end = max([ended, *(one.at + one.duration_ms / 1000 for one in parts)])
        known = {
            JOB: job,
            GENERATION: body.get("generation"),
            _CAUSE: body.get("cause"),
            _OUTCOME: body.get("outcome"),
            _GAP: body.get("gap_ms"),
            _FROM: body.get("from_agent"),
            _TO: body.get("to_agent"),
        }
        attributes = {name: value for name, value in known.items() if value is not None}
        self._span("recovery", at, (end - at) * 1000, attributes, parts)

    def close(self) -> None:
        """Send what is left; whoever ends waits no longer than a second for that."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="clonos-traces")
        ending.start()
        ending.join(_CLOSE_S)

    def _span(
        self, name: str, at: float, duration_ms: float, attributes: Mapping[str, Any], parts: Iterable[Part]
    ) -> None:
        from opentelemetry import trace

        start = round(at * 1000 * _NS)
        whole = self._tracer.start_span(name, attributes=dict(attributes), start_time=start)
        context = trace.set_span_in_context(whole)
        for part in parts:
            begun = round(part.at * 1000 * _NS)
            span = self._tracer.start_span(f"{name}.{part.name}", context=context, start_time=begun)
            span.end(begun + round(part.duration_ms * _NS))
        whole.end(start + round(duration_ms * _NS))


def wanted(service: str, settings: TraceSettings) -> Traces | None:
    """Traces, if there is an endpoint for them; where they cannot be had that is said, and there are none."""
    if not settings.endpoint:
        return None
    try:
        return Traces(service, settings)
    except SpecError as error:
        _log.warning("no-traces", why=error.what, hint=error.hint)
        return None


@contextlib.contextmanager
def tracing(service: str, settings: TraceSettings) -> Iterator[Traces | None]:
    """As `wanted`, closed afterwards."""
    traces = wanted(service, settings)
    try:
        yield traces
    finally:
        if traces is not None:
            traces.close()


def load() -> None:
    """Import what it needs, where that is installed: a third of a second that a takeover is not to wait for."""
    with contextlib.suppress(ModuleNotFoundError):
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401


def _one_after_another(at: float, spans: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    for one in spans:
        yield Part(one["name"], at, one["duration_ms"])
        at += one["duration_ms"] / 1000


def _provider(service: str, settings: TraceSettings, exporter: SpanExporter | None) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise SpecError(
            f"CLONOS_TRACES__ENDPOINT is set, and {error.name} is not installed.",
            hint="pip install 'clonos[traces]', or leave it unset.",
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    # It tells of each try, with the whole exception, in the job's log; we say once that nobody is there.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    sends = exporter or OTLPSpanExporter(endpoint=settings.endpoint, headers=headers, timeout=settings.timeout_s)
    processor = BatchSpanProcessor(
        _said_once(sends, settings.endpoint),
        max_queue_size=settings.kept,
        max_export_batch_size=min(_BATCH, settings.kept),
        schedule_delay_millis=_EVERY_MS,
    )
    provider.add_span_processor(processor)
    return provider


def _said_once(exporter: SpanExporter, endpoint: str) -> SpanExporter:
    """The same, which says when spans begin to be lost."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    send, lost = exporter.export, [False]

    def export(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = send(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not lost[0]:
            _log.warning("traces-lost", why=f"{endpoint} takes none; it is tried again with each second's")
        lost[0] = failed
        return result

    exporter.export = export  # type: ignore[method-assign]
    return exporter
