"""Traces: created afterwards with the times of the events, sent by OTLP, and off by default."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from clonos.settings import Settings, TraceSettings
from clonos.telemetry.driver_events import Epoch, Span
from clonos.telemetry.tracing import Part, Traces, tracing
from clonos.testing.harness import eventually
from support.busy import within
from support.collecting import collecting

EPOCH = Epoch(
    job="orders",
    generation=3,
    at=1_700_000_000.5,
    query="out",
    epoch=9,
    records_in=40,
    records_out=38,
    duration_ms=100.0,
    spans=[Span("plan", 7.0), Span("publish", 90.0), Span("commit", 3.0)],
)


def made(make: Any) -> dict[str, ReadableSpan]:
    """Name → span."""
    exporter = InMemorySpanExporter()
    traces = Traces("test", TraceSettings(), exporter)
    make(traces)
    traces.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def times(span: ReadableSpan) -> tuple[float, float]:
    """Milliseconds from the epoch's begin."""
    assert span.start_time is not None
    assert span.end_time is not None
    return tuple(round(at / 1e6 - 1_700_000_000_400, 3) for at in (span.start_time, span.end_time))  # type: ignore[return-value]


def test_an_epoch() -> None:
    spans = made(lambda traces: traces.epoch(EPOCH))
    assert {name: times(span) for name, span in spans.items()} == {
        "epoch": (0.0, 100.0),
        "epoch.plan": (0.0, 7.0),
        "epoch.publish": (7.0, 97.0),
        "epoch.commit": (97.0, 100.0),
    }
    whole = spans["epoch"]
    assert whole.attributes is not None
    assert dict(whole.attributes) == {
        "messaging.system": "kafka", "messaging.batch.message_count": 38, "clonos.job": "orders",
        "clonos.generation": 3, "clonos.epoch": 9, "clonos.query": "out", "clonos.replay": False,
        "clonos.records_in": 40,
    }  # fmt: skip
    for name in ("epoch.plan", "epoch.publish", "epoch.commit"):
        assert spans[name].parent == whole.context


def test_a_recovery() -> None:
    at = 1_700_000_000.4
    body = {"generation": 4, "cause": "crash", "downtime_ms": 440.0, "from_host": "host-1", "to_host": None}
    parts = [Part("detect", at, 40.0), Part("claim", at + 0.05, 100.0)]
    spans = made(lambda traces: traces.recovery("orders", at, at + 0.12, body, parts))
    assert times(spans["recovery"]) == (0.0, 150.0)
    assert times(spans["recovery.claim"]) == (50.0, 150.0)
    assert spans["recovery"].attributes == {
        "clonos.job": "orders", "clonos.generation": 4, "clonos.recovery.cause": "crash",
        "clonos.recovery.downtime_ms": 440.0, "clonos.host.from": "host-1",
    }  # fmt: skip


def test_the_environment_sets_endpoint_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("CLONOS_TRACES__ENDPOINT", f"{collector.url}/v1/traces")
        monkeypatch.setenv("CLONOS_TRACES__HEADERS", '{"X-Key": "k"}')
        with tracing("clonos-driver", Settings().traces) as traces:
            assert traces is not None
            traces.epoch(EPOCH)
        eventually(lambda: collector.posted, "the collector has the spans")
    (posted,) = collector.posted
    assert (posted.path, posted.headers["X-Key"]) == ("/v1/traces", "k")
    request = ExportTraceServiceRequest.FromString(posted.body)
    (resource,) = request.resource_spans
    assert "clonos-driver" in str(resource.resource)
    assert sorted(span.name for span in resource.scope_spans[0].spans)[0] == "epoch"


ENDS = """
import sys, time
from clonos.settings import LineageSettings, TraceSettings
from clonos.telemetry.driver_events import Epoch, Failed, Span, State
from clonos.telemetry.openlineage import lineage
from clonos.telemetry.tracing import tracing
url = sys.argv[1]
with tracing("x", TraceSettings(endpoint=url)) as traces, lineage("x", LineageSettings(url=url)) as flows:
    flows.take(State("RUNNING", at=1.0))
    traces.epoch(Epoch(query="q", epoch=1, at=2.0, duration_ms=1.0, spans=[Span("plan", 1.0)]))
    flows.take(Failed(what="x", at=2.0))
    print("done", flush=True)
"""


@pytest.mark.parametrize("there", [True, False], ids=["hangs", "refuses"])
def test_a_process_exits_without_a_response_of_the_backend(there: bool) -> None:
    """The agent would treat a driver that does not exit as frozen."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1] if there else 1}"
        ran = subprocess.Popen([sys.executable, "-c", ENDS, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with ran:
            assert ran.stdout is not None
            # A log line about a failed export may precede it, without its end.
            assert any(b"done" in line for line in ran.stdout)
            with within(6.0):  # two seconds on an idle machine
                assert ran.wait(60) == 0


def test_lost_spans_are_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Away(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.FAILURE

    traces = Traces("test", TraceSettings(endpoint="http://a"), Away())
    for _ in range(3):
        traces.epoch(EPOCH)
        assert traces._provider.force_flush(5_000)
    traces.close()
    assert capsys.readouterr().out.count("traces-lost") == 1


@pytest.mark.parametrize("name", ["CLONOS_TRACES__ENDPOINT", "CLONOS_LINEAGE__URL"])
def test_an_invalid_address_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "collector:4318")
    with pytest.raises(ValidationError, match="pattern"):
        Settings()


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_the_queue_of_spans_has_a_configurable_size(size: int) -> None:
    Traces("test", TraceSettings(queue_size=size), InMemorySpanExporter()).close()


def test_tracing_is_off_by_default() -> None:
    with tracing("clonos-driver", TraceSettings()) as traces:
        assert traces is None


def test_a_missing_package_is_logged_and_the_job_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with tracing("x", TraceSettings(endpoint="http://a")) as traces:
        assert traces is None
    assert "clone[traces]" in capsys.readouterr().out
