"""Rows of hosts. A heartbeat extends the host's lease, by the database's clock, and brings back a LOST host.

Events: ``host.registered``, ``host.back``, ``host.lost``, ``host.drained``, ``host.undrained``, ``host.removed``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, StateConflict
from clonos.resources.event_types import EventType
from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import HostRegister, HostState
from clonos_api.store import audit, events
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.commit_hooks import before_commit
from clonos_api.store.db.database import Database, Origin
from clonos_api.store.db.notifier import notify
from clonos_api.store.db.rows import insert_new, new_id, require_row
from clonos_api.store.db.swap import swap, versions
from clonos_api.store.lease import AHEAD_S
from clonos_api.store.tables import HostRow, RunRow, table_of

_ALIVE = (HostState.READY, HostState.DRAINING)
# A host that announces longer intervals has a longer lease, up to this factor.
_LONGEST_LEASE: Final = 3
_BUMPED: Final = "clonos.bumped"
_BUMP_FIRST: Final = 5
# Statements of each round and each push: building one takes as long as its execution.
_EVERY: Final = select(HostRow).where(HostRow.state != HostState.REMOVED).order_by(HostRow.name)
_HOSTS, _RUNS = table_of(HostRow), table_of(RunRow)
_OPEN_RUNS: Final = select(versions(_RUNS)).where(_RUNS.c.host == bindparam("of_host"), _RUNS.c.ended_at.is_(None))
_BEAT: Final = (
    update(_HOSTS)
    .where(_HOSTS.c.id == bindparam("of_host"), _HOSTS.c.instance == bindparam("of_instance"))
    .where(or_(*(_HOSTS.c.state == state for state in _ALIVE)))
    .values(
        heartbeat_at=clock(),
        lease_until=clock(bindparam("lease_s")),
        heartbeat_interval_s=bindparam("interval_s"),
        pool_available=bindparam("available"),
    )
    .returning(_HOSTS.c.revision, _HOSTS.c.state, _OPEN_RUNS.scalar_subquery())
)
_LOADS: Final = select(RunRow.host, func.count()).where(RunRow.ended_at.is_(None)).group_by(RunRow.host)
_NAMED: Final = (
    select(HostRow)
    .where((HostRow.id == bindparam("host")) | (HostRow.name == bindparam("host")))
    .execution_options(populate_existing=True)
)


def longest_lease_s(lease_s: float) -> float:
    """Return the longest lease in seconds of a host whose heartbeats are late; `lease_s` is the other hosts' lease."""
    return _LONGEST_LEASE * lease_s


def extended_lease_s(lease_s: float, *, planned_s: float, announced_s: float) -> float:
    """Return the lease of a host in seconds, which grows with the interval that the host announces.

    Args:
        lease_s: The lease of a host with punctual heartbeats.
        planned_s: The interval between two heartbeats that the control plane requested.
        announced_s: The interval that the host announces.
    """
    return min(lease_s * max(1.0, announced_s / planned_s), longest_lease_s(lease_s))


@dataclass(frozen=True)
class Liveness:
    """The values of a heartbeat that the row of its host stores."""

    lease_s: float  # lifetime of the host's lease after this heartbeat, in seconds
    heartbeat_interval_s: float = 1.0  # announced time until the next heartbeat, in seconds
    pool_available: int = 0  # number of warm pool drivers without a job
    capacity: HostCapacity | None = None  # a new measurement of the host

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the host's row to set, with their values."""
        return {
            "heartbeat_at": clock(),
            "heartbeat_interval_s": self.heartbeat_interval_s,
            "pool_available": self.pool_available,
            "lease_until": clock(self.lease_s),
            **({} if self.capacity is None else {"capacity": self.capacity}),
        }


