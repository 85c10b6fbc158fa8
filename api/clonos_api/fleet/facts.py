"""Reads the rows of the store from which a board is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.verification import Verification
from clonos_api.store import hosts as store_hosts
from clonos_api.store import recoveries, tokens, verifications
from clonos_api.store.db.clock import now
from clonos_api.store.lease import NAME as LEADER
from clonos_api.store.standbys import WAITING
from clonos_api.store.tables import CounterRow, HostRow, JobRow, LeaseRow, RecoveryRow, RunRow, StandbyRow
from clonos_api.store.tokens import Expiring

# Margin for the leader, which checks leases periodically and may itself just have failed over.
_UNLED: Final = timedelta(seconds=10)
# A host is silent after three missed heartbeats, but not sooner than after this time: a busy machine delays some.
_SILENT: Final = timedelta(seconds=2)
_MISSED: Final = 3


@dataclass(frozen=True)
class Waiting:
    """A standby that can be promoted, for the board."""

    host: str  # name of its host
    state: str
    created_at: datetime  # start of its run
    epoch_s: float | None = None  # duration of its shortest rehearsal of an epoch; None: it has not reported one


@dataclass(frozen=True)
class Facts:
    """The rows of one read."""

    at: datetime
    jobs: list[JobRow]
    hosts: list[HostRow]
    used: Mapping[str, int]  # host id → number of used slots
    drivers: Mapping[str, tuple[str, str]]  # run id → name of its host, state
    standbys: Mapping[str, list[Waiting]]  # job id → its standbys, oldest first
    recoveries: Mapping[str, RecoveryRow]  # job id → its newest recovery
    diverged: Mapping[str, int]  # job id → number of lanes that differed in a replay
    verifications: Mapping[str, Verification]  # job id → the newest verification of its output
    led: bool
    disconnected: frozenset[str] = frozenset()  # names of hosts with an expired lease that are not LOST yet
    silent: frozenset[str] = frozenset()  # names of the other hosts that missed heartbeats
    lost: frozenset[str] = frozenset()  # names of LOST hosts
    tokens: Expiring = field(default_factory=Expiring)  # in use, and about to expire
    pool_available: frozenset[str] = field(default_factory=frozenset)  # names of hosts with a warm pool driver


async def read_facts(session: AsyncSession) -> Facts:
    """Read the rows of all jobs that are not deleted, and of all hosts."""
    jobs = list(await session.scalars(select(JobRow).where(JobRow.deleted_at.is_(None))))
    hosts = await store_hosts.every(session)
    names = {host.id: host.name for host in hosts}
    drivers = (
        select(RunRow.id, RunRow.host, RunRow.state)
        .join(JobRow, JobRow.run == RunRow.id)
        .where(JobRow.deleted_at.is_(None), RunRow.ended_at.is_(None))
    )
    waiting = (
        select(StandbyRow.job, StandbyRow.host, StandbyRow.state, RunRow.created_at, StandbyRow.since, StandbyRow.body)
        .outerjoin(RunRow, RunRow.id == StandbyRow.id)
        .where(StandbyRow.state.in_(WAITING))
        .order_by(StandbyRow.id)
    )
    standbys: dict[str, list[Waiting]] = {}
    for job, host, state, created_at, since, body in await session.execute(waiting):
        standby = Waiting(names.get(host, host), state, created_at or since, body.epoch_s)
        standbys.setdefault(job or "", []).append(standby)
    diverged = select(CounterRow.job, CounterRow.value).where(CounterRow.name == "diverged_lanes", CounterRow.value > 0)
    at = await now(session)
    lease = (await session.execute(select(LeaseRow.expires_at).where(LeaseRow.name == LEADER))).scalar()
    return Facts(
        at=at,
        jobs=jobs,
        hosts=hosts,
        used=await store_hosts.loads(session),
        drivers={run: (names.get(host, host), state) for run, host, state in await session.execute(drivers)},
        standbys=standbys,
        recoveries={row.job: row for row in await session.scalars(recoveries.newest_of_jobs())},
        diverged=dict((await session.execute(diverged)).all()),
        verifications=await verifications.newest(session),
        led=lease is not None and lease > at - _UNLED,
        disconnected=frozenset(host.name for host in hosts if _is_disconnected(host, at)),
        silent=frozenset(host.name for host in hosts if _is_silent(host, at)),
        lost=frozenset(host.name for host in hosts if host.state == HostState.LOST),
        tokens=await tokens.expiring(session),
        pool_available=frozenset(host.name for host in hosts if host.pool_available and host.state == HostState.READY),
    )


def _is_disconnected(row: HostRow, at: datetime) -> bool:
    return row.state in (HostState.READY, HostState.DRAINING) and row.lease_until < at - _UNLED


def _is_silent(row: HostRow, at: datetime) -> bool:
    alive = row.state in (HostState.READY, HostState.DRAINING) and not _is_disconnected(row, at)
    return alive and at - row.heartbeat_at > max(_SILENT, _MISSED * timedelta(seconds=row.heartbeat_interval_s))
