"""Recoveries as incidents: their page and REST body, the overview's strip, and events as sentences."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import Recovery
from clonos.resources.service import Role
from clonos_api.dashboard.live import Drawn
from clonos_api.dashboard.rendering import part
from clonos_api.fleet import Board, Boards, Line, Strip
from clonos_api.fleet.strip import SLOTS, health_of, strip_of, until
from clonos_api.store import recoveries
from clonos_api.store.db.database import Database
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import JobRow, RecoveryRow
from component.dashboard.rows import Browser, board, running_rows
from support.serving import Served, write
from support.stored import EventFile, ingest, respec

NOW = datetime(2026, 1, 1, 12, 10, tzinfo=UTC)
CRASH: dict[str, Any] = {"cause": "crash", "failed_generation": 1, "from_host": "host-1", "phases": []}
TAKEOVER: dict[str, Any] = {"standby": "s", "to_host": "host-3", "generation": 2}
DONE: dict[str, Any] = {"outcome": "COMPLETED", "downtime_ms": 800.0}


def text_of(page: httpx.Response) -> str:
    """The words of a page."""
    return html.unescape(re.sub(r"<[^>]+>|\s+", " ", page.text))


def running(name: str) -> Callable[[AsyncSession], Any]:
    """A job with five epochs of generation 1; its driver then fails, and generation 2 replays epoch 5."""

    async def make(session: AsyncSession) -> tuple[str, str]:
        job, run = await running_rows(session, name)
        file = EventFile()
        file.start(1)
        for epoch in range(5):
            file.epoch(epoch)
        file.start(2)
        file.epoch(5, replay=True, skipped_lanes=1, replayed_determinants=7)
        file.epoch(6)
        await ingest(session, run.id, 0, file.lines)
        return job.id, run.id

    return make


def recovery(job: str, at: datetime | None = None, *, ended: bool = True, **body: Any) -> Callable[..., Any]:
    async def make(session: AsyncSession) -> str:
        began = at or datetime.now(UTC) - timedelta(seconds=4)
        id = new_id()
        fields = {**CRASH, **body}
        session.add(RecoveryRow(id=id, job=job, started_at=began, ended_at=began if ended else None, body=fields))
        return id

    return make


def test_an_incident_proves_from_the_epochs_that_nothing_was_lost(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, running(name))
    with api.client() as admin, browser(Role.VIEWER) as viewer:
        (listed,) = admin.get(f"/jobs/{job}/recoveries").json()["data"]
        incident = admin.get(f"/jobs/{job}/recoveries/{listed['id']}").json()
        page = viewer.get(f"/jobs/{job}/recoveries/{listed['id']}")
    assert incident["summary"].startswith(f"{name}: the driver on host-")
    assert incident["summary"].endswith("nothing was lost")
    assert incident["loss"]["verdict"] == "nothing"
    assert (incident["loss"]["records"], incident["loss"]["epochs"]) == (0, 0)
    assert "out: epoch 4 before the failure and epoch 5 after it are consecutive." in incident["loss"]["evidence"]
    shown = text_of(page)
    assert incident["summary"] in shown
    assert incident["comparison"]["summary"] in shown
    for sentence in incident["loss"]["evidence"]:
        assert sentence in shown
    assert f"# {name}: recovery at " in shown
    assert 'data-copy="post-mortem"' in page.text
    assert "all.js" not in page.text, "it has ended"


def test_reports_that_are_missing_are_not_called_lost_or_safe(api: Served, name: str) -> None:
    job, run = write(api, running(name))

    async def skip(session: AsyncSession) -> None:
        file = EventFile()
        file.at += 100
        file.start(3)
        file.epoch(9)
        await ingest(session, run, 10_000, file.lines, gap=True)

    write(api, skip)
    with api.client() as admin:
        newest = admin.get(f"/jobs/{job}/recoveries").json()["data"][0]
        loss = admin.get(f"/jobs/{job}/recoveries/{newest['id']}").json()["loss"]
    assert (newest["failed_generation"], loss["verdict"], loss["records"]) == (2, "unknown", None)
    assert "out: the control plane has no report of epochs 7 to 8." in loss["evidence"]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"metrics": {"delivery": {"out": "at-least-once"}}}, "duplicates"),
        ({"metrics": {"delivery": {"out": "exactly-once"}, "sharing_depth": "0"}}, "duplicates"),
        ({"metrics": None, "spec": {"delivery": "at-least-once"}}, "duplicates"),
    ],
)
def test_the_verdict_follows_what_the_driver_guarantees(
    api: Served, name: str, change: dict[str, Any], verdict: str
) -> None:
    job, _ = write(api, running(name))

    async def make(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        row.metrics = change["metrics"]
        respec(row, **change.get("spec", {}))

    write(api, make)
    with api.client() as admin:
        (listed,) = admin.get(f"/jobs/{job}/recoveries").json()["data"]
        assert admin.get(f"/jobs/{job}/recoveries/{listed['id']}").json()["loss"]["verdict"] == verdict


def test_a_recovery_in_progress_has_a_running_clock(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, running(name))
    id = write(api, recovery(job, ended=False, **{**TAKEOVER, "failed_generation": 2, "generation": None}))
    with api.client() as admin, browser(Role.VIEWER) as viewer:
        incident = admin.get(f"/jobs/{job}/recoveries/{id}").json()
        page = viewer.get(f"/jobs/{job}/recoveries/{id}")
    assert re.search(r"no output for .+ so far$", incident["summary"])
    assert incident["loss"]["verdict"] == "pending"
    assert incident["comparison"]["rank"] is None
    clock = re.search(r'<p class="clock">No output for <b><time datetime="([^"]+)" data-since', page.text)
    assert clock
    assert datetime.fromisoformat(clock[1]) == datetime.fromisoformat(incident["silent_since"]).replace(
        microsecond=datetime.fromisoformat(clock[1]).microsecond
    )
    assert "the standby on host-3 starts to claim the causal log; no output yet." in text_of(page)
    assert "all.js" in page.text, "it follows the events"


def test_a_recovery_that_failed(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, running(name))
    failure = {"error": "restarts-exhausted", "what": "<script>alert(1)</script>", "domain": "run"}
    body = {"failed_generation": 2, "outcome": "ABANDONED", "failure": failure}
    id = write(api, recovery(job, **body))
    with browser(Role.VIEWER) as viewer:
        page = viewer.get(f"/jobs/{job}/recoveries/{id}")
    assert 'class="incident bad"' in page.text
    assert "failed (restarts-exhausted); no driver took over; the job stopped." in text_of(page)
    assert "<script>alert(1)" not in page.text


def test_the_tab_of_recoveries_has_their_sentences(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, running(name))
    write(api, recovery(job, **TAKEOVER, **DONE))
    with browser(Role.VIEWER) as viewer:
        shown = text_of(viewer.get(f"/jobs/{job}", params={"tab": "recoveries"}))
    assert "the driver on host-1 crashed; the standby on host-3 took over; no output for 800 ms" in shown


@pytest.mark.parametrize(
    ("body", "ended", "health"),
    [
        ({**TAKEOVER, **DONE}, True, "good"),
        ({"generation": 2, **DONE}, True, "weak"),
        ({"generation": 2, **DONE, "cause": "restart"}, True, "good"),
        ({**TAKEOVER, **DONE, "cause": "move"}, True, "busy"),
        ({**TAKEOVER, "cause": "upgrade"}, False, "busy"),
        (TAKEOVER, False, "bad"),
        ({"outcome": "ABANDONED"}, True, "bad"),
        ({"outcome": "SUPERSEDED"}, True, "bad"),
        ({"outcome": "OVERTAKEN"}, True, "idle"),
        ({"outcome": "IDLE"}, True, "idle"),
        ({**TAKEOVER, "outcome": "IDLE", "downtime_ms": 640.0}, True, "good"),
        ({"generation": 2, "outcome": "IDLE", "downtime_ms": 640.0}, True, "weak"),
    ],
)
def test_the_colour_of_a_bar_is_the_outcome(body: dict[str, Any], ended: bool, health: str) -> None:
    fields = {**CRASH, **body, "id": "r", "job": "j", "started_at": NOW, "ended_at": NOW if ended else None}
    assert health_of(Recovery.model_validate(fields)) == health


def recovered(name: str, at: datetime, *, job: str = "j", **body: Any) -> Recovery:
    return Recovery.model_validate(
        {**CRASH, **DONE, **body, "id": name, "job": job, "started_at": at, "ended_at": at + timedelta(seconds=1)}
    )


def test_the_strip_has_a_lane_per_job_and_a_bar_per_half_hour() -> None:
    end = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
    listed = [
        recovered("slow", end - timedelta(minutes=95), **{**TAKEOVER, "downtime_ms": 60_000.0}),
        recovered("fast", end - timedelta(minutes=94), **TAKEOVER),
        recovered("cold", end - timedelta(hours=24), generation=2),
        recovered("newest", end - timedelta(microseconds=1), **TAKEOVER),
        recovered("move", NOW, job="k", **{**TAKEOVER, "cause": "move"}),
        recovered("of a deleted job", NOW, job="gone", **TAKEOVER),
    ]
    strip = strip_of(listed, {"j": "fraud", "k": "orders"}, NOW)
    assert strip.until == until(NOW) == end
    assert strip.summary == (
        "5 recoveries of 2 jobs in the last 24 hours, 1 of them planned; the longest time without output was 1 min."
    )
    assert [(lane.job, lane.name) for lane in strip.lanes] == [("j", "fraud"), ("k", "orders")], "the worst first"
    first, second, third = strip.lanes[0].bars
    assert (first.slot, first.health, first.recovery) == (0, "weak", "cold")
    assert (second.slot, second.health, second.recovery) == (SLOTS - 4, "good", "slow")
    assert (third.slot, third.recovery) == (SLOTS - 1, "newest")
    assert second.height > first.height
    assert second.text == (
        "2 recoveries, the worst at 10:55 UTC, fraud: the driver on host-1 crashed; "
        "the standby on host-3 took over; no output for 1 min"
    )
    assert strip.lanes[1].bars[0].health == "busy"


def test_the_overview_links_each_bar_to_its_incident(api: Served, browser: Browser, name: str) -> None:
    job, _ = write(api, running(name))
    id = write(api, recovery(job, **TAKEOVER, **DONE))
    before = write(api, recovery(job, datetime.now(UTC) - timedelta(hours=26), **TAKEOVER, **DONE))
    strip = part("overview_strip.html", board=board(api))
    assert f'href="jobs/{job}/recoveries/{id}"' in strip
    assert f"{name}: the driver on host-1 crashed; the standby on host-3 took over; no output for 800 ms" in strip
    assert before not in strip
    with browser(Role.VIEWER) as viewer:
        assert 'aria-label="Recoveries of the last 24 hours"' in viewer.get("/").text

    async def delete(session: AsyncSession) -> None:
        (await session.get_one(JobRow, job)).deleted_at = datetime.now(UTC)

    write(api, delete)
    assert job not in part("overview_strip.html", board=board(api))


def test_a_board_that_is_read_again_has_new_and_ended_recoveries(api: Served, name: str) -> None:
    job, _ = write(api, running(name))

    async def look() -> None:
        database = Database(api.settings.database)
        boards = Boards(database)

        async def health() -> list[str]:
            boards._read_at = 0.0  # read again at once
            strip = (await boards.newest()).strip
            assert strip is not None
            return [bar.health for lane in strip.lanes if lane.job == job for bar in lane.bars]

        try:
            assert await health() == []
            async with database.transaction() as session:
                begun = {"cause": "crash", "failed_generation": 2, "from_host": "host-1", "at": datetime.now(UTC)}
                await recoveries.begin(session, job, **begun)
            assert await health() == ["bad"]
            async with database.transaction() as session:
                row = await recoveries.open_of_job(session, job)
                assert row is not None
                await recoveries.end(session, row, "OVERTAKEN")
            assert await health() == ["idle"]
        finally:
            await database.close()

    asyncio.run(look())


def test_an_empty_strip_says_so() -> None:
    line = Line("1", "job", "ada", "RUNNING", NOW, "good", (), (), None, None, 0, None, None)
    empty = Board(1, NOW, (), (line,), strip=Strip(until(NOW), "No recovery in the last 24 hours."))
    shown = part("overview_strip.html", board=empty)
    assert "No recovery in the last 24 hours." in shown
    assert "<svg" not in shown


def test_a_strip_is_sent_only_when_it_changes() -> None:
    before = Board(1, NOW, (), (), strip=Strip(until(NOW), "No recovery in the last 24 hours."))
    drawn = Drawn()
    unled = dataclasses.replace(before, number=2, led=False)
    assert b'"strip"' not in asyncio.run(drawn.changes(before, unled))
    other = dataclasses.replace(before, number=3, strip=Strip(until(NOW), "1 recovery of 1 job."))
    assert b"1 recovery of 1 job." in asyncio.run(drawn.changes(before, other))
    assert b'"strip"' in asyncio.run(drawn.whole(unled))


def test_the_overview_stays_small(api: Served, browser: Browser, name: str) -> None:
    """Many jobs that recover all day are no more than a few lanes."""
    end = until(datetime.now(UTC))
    jobs = [write(api, running(f"{name}-{number}"))[0] for number in range(9)]

    async def crash(session: AsyncSession) -> None:
        for job in jobs:
            for slot in range(SLOTS):
                at = end - timedelta(minutes=30 * slot + 15)
                row = {"started_at": at, "ended_at": at, "body": {**CRASH, **TAKEOVER, **DONE}}
                session.add(RecoveryRow(id=new_id(), job=job, **row))

    write(api, crash)
    strip = board(api).strip
    assert strip is not None
    assert sum(len(lane.bars) for lane in strip.lanes) <= 96
    assert strip.more >= 7
    page = part("overview_strip.html", board=board(api)).encode()
    assert len(page) < 45_000
    assert len(gzip.compress(page, 1)) < 8_000
    with browser(Role.VIEWER) as viewer, viewer.stream("GET", "/") as response:
        assert sum(len(chunk) for chunk in response.iter_raw()) < 30_000


def test_events_are_sentences_with_names(api: Served, browser: Browser, name: str) -> None:
    job, run = write(api, running(name))
    with api.client() as admin, browser(Role.VIEWER) as viewer:
        history = admin.get("/events/history", params={"job": job, "tail": 50}).json()["data"]
        texts = {event["type"]: event["text"] for event in history}
        page = viewer.get("/events", params={"job": job})
        newest = history[-1]
        single = viewer.get(f"/events/{newest['seq']}")
        with admin.stream("GET", "/events", params={"job": job, "after": newest["seq"] - 1}) as stream:
            line = next(line for line in stream.iter_lines() if line.startswith("data: {"))
    host = re.search(r"on (host-\w+)", texts["job.generation"])
    assert host
    assert texts["job.created"] == f"{name} was created"
    assert texts["job.generation"].startswith(f"Generation 2 of {name} claimed the causal log on {host[1]}")
    assert texts["job.recovery.ended"].startswith(f"{name} recovered: generation 2 publishes after ")
    assert f"of {name} (version 1) was placed on {host[1]}" in texts["run.created"]
    shown = text_of(page)
    for text in texts.values():
        assert text in shown
    assert run not in shown, "names instead of ids"
    assert "/recoveries/" in page.text
    assert newest["text"] in text_of(single)
    assert newest["text"] in line


def test_the_sentence_of_a_job_without_a_row_has_its_id(api: Served, name: str) -> None:
    job, _ = write(api, running(name))

    async def remove(session: AsyncSession) -> None:
        await session.delete((await session.scalars(select(JobRow).where(JobRow.id == job))).one())

    with api.client() as admin:
        before = admin.get("/events/history", params={"job": job, "tail": 1}).json()["data"][0]
        write(api, remove)
        after = admin.get("/events/history", params={"after": before["seq"] - 1, "limit": 1}).json()["data"][0]
    assert name in before["text"]
    assert after["text"] == before["text"].replace(name, job)
