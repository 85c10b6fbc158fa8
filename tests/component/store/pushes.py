"""Event files of drivers, and what a push of their lines stores."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from clonos_api.store import (
    counters,
    job_exceptions,
    jobs,
)
from clonos_api.store.columns import plain
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    EpochRow,
    GenerationRow,
    RecoveryRow,
    RunRow,
)
from support.stored import EventFile, host_row, ingest, run_row


async def a_started_run(database: Database) -> RunRow:
    async with database.transaction() as session:
        return await run_row(session, host=await host_row(session, "the-host"))


async def push(database: Database, run: str, file: EventFile, first: int = 0, last: int | None = None) -> int:
    async with database.transaction() as session:
        return await ingest(session, run, file.offset(first), file.lines[first:last])


async def everything(database: Database, job: str) -> list[Any]:
    """All rows that ingestion wrote for a job."""
    async with database.reading() as session:
        actual_rows: list[Any] = [await counters.of_job(session, job)]
        actual = await jobs.get(session, job)
        assert actual.metrics is not None
        metrics = plain(actual.metrics)
        del metrics["received_at"]  # a time of now
        for query in metrics["queries"].values():
            query["waiting_since"] = query["waiting_since"] is not None  # the same
        actual_rows.append((actual.generation, actual.restarts, actual.observed_version, metrics))
        for table in (GenerationRow, EpochRow, RecoveryRow):
            rows = await session.scalars(select(table).where(table.job == job).order_by(*table.__table__.primary_key))
            names = [column.key for column in table.__table__.columns if column.key not in ("id", "job", "run")]
            actual_rows.append([[getattr(row, name) for name in names] for row in rows])
        actual_rows.append([row.failure for row in (await job_exceptions.page(session, job)).rows])
        return actual_rows


def a_life() -> EventFile:
    """Two claims and a crash, two queries, every kind of event."""
    file = EventFile()
    file.write_event("lint", code="CL001")
    file.start(1)
    for number in range(6):
        file.epoch(number)
    file.epoch(0, query="other", records_in=1, records_out=1)
    file.write_event("lag", query="out", topics={"in": 7}, partitions={"in": {"0": 5, "1": 2}})
    file.write_event("open-transactions", 0, topics={"words": file.at})
    file.restart(2)
    file.write_event("open-transactions", 0, topics={"letters": file.at})
    file.write_event("open-transactions", 0, generation=1, topics={"old": file.at})
    judge = {"recorded": 0, "replayed": 5, "bytes": 0}
    file.epoch(
        6,
        replay=True,
        skipped_lanes=1,
        published_lanes=3,
        records_out=8,
        replayed_determinants=5,
        operators={"judge": judge},
    )
    file.write_event("truncated", query="out", partitions=2)
    file.start(3)  # the process was killed
    file.epoch(6, replay=True, records_out=8, skipped_lanes=3, published_lanes=3)  # the epoch had ended before
    judge = {"recorded": 3, "replayed": 1, "bytes": 240}
    file.epoch(7, operators={"judge": judge}, recorded_bytes=240, published_lanes=2)
    file.write_event("state", state="STOPPING")
    file.write_event("state", state="STOPPED")
    file.write_event("stopped")
    return file


QUERIES: dict[str, Any] = {"out": {"sink": "KafkaSink"}, "stats": {"sink": "KafkaSink"}}
