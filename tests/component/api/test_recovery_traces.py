"""A recovery that has ended is traced once, by the replica that leads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from clonos.settings import TraceSettings
from clonos.telemetry.tracing import Traces
from clonos_api.metrics.recovery_traces import trace_after
from clonos_api.store import lease, recoveries
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.streams.feed import EventFeed
from support.stored import job_row

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("leads", "traced"), [("one", 1), ("two", 0)])
def test_only_the_leader_traces_a_recovery(tmp_path: Path, leads: str, traced: int) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"
    schema.upgrade(url)
    exporter = InMemorySpanExporter()
    traces = Traces("test", TraceSettings(), exporter)

    async def run() -> None:
        database = Database(url)
        feed = EventFeed(database)
        works = [asyncio.create_task(work) for work in (database.watch_commits(), feed.run())]
        try:
            await feed.started()
            assert await lease.acquire(database, f"{leads}:1:2", ttl_s=60.0) == 1
            async with database.transaction() as session:
                job = await job_row(session, "orders")
                noticed = NOW + timedelta(milliseconds=40)
                failed = {"cause": "crash", "failed_generation": 1, "from_host": "host-1"}
                row = await recoveries.begin(session, job.id, at=NOW, detected_at=noticed, **failed)
                await recoveries.end(session, row, "ABANDONED", NOW + timedelta(seconds=1))
            assert await feed.wait(0, 20.0)
            seen = await trace_after(0, feed, database, "one", traces)
            assert seen == feed.newest
            assert await trace_after(seen, feed, database, "one", traces) == seen, "each once"
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await database.close()

    asyncio.run(run())
    traces.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert len([name for name in spans if name == "recovery"]) == traced
    if traced:
        assert spans["recovery"].attributes is not None
        assert spans["recovery"].attributes["clonos.job"] == "orders"
        assert spans["recovery.detect"].parent == spans["recovery"].context
        took = {name: (span.end_time or 0) - (span.start_time or 0) for name, span in spans.items()}
        assert took == {"recovery": 1_000_000_000, "recovery.detect": 40_000_000}