async def register(session: AsyncSession, body: HostRegister, *, lease_s: float) -> HostRow:
    """Register a host, or repeat a registration whose response was lost. The host's lease begins.

    The newest process with a name is the host's agent; an older one gets `ConcurrentUpdate` and exits.
    """
    columns = {
        "instance": body.instance,
        "failure_domain": body.failure_domain or body.name,
        "slots": body.slots,
        "versions": body.versions,
        "labels": body.labels,
        "limits": body.limits,
        **Liveness(lease_s).columns,
    }
    query = select(HostRow).where(HostRow.name == body.name).with_for_update()
    existing = (await session.scalars(query)).one_or_none()
    silent_s: float | None = None
    if existing is None:
        row = await insert_new(
            session,
            HostRow,
            id=new_id(),
            name=body.name,
            state=HostState.READY,
            registered_at=clock(),
            **columns,
        )
        if row is None:
            raise ConcurrentUpdate(f"Another agent registered as {body.name} at the same time.")
    else:
        removed = existing.state == HostState.REMOVED
        drained = existing.drained and not removed
        same = existing.instance == body.instance and not removed
        if not same:
            columns |= {"registered_at": clock(), "capacity": None}
            moment = await now(session)
            if existing.state in _ALIVE and existing.lease_until > moment:
                silent_s = round((moment - existing.heartbeat_at).total_seconds(), 1)
        row = await swap(session, existing, state=_present(drained), drained=drained, **columns)
        if same:
            return row
    # Without the instance: every viewer reads events, and who knows it can speak as the agent's process.
    data: dict[str, Any] = {"name": row.name}
    if silent_s is not None:  # a restart of the agent, or another process with its token
        data["replaced_after_s"] = silent_s
    events.append(session, "host.registered", host=row.id, data=data)
    await audit.asked(session, "host.register", row.id, **data)
    return row


