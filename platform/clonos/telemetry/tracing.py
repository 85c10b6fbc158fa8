"""OpenTelemetry traces of epochs and recoveries; off unless `TraceSettings.endpoint` is set.

A span is created after its epoch or recovery has ended, with the recorded times of its parts. All names of spans and
attributes are in this module, because the semantic conventions for messaging are not stable yet.
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
from clonos.telemetry.driver_events import Epoch, Span

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
_DOWNTIME: Final = "clonos.recovery.downtime_ms"
_FROM: Final = "clonos.host.from"
_TO: Final = "clonos.host.to"
_NS_PER_MS: Final = 1_000_000
_CLOSE_S: Final = 1.0
_BATCH_SIZE: Final = 512
_INTERVAL_MS: Final = 1000
_log = structlog.get_logger("clonos")


@dataclass(frozen=True, slots=True)
class Part:
    """A step of an epoch or recovery, for its span; `at` is the start, in seconds since 1970."""

    name: str
    at: float
    duration_ms: float


class Traces:
    """Creates spans and sends them to the collector from a background thread.

    While the collector is unreachable, spans are lost. `service` is ``service.name``, the part of the platform.

    Raises:
        SpecError: The packages are not installed.
    """

    def __init__(self, service: str, settings: TraceSettings, exporter: SpanExporter | None = None) -> None:
        self._provider = _provider(service, settings, exporter)
        self._tracer = self._provider.get_tracer("clonos")

    def epoch(self, event: Epoch) -> None:
        """Create the spans of a finished epoch."""
        duration_ms = event.duration_ms
        attributes = {
            _SYSTEM: "kafka",
            _COUNT: event.records_out,
            JOB: event.job,
            GENERATION: event.generation,
            _EPOCH: event.epoch,
            _QUERY: event.query,
            _REPLAY: event.replay,
            _READ: event.records_in,
        }
        start = event.at - duration_ms / 1000
        self._span("epoch", start, duration_ms, attributes, _consecutive_parts(start, event.spans))

    def recovery(self, job: str, at: float, ended: float, body: Mapping[str, Any], phases: Iterable[Part]) -> None:
        """Create the spans of a recovery that has ended, with the fields of its `clonos.resources.jobs.Recovery`.

        Times are seconds since 1970. A phase that another host's clock measured may end later than `ended`.
        """
        parts = list(phases)
        end = max([ended, *(part.at + part.duration_ms / 1000 for part in parts)])
        fields = {
            JOB: job,
            GENERATION: body.get("generation"),
            _CAUSE: body.get("cause"),
            _OUTCOME: body.get("outcome"),
            _DOWNTIME: body.get("downtime_ms"),
            _FROM: body.get("from_host"),
            _TO: body.get("to_host"),
        }
        attributes = {name: value for name, value in fields.items() if value is not None}
        self._span("recovery", at, (end - at) * 1000, attributes, parts)

    def close(self) -> None:
        """Send the remaining spans, for at most one second."""
        shutdown = threading.Thread(target=self._provider.shutdown, daemon=True, name="clonos-traces")
        shutdown.start()
        shutdown.join(_CLOSE_S)

    def _span(
        self, name: str, at: float, duration_ms: float, attributes: Mapping[str, Any], parts: Iterable[Part]
    ) -> None:
        from opentelemetry import trace

        start = round(at * 1000 * _NS_PER_MS)
        whole = self._tracer.start_span(name, attributes=dict(attributes), start_time=start)
        context = trace.set_span_in_context(whole)
        for part in parts:
            part_start = round(part.at * 1000 * _NS_PER_MS)
            span = self._tracer.start_span(f"{name}.{part.name}", context=context, start_time=part_start)
            span.end(part_start + round(part.duration_ms * _NS_PER_MS))
        whole.end(start + round(duration_ms * _NS_PER_MS))


def open_traces(service: str, settings: TraceSettings) -> Traces | None:
    """Return a sender of traces; None without an endpoint, or without its packages (after a warning)."""
    if not settings.endpoint:
        return None
    try:
        return Traces(service, settings)
    except SpecError as error:
        _log.warning("no-traces", why=error.what, hint=error.hint)
        return None


@contextlib.contextmanager
def tracing(service: str, settings: TraceSettings) -> Iterator[Traces | None]:
    """Provide a context with the sender of `open_traces`, which sends the remaining spans at the end."""
    traces = open_traces(service, settings)
    try:
        yield traces
    finally:
        if traces is not None:
            traces.close()


def load() -> None:
    """Import the OpenTelemetry packages, if installed.

    This takes a third of a second; call it early, so that it does not delay a takeover.
    """
    with contextlib.suppress(ModuleNotFoundError):
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401


def _consecutive_parts(at: float, spans: Iterable[Span]) -> Iterator[Part]:
    for span in spans:
        yield Part(span.name, at, span.duration_ms)
        at += span.duration_ms / 1000


def _provider(service: str, settings: TraceSettings, exporter: SpanExporter | None) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise SpecError(
            f"CLONOS_TRACES__ENDPOINT is set, and {error.name} is not installed.",
            hint="run pip install '/path/to/clone[traces]', or unset the variable.",
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    # OpenTelemetry logs each failed attempt with its exception; `_warn_once` logs the first failure only.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    sender = exporter or OTLPSpanExporter(endpoint=settings.endpoint, headers=headers, timeout=settings.timeout_s)
    processor = BatchSpanProcessor(
        _warn_once(sender, settings.endpoint),
        max_queue_size=settings.queue_size,
        max_export_batch_size=min(_BATCH_SIZE, settings.queue_size),
        schedule_delay_millis=_INTERVAL_MS,
    )
    provider.add_span_processor(processor)
    return provider


def _warn_once(exporter: SpanExporter, endpoint: str) -> SpanExporter:
    """Make the exporter log a warning at the first lost spans after a success."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    send, lost = exporter.export, [False]

    def export(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = send(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not lost[0]:
            _log.warning("traces-lost", why=f"{endpoint} accepts no spans; each second's spans are sent nevertheless")
        lost[0] = failed
        return result

    exporter.export = export  # type: ignore[method-assign]
    return exporter
