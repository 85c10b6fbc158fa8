"""A round of the reconciler loads nothing if nothing has changed since one without work."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import RunReport
from clonos_api.reconcile import loop, quiet
from clonos_api.reconcile.loop import Term
from clonos_api.settings import ApiSettings
from clonos_api.store import events, hosts, operations, runs, standbys
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import HostRow, JobRow, RunRow
from support.stored import host_row, job_row, run_row, run_spec

pytestmark = pytest.mark.anyio
Rows = tuple[JobRow, RunRow, HostRow]


class Loaded(Exception):
    """A whole round began."""


@pytest.fixture
async def rows(database: Database) -> Rows:
    """A stopped job with an open run, so that no round has work."""
    async with database.transaction() as session:
        job = await swap(session, await job_row(session), desired_state="STOPPED")
        host = await host_row(session, lease_s=9.0)
        return job, await run_row(session, job, host), host


@pytest.fixture
async def term(database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Term:
    """A leader after a round without work; a further whole round raises `Loaded`."""
    leader: Any = SimpleNamespace(fencing_token=1, holder="here")
    term = Term(database, ApiSettings(), leader, 1)
    term._available_since -= 60  # heartbeats count
    # Also on a busy machine, whose late answers would look like a pause.
    monkeypatch.setattr(term, "_check_availability", partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    await term.round()

    async def load(*_: object, **__: object) -> None:
        raise Loaded

    monkeypatch.setattr(loop, "load", load)
    await term.round()
    return term


async def _job_changes(session: AsyncSession, rows: Rows) -> None:
    await swap(session, rows[0], desired_state="RUNNING")


async def _run_is_reported(session: AsyncSession, rows: Rows) -> None:
    await runs.report(session, rows[2].id, [RunReport(run=rows[1].id, state="RUNNING", driver_state="RUNNING")])


async def _host_drains(session: AsyncSession, rows: Rows) -> None:
    await hosts.drain(session, rows[2], drained=True)


async def _host_is_silent(session: AsyncSession, rows: Rows) -> None:
    silent = await now(session) - timedelta(seconds=300)
    await session.execute(update(HostRow).values(heartbeat_at=silent))


async def _lease_expires(session: AsyncSession, rows: Rows) -> None:
    await session.execute(update(HostRow).values(lease_until=await now(session)))


async def _lease_is_too_long(session: AsyncSession, rows: Rows) -> None:
    await session.execute(update(HostRow).values(lease_until=await now(session) + timedelta(days=1)))


async def _standby_is_added(session: AsyncSession, rows: Rows) -> None:
    await standbys.create(session, rows[0], run_spec(rows[0], standby=True), rows[2].id, "")


async def _operation_begins(session: AsyncSession, rows: Rows) -> None:
    await operations.begin(session, "stop", job=rows[0].id, arguments={}, timeout_s=60, by="ada")


async def _event_is_added(session: AsyncSession, rows: Rows) -> None:
    events.append(session, "x")  # type: ignore[arg-type]


async def _run_is_deleted(session: AsyncSession, rows: Rows) -> None:
    await session.delete(await session.get_one(RunRow, rows[1].id))


@pytest.mark.parametrize(
    "change",
    [
        _job_changes,
        _run_is_reported,
        _host_drains,
        _host_is_silent,
        _lease_expires,
        _lease_is_too_long,
        _standby_is_added,
        _operation_begins,
        _event_is_added,
        _run_is_deleted,
    ],
)
async def test_a_change_brings_a_whole_round(
    term: Term, database: Database, rows: Rows, change: Callable[[AsyncSession, Rows], Awaitable[None]]
) -> None:
    async with database.transaction() as session:
        await change(session, rows)
    with pytest.raises(Loaded):
        await term.round()


async def test_heartbeats_bring_no_whole_round(term: Term, database: Database, rows: Rows) -> None:
    host = rows[2]
    async with database.transaction() as session:
        await hosts.heartbeat(session, host.id, host.instance, hosts.Liveness(lease_s=10.0, heartbeat_interval_s=2.0))
    await term.round()
    assert term._next_s <= loop.ROUND_S


async def test_a_whole_round_follows_in_time(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term, "_next_whole_round", 0.0)
    with pytest.raises(Loaded):
        await term.round()


def test_a_job_that_waits_for_a_standby_is_not_satisfied() -> None:
    def demand(**facts: Any) -> Any:
        return SimpleNamespace(**{"failed_recently": 0, "recovery_open": False, "replicas": 1} | facts)

    with_one: Any = SimpleNamespace(standbys=[object()])
    assert quiet.is_satisfied([(demand(), with_one)])
    assert not quiet.is_satisfied([(demand(), with_one), (demand(replicas=2), with_one)])
    assert not quiet.is_satisfied([(demand(failed_recently=1), with_one)])
    assert not quiet.is_satisfied([(demand(recovery_open=True), with_one)])
