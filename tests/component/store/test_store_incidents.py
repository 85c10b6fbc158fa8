"""What explains a recovery is read alike from both databases: epochs, earlier recoveries, names of events."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clonos_api.store import events, incidents, jobs, recoveries
from clonos_api.store.db.database import Database
from clonos_api.store.event_views import EventViews
from support.stored import EventFile, host_row, ingest, run_row

pytestmark = pytest.mark.anyio


async def test_an_incident_has_the_epochs_on_both_sides_and_earlier_recoveries(database: Database) -> None:
    file = EventFile()
    file.start(1)
    for epoch in range(12):  # as text, epoch 9 would be the newest
        file.epoch(epoch)
        file.epoch(epoch // 4, query="slow")
    file.start(2)
    file.epoch(12, replay=True, skipped_lanes=1)
    file.epoch(13)
    file.start(3)
    file.epoch(14)
    async with database.transaction() as session:
        run = await run_row(session, host=await host_row(session, "the-host"))
        await ingest(session, run.id, 0, file.lines)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        second, first = [row.id for row in (await recoveries.page(session, job.id)).rows]
        before, after = await incidents.get(session, job, first), await incidents.get(session, job, second)
    assert before.loss.verdict == after.loss.verdict == "nothing"
    assert before.loss.evidence[:2] == [
        "out: epoch 11 before the failure and epoch 12 after it are consecutive.",
        "slow: no epoch has finished since the failure; the newest one is epoch 2.",
    ]
    assert after.loss.evidence[0] == "out: epoch 13 before the failure and epoch 14 after it are consecutive."
    assert (before.comparison.earlier, after.comparison.earlier) == (0, 1), "later recoveries do not count"
    assert after.comparison.median_ms == before.downtime_ms
    assert "the driver on the-host crashed; a new driver on the same host took over" in after.summary


async def test_a_generation_that_continued_is_judged_by_times(database: Database) -> None:
    file = EventFile()
    file.start(1)
    file.epoch(0)
    failed_at = datetime.fromtimestamp(file.at + 0.05, UTC)
    file.epoch(1)
    async with database.transaction() as session:
        run = await run_row(session)
        row = await recoveries.begin(
            session, run.job, cause="host-lost", failed_generation=1, from_host="the-host", at=failed_at
        )
        await ingest(session, run.id, 0, file.lines)
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        assert (await incidents.get(session, job, row.id)).loss.verdict == "pending", "its driver is not back yet"
    async with database.transaction() as session:
        open_row = await recoveries.open_of_job(session, run.job)
        assert open_row is not None
        await recoveries.end(session, open_row, "OVERTAKEN", failed_at)
    async with database.reading() as session:
        shown = await incidents.get(session, job, row.id)
    assert shown.loss.evidence == ["out: epoch 0 before the failure and epoch 1 after it are consecutive."]
    assert shown.loss.verdict == "nothing"


async def test_events_name_their_job_and_host(database: Database) -> None:
    async with database.reading() as session:
        _, newest = await events.bounds(session)
    async with database.transaction() as session:
        run = await run_row(session)
    views = EventViews()
    async with database.reading() as session:
        job = await jobs.get(session, run.job)
        for _ in range(2):  # the second time from memory
            rows = await events.after(session, newest)
            texts = {event.type: event.text for event in await views.of(session, rows)}
            assert texts["job.created"] == f"{job.name} was created"
            assert texts["run.created"].startswith(f"A driver of {job.name} (version 1) was placed on host-")
    assert run.host not in " ".join(texts.values())