async def heartbeat(session: AsyncSession, host: str, instance: str, liveness: Liveness) -> HostRow:
    """Apply a heartbeat of the agent process `instance`: extend the lease of its host.

    Call `runs.report` first, because rows of runs are locked before rows of hosts.
    """
    statement = (
        update(HostRow)
        .where(HostRow.id == host, HostRow.instance == instance, HostRow.state != HostState.REMOVED)
        .values(**liveness.columns)
        .returning(HostRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    row = (await session.scalars(statement)).one_or_none()
    if row is None:
        row = await check(session, host, instance)
    if row.state == HostState.LOST:
        row = await swap(session, row, state=_present(row.drained))
        events.append(session, "host.back", host=row.id, data={"name": row.name})
    return row


class Beaten(NamedTuple):
    """What the row of a host has after a heartbeat."""

    revision: int  # work revision
    state: str  # a `HostState`
    runs: int | None  # another value after each change of a run that has not ended


async def beat(database: Database, host: str, instance: str, liveness: Liveness) -> Beaten | None:
    """Extend the lease of a READY or DRAINING host with one statement; a measurement of the host is not stored.

    None if the host has another state or another agent: then `heartbeat` has to handle the request.
    """
    values = {
        "of_host": host,
        "of_instance": instance,
        "lease_s": liveness.lease_s,
        "interval_s": liveness.heartbeat_interval_s,
        "available": liveness.pool_available,
    }
    rows = await database.execute(_BEAT, values, origin=Origin.AGENT)
    return Beaten(*rows[0]) if rows else None


async def check(session: AsyncSession, host: str, instance: str) -> HostRow:
    """Return the row of a host that is not removed; `ConcurrentUpdate` if `instance` is not its current agent
    process.
    """
    row = await session.get(HostRow, host, populate_existing=True)
    row = require_row(row if row is None or row.state != HostState.REMOVED else None, f"host {host}")
    if row.instance != instance:
        raise ConcurrentUpdate(
            f"Another process is now the agent {row.name}.", hint="stop this process, or give it another name."
        )
    return row


async def note_rival(session: AsyncSession, host: str) -> None:
    """Note that a process which another one has replaced as the agent of a host still runs, and sent a request."""
    statement = update(HostRow).where(HostRow.id == host).values(rival_at=clock())
    await session.execute(statement.execution_options(synchronize_session=False))


async def get(session: AsyncSession, host: str) -> HostRow:
    """Return the row of a host, by its id or name, also of a removed host."""
    rows = (await session.scalars(_NAMED, {"host": host})).all()
    return require_row(min(rows, key=lambda row: row.id != host, default=None), f"host {host!r}")


async def every(session: AsyncSession) -> list[HostRow]:
    """All hosts that are not removed, by name."""
    return list(await session.scalars(_EVERY))


async def loads(session: AsyncSession) -> dict[str, int]:
    """Return the number of runs that have not ended, by host id."""
    return dict((await session.execute(_LOADS)).all())


async def shorten_leases(session: AsyncSession, *, lease_s: float) -> None:
    """Shorten leases that end later than they can, because the database's clock was set back.

    A host that sends no heartbeat is then lost after `lease_s` seconds.
    """
    statement = (
        update(HostRow)
        .where(HostRow.state.in_(_ALIVE), HostRow.lease_until > clock(longest_lease_s(lease_s) + AHEAD_S))
        .values(lease_until=clock(lease_s))
        .execution_options(synchronize_session=False)
    )
    await session.execute(statement)


async def lose_expired(session: AsyncSession) -> list[HostRow]:
    """Mark the hosts whose lease has expired as LOST, and return their rows."""
    statement = (
        update(HostRow)
        .where(HostRow.state.in_(_ALIVE), HostRow.lease_until < clock())
        .values(state=HostState.LOST, row_version=HostRow.row_version + 1)
        .returning(HostRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    rows = list(await session.scalars(statement))
    for row in rows:
        data = {"name": row.name, "heartbeat_at": row.heartbeat_at.isoformat()}
        events.append(session, "host.lost", host=row.id, data=data)
    return rows


async def drain(session: AsyncSession, host: HostRow, drained: bool) -> HostRow:
    """Drain a host, so that no run is placed on it (`drained`), or end that."""
    state = _present(drained) if host.state in _ALIVE else host.state
    row = await swap(session, host, drained=drained, state=state)
    kind: EventType = "host.drained" if drained else "host.undrained"
    events.append(session, kind, host=row.id, data={"name": row.name})
    await audit.asked(session, kind, row.id, name=row.name)
    return row


async def remove(session: AsyncSession, host: HostRow) -> HostRow:
    """Remove a host, whose lost runs count as ended from then on; `StateConflict` if it has other runs."""
    runs = (await session.scalars(select(RunRow).where(RunRow.host == host.id, RunRow.ended_at.is_(None)))).all()
    if any(run.state != "LOST" for run in runs):
        raise StateConflict(f"Host {host.name} has {len(runs)} runs.", hint="drain the host first.")
    moment = await now(session)
    for run in sorted(runs, key=lambda run: run.id):
        await swap(session, run, ended_at=moment)
    row = await swap(session, host, state=HostState.REMOVED, drained=False)
    events.append(session, "host.removed", host=row.id, data={"name": row.name})
    await audit.asked(session, "host.remove", row.id, name=row.name)
    return row


def bump(session: AsyncSession, host: str) -> None:
    """Increase a host's work revision when this transaction commits, so that the agent fetches its work.

    The revision is the time in milliseconds, or the next number. Agents apply work with another revision than theirs,
    and a failover to a database that lacks the newest transactions gives none out again: it takes longer than the
    clocks of replicas differ.

    All hosts are changed in one statement at the end. An earlier change could deadlock with a heartbeat that holds the
    row of a run.
    """
    session.info.setdefault(_BUMPED, set()).add(host)
    before_commit(session, _BUMP_FIRST, _bump)


async def _bump(session: AsyncSession) -> None:
    moment_ms = time.time_ns() // 1_000_000
    statement = (
        update(HostRow)
        .where(HostRow.id.in_(sorted(session.info.pop(_BUMPED))))
        .values(revision=case((HostRow.revision >= moment_ms, HostRow.revision + 1), else_=moment_ms))
        .returning(HostRow.id, HostRow.revision)
        .execution_options(synchronize_session=False)
    )
    for host, revision in await session.execute(statement):
        notify(session, revision, host)


def _present(drained: bool) -> HostState:
    return HostState.DRAINING if drained else HostState.READY
