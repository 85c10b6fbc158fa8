"""The overview's health follows the output of jobs: pages, ``GET /status``, and the reasons."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos.testing.harness import eventually
from clonos_api.fleet import Boards, Line
from clonos_api.fleet.banner import banner_of
from clonos_api.fleet.forecasts import BENCHMARK_MS
from clonos_api.store.columns import JobFigures
from clonos_api.store.db.database import Database
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import JobRow, RecoveryRow, StandbyRow
from clonos_api.store.tokens import Expiring
from component.dashboard.rows import DAY, Browser, board, line_of, running_rows
from support.serving import Served, write
from support.stored import EventFile, host_row, ingest, respec, run_row, set_figures


def page_with(client: httpx.Client, text: str) -> str:
    """The overview, once its board is new enough to contain `text`."""

    def shown() -> str | None:
        page = " ".join(client.get("/").text.split())
        return page if text in page else None

    return eventually(shown, f"the overview has {text!r}")


def running(name: str, **metrics: Any) -> Callable[[AsyncSession], Any]:
    """A RUNNING job without standbys; the control plane receives its epochs for another day."""

    async def make(session: AsyncSession) -> tuple[str, str]:
        queries = {"out": {"epoch": 46, "records_out": 50, "lag": {"in": 12}}}
        job, run = await running_rows(session, name, **{"queries": queries, **metrics})
        job.state_since = datetime.now(UTC) - DAY
        return job.id, run.id

    return make


def recovery(job: str, *, ended: bool = False, **body: Any) -> Callable[[AsyncSession], Any]:
    async def make(session: AsyncSession) -> None:
        began = datetime.now(UTC) - timedelta(seconds=4)
        fields = {"cause": "crash", "failed_generation": 1, "from_host": "host-1", "phases": [], **body}
        row = RecoveryRow(id=new_id(), job=job, started_at=began, ended_at=began if ended else None, body=fields)
        session.add(row)

    return make


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "a new driver is being placed"),
        ({"to_host": "host-3", "standby": "s"}, "the standby on host-3 starts to claim the causal log"),
        ({"to_host": "host-3"}, "a new driver on host-3 starts to claim the causal log"),
        ({"to_host": "host-3", "standby": "s", "generation": 2}, "generation 2 on host-3 computes epoch 47"),
    ],
)
def test_an_open_recovery_is_red_at_once(
    api: Served, browser: Browser, name: str, body: dict[str, Any], why: str
) -> None:
    job, _ = write(api, running(name))
    assert line_of(api, job).health == "good"
    write(api, recovery(job, **body))
    line = line_of(api, job)
    assert line.health == "bad"
    assert line.stall is not None
    assert line.stall.why == why
    with browser(Role.VIEWER) as client:
        shown = page_with(client, why)
    assert f"{name}</a>: no output for" in shown or "more jobs have no output" in shown
    assert '<p class="why">no output for' in shown


def test_a_planned_move_is_not_a_stall(api: Served, name: str) -> None:
    job, _ = write(api, running(name))
    write(api, recovery(job, cause="upgrade"))
    assert line_of(api, job).stall is None


def report(job: str, **metrics: Any) -> Callable[[AsyncSession], Any]:
    async def change(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        set_figures(row, {**metrics})

    return change


@pytest.mark.parametrize(
    ("age_s", "slow_ms", "interval", "waits", "stalled"),
    [
        (60, 100.0, "0s", True, True),
        (60, 100.0, "0s", False, False),  # no input
        (60, 250_000.0, "0s", True, False),  # its epochs take that long
        (60, 100.0, "2min", True, False),  # its next epoch is not due
    ],
)
def test_records_that_wait_without_an_epoch_are_a_stall(
    api: Served, name: str, age_s: float, slow_ms: float, interval: str, waits: bool, stalled: bool
) -> None:
    job, _ = write(api, running(name))
    since = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat()
    query = {"epoch": 46, "slow_epoch_ms": slow_ms, "waiting_since": since if waits else None}
    write(api, report(job, queries={"out": query}))

    async def trigger(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job)
        respec(row, trigger={"interval": interval})

    write(api, trigger)
    line = line_of(api, job)
    assert (line.stall is not None) is stalled
    assert (line.health == "bad") is stalled


@pytest.mark.parametrize(
    ("stats", "stalled"),
    [
        ({"waits_s": 30, "slow_epoch_ms": 100.0}, True),
        ({"waits_s": 30, "slow_epoch_ms": 100.0, "interval_ms": 60_000}, False),  # its next epoch is not due
        ({"waits_s": 30, "slow_epoch_ms": 20_000.0}, False),  # its epochs take that long, the other's do not
        ({"waits_s": 1, "slow_epoch_ms": 100.0}, False),  # its first record for an hour
        ({"waits_s": None, "slow_epoch_ms": 100.0}, False),
    ],
)
def test_a_query_that_stops_beside_another_one_is_a_stall(
    api: Served, name: str, stats: dict[str, Any], stalled: bool
) -> None:
    job, _ = write(api, running(name))
    now, hour_ago = datetime.now(UTC), (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    waits_s = stats.pop("waits_s")
    since = None if waits_s is None else (now - timedelta(seconds=waits_s)).isoformat()
    queries = {
        "out": {"epoch": 46, "at": now.isoformat(), "slow_epoch_ms": 100.0},
        "stats": {"epoch": 8, "at": hour_ago, "waiting_since": since, **stats},
    }
    write(api, report(job, at=now.isoformat(), received_at=now.isoformat(), queries=queries))
    stall = line_of(api, job).stall
    assert (stall is not None) is stalled
    if stall is not None:
        assert stall.why == "records are waiting for query stats, and no epoch has finished"
        assert 30 <= (datetime.now(UTC) - stall.since).total_seconds() < 60


GRAPH = {"out": {"topics": ["in"], "outputs": ["out"]}}


@pytest.mark.parametrize(
    ("queries", "age_s", "health"),
    [(GRAPH, 0, "busy"), (GRAPH, 60, "bad"), ({"out": {"outputs": ["out"]}}, 60, "good")],  # files may never come
)
def test_a_first_epoch_that_does_not_end_is_a_stall(
    api: Served, name: str, queries: dict[str, Any], age_s: float, health: str
) -> None:
    job, run = write(api, running(name))
    file = EventFile()
    file.start(3, queries=queries)

    def push() -> Line:
        async def change(session: AsyncSession) -> None:
            await ingest(session, run, 0, file.lines)
            row = await session.get_one(JobRow, job, populate_existing=True)
            since = row.figures.first_epoch_since
            if since is not None:
                set_figures(row, {"first_epoch_since": (since - timedelta(seconds=age_s)).isoformat()})

        write(api, change)
        return line_of(api, job)

    line = push()
    assert line.health == health
    assert (line.stall is not None) is (health == "bad")
    if line.stall is not None:
        assert "generation 3 on " in line.stall.why
        assert line.stall.why.endswith(" has claimed the causal log, and finished no epoch yet")
    file.write_event("lag", query="out", topics={"in": 0})
    assert push().health == "good", "no record is unread"


@pytest.fixture
def later(api: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any], dict[str, Any]], Line]:
    """Returns the line of a job whose query has other figures after ten seconds."""

    def change(job: str, before: dict[str, Any], after: dict[str, Any], after_s: float = 10) -> Line:
        write(api, report(job, queries={"out": before}))

        async def read() -> Line:
            database = Database(api.settings.database)
            try:
                boards = Boards(database)
                await boards.newest()
                async with database.transaction() as session:
                    await report(job, queries={"out": after})(session)
                ahead = time.monotonic() + after_s
                with monkeypatch.context() as patch:
                    patch.setattr(time, "monotonic", lambda: ahead)
                    return next(line for line in (await boards.newest()).lines if line.id == job)
            finally:
                await database.close()

        return asyncio.run(read())

    return change


Later = Callable[..., Line]


@pytest.mark.parametrize(("lag", "health"), [(12_000, "weak"), (300, "good")])
def test_a_job_that_is_minutes_behind_is_not_healthy(
    api: Served, name: str, later: Later, lag: int, health: str
) -> None:
    job, _ = write(api, running(name))
    query = {"epoch": 46, "records_in": 1_000, "records_out": 50, "lag": {"in": lag}}
    line = later(job, query, {**query, "records_in": 1_300})
    assert line.health == health
    if health == "weak":
        assert line.weak == ("its unread records take more than 6 min at its present rate",)


@pytest.mark.parametrize(
    ("read", "lag", "after_s", "reason", "unmeasured"),
    [
        (0, 900, 61, "its unread records increase, and it has read none in the last minute", False),
        (0, 900, 10, "", True),  # it may compute an epoch
        (0, 300, 61, "", False),  # no record arrives
        (300, 900, 10, "", False),
    ],
)
def test_a_job_that_reads_none_of_what_arrives_is_not_healthy(
    api: Served, name: str, later: Later, read: int, lag: int, after_s: float, reason: str, unmeasured: bool
) -> None:
    job, _ = write(api, running(name))
    query = {"epoch": 46, "records_in": 1_000, "records_out": 50, "lag": {"in": 300}}
    line = later(job, query, {**query, "records_in": 1_000 + read, "lag": {"in": lag}}, after_s)
    assert (line.weak, line.unmeasured) == ((reason,) if reason else (), unmeasured)
    assert line.health == ("weak" if reason else "good")


def test_the_banner_calls_no_job_up_to_date_before_its_rate_is_measured(api: Served, name: str) -> None:
    write(api, running(name))
    seen = board(api)
    line = next(line for line in seen.lines if line.name == name)
    assert line.unmeasured
    banner = banner_of(dataclasses.replace(seen, lines=(line,), tokens=Expiring()))
    assert "behind" not in banner.headline
    assert "1 of 1 has unread records, and it is not measured yet how fast they are read" in banner.headline


@pytest.mark.parametrize(("more", "health"), [(1, "weak"), (0, "good")])
def test_new_dead_letters_degrade_a_job_and_are_an_alert(
    api: Served, name: str, later: Later, more: int, health: str
) -> None:
    job, _ = write(api, running(name))
    query = {"epoch": 46, "records_out": 50, "lag": {"in": 0}, "dead_letters": 7}
    line = later(job, query, {**query, "dead_letters": 7 + more})
    assert (line.health, line.dead_letters, line.exact) == (health, bool(more), True)


def test_a_recovery_names_the_query_that_it_waits_for(api: Served, name: str) -> None:
    job, _ = write(api, running(name))
    at = (datetime.now(UTC) - DAY).isoformat()
    queries = {"out": {"epoch": 46, "at": at}, "stats": {"epoch": 8, "at": at}}
    write(api, report(job, at=at, queries=queries))
    body = {"to_host": "host-3", "standby": "s", "generation": 2}
    write(api, recovery(job, **body, returned={"out": {"at": at, "downtime_ms": 600.0}}))
    stall = line_of(api, job).stall
    assert stall is not None
    assert stall.why == "generation 2 on host-3 computes epoch 9 of stats"
    assert 3 < (datetime.now(UTC) - stall.since).total_seconds() < 60, "and not since the last record, a day ago"


def test_the_events_of_a_driver_that_kafka_does_not_answer(api: Served, browser: Browser, name: str) -> None:
    job, run = write(api, running(name))
    file = EventFile()
    file.start(1)
    file.write_event("kafka", silent_since=None, brokers=3, under_replicated=2)

    def push() -> Line:
        async def change(session: AsyncSession) -> None:
            await ingest(session, run, 0, file.lines)

        write(api, change)
        return line_of(api, job)

    assert push().stall is None
    with browser(Role.VIEWER) as client:
        page_with(client, "2 partitions of causal logs miss a replica")
    file.write_event("kafka", silent_since=file.at, brokers=3, under_replicated=2)
    stall = push().stall
    assert stall is not None
    assert stall.why == "Kafka does not answer its driver"
    assert name in board(api).dependencies.silent
    with browser(Role.VIEWER) as client:
        page_with(client, "Kafka does not answer 1 of")
        status = client.get("/api/v1/status").json()
    assert name in status["dependencies"]["silent"]
    shown = next(entry for entry in status["jobs"] if entry["name"] == name)
    assert (status["health"], shown["health"]) == ("failing", "failing")
    assert f"{name}: no output for" in status["summary"]
    file.write_event("kafka", silent_since=None, brokers=3, under_replicated=0)
    file.write_event("state", state="WAITING")
    file.write_event("waiting", error="registry-unavailable", what="The registry is away.", kept="k", hint="h")
    stall = push().stall
    assert stall is not None
    assert stall.why == "its driver waits: The registry is away."
    file.write_event("state", state="RUNNING")
    assert push().stall is None


def test_a_takeover_is_estimated_from_earlier_ones(
    api: Served, browser: Browser, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos_api.fleet.board._ESTIMATES_S", 0.0)  # the service keeps estimates for half a minute
    job, _ = write(api, running(name))
    other, _ = write(api, running(f"{name}-2"))
    done = {"outcome": "COMPLETED", "generation": 2}
    for downtime_ms, standby in ((600.0, "s"), (700.0, "s"), (800.0, "s"), (12_000.0, None)):
        write(api, recovery(other, ended=True, downtime_ms=downtime_ms, standby=standby, **done))
    write(api, recovery(other, ended=True, cause="restart", downtime_ms=1.0, **done))
    cold = line_of(api, job).forecast
    assert cold is not None
    assert (cold.warm, cold.host, cold.estimate_s) == (False, "", 12.0)

    async def place(session: AsyncSession) -> str:
        host = await host_row(session)
        ready = await run_row(session, await session.get_one(JobRow, other), host)
        row = {"mode": "dedicated", "state": "READY", "since": ready.created_at + DAY, "body": {}}
        session.add(StandbyRow(id=ready.id, job=other, host=host.id, **row))
        warming = await run_row(session, await session.get_one(JobRow, job), host)
        row |= {"state": "WARMING", "since": datetime.now(UTC)}
        session.add(StandbyRow(id=warming.id, job=job, host=host.id, **row))
        return host.name

    host = write(api, place)
    warming = line_of(api, job).forecast
    assert warming is not None
    assert (warming.warm, warming.host, warming.estimate_s) == (False, host, 12.0)
    assert warming.ready_in_s is not None
    assert 0 < warming.ready_in_s <= DAY.total_seconds()
    with browser(Role.VIEWER) as client:
        page_with(client, 'cold, 12 s</span><br><span class="dim">warming up')

    async def ready(session: AsyncSession) -> None:
        run = (await session.get_one(JobRow, job)).run
        for row in [row for row in await _standbys(session) if row.job == job and row.id != run]:
            row.state = "READY"

    write(api, ready)
    warm = line_of(api, job).forecast
    assert warm is not None
    assert (warm.warm, warm.host, warm.estimate_s, warm.ready_in_s) == (True, host, 0.7, None)
    file = EventFile()
    file.write_event("rehearsed", seconds=31.0, state={"out": "offsets"}, epoch_s=0.25)

    async def rehearse(session: AsyncSession) -> None:
        run = (await session.get_one(JobRow, job)).run
        (standby,) = [row.id for row in await _standbys(session) if row.job == job and row.id != run]
        await ingest(session, standby, 0, file.lines)

    write(api, rehearse)
    warm = line_of(api, job).forecast
    assert warm is not None
    benchmark_s = sum(BENCHMARK_MS.values()) / 1000
    assert warm.estimate_s == pytest.approx(benchmark_s + 0.25), "of its own standby, not of other jobs"
    assert warm.basis == "benchmark"
    for detect_ms in (300.0, 310.0, 320.0):
        phases = phases_ms(detect=detect_ms, decide=20.0, claim=70.0, replay=5000.0, commit=10.0)
        taken = {"downtime_ms": 5400.0, "standby": "s", "phases": phases, "cause": "crash"}
        write(api, recovery(other, ended=True, **taken, **done))
    lost = {"downtime_ms": 9e5, "standby": "s", "cause": "host-lost", "phases": phases_ms(detect=9e5)}
    write(api, recovery(other, ended=True, **lost, **done))
    warm = line_of(api, job).forecast
    assert warm is not None
    assert warm.estimate_s == pytest.approx(0.41 + 0.25), "the other steps are from this platform's takeovers"
    assert warm.basis == "rehearsals"
    write(api, recovery(job, ended=True, downtime_ms=900.0, standby="s", outcome="COMPLETED", generation=2))
    warm = line_of(api, job).forecast
    assert warm is not None
    assert warm.estimate_s == 0.9, "its own takeovers count most"
    assert warm.basis == "job"


def phases_ms(**durations_ms: float) -> list[dict[str, Any]]:
    """The phases of a recovery."""
    started = datetime.now(UTC).isoformat()
    return [{"name": name, "started_at": started, "duration_ms": each} for name, each in durations_ms.items()]


def test_the_steps_without_a_takeover_are_those_of_the_benchmark() -> None:
    file = Path(__file__).parents[3] / "bench" / "results" / "whole-2026-11-29.json"
    measured = json.loads(file.read_text())["standby"]["phases_ms"]
    assert {name: measured[name] for name in BENCHMARK_MS} == BENCHMARK_MS
    assert set(measured) - set(BENCHMARK_MS) == {"replay", "epoch"}, "what a standby rehearses"


async def _standbys(session: AsyncSession) -> list[StandbyRow]:
    return list(await session.scalars(select(StandbyRow)))


def test_slow_epochs_are_a_maximum_that_falls(api: Served, name: str) -> None:
    job, run = write(api, running(name))
    file = EventFile()
    file.start(1)
    for number, duration_ms in enumerate((100, 4_000, *[100] * 35)):
        file.write_event("epoch", query="out", epoch=number, replay=False, duration_ms=duration_ms)

    async def push(session: AsyncSession) -> JobFigures:
        await ingest(session, run, 0, file.lines)
        return (await session.get_one(JobRow, job, populate_existing=True)).figures

    metrics = write(api, push)
    assert 1_900 < metrics.slow_epoch_ms < 2_050
    assert metrics.received_at > metrics.at
    with api.client() as client:
        assert client.get(f"/jobs/{job}/metrics").json()["slow_epoch_ms"] == metrics.slow_epoch_ms
