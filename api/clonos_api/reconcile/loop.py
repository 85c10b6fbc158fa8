"""The reconciler's loop on the leader: load, decide, apply; on each event and every second.

Decisions depend on the database alone, so that a new leader continues where the previous one stopped. The
decisions about a job are written in one transaction that checks the leader's fencing token. Simple decisions about
several jobs share a transaction; if it fails, each job gets its own, so that one failing job does not block the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, DatabaseUnavailable
from clonos_api.reconcile import ending, quiet, standbys, tidying
from clonos_api.reconcile.applying import apply
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.decisions import NOTHING, Decision
from clonos_api.reconcile.facts import JobFacts, StandbyDemand
from clonos_api.reconcile.isolated import Isolated
from clonos_api.reconcile.load import JobCase, Snapshot, load, needs_slot, standby_facts, unchanged
from clonos_api.reconcile.placement import Fleet, Placement, place
from clonos_api.reconcile.standby_demands import load_standby_demands
from clonos_api.reconcile.transitions import Rule, rule_of
from clonos_api.settings import ApiSettings
from clonos_api.store import hosts, lease, tokens
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database, Origin
from clonos_api.store.retention import prune

ROUND_S: Final = 1.0
# Rounds begin at least this long after each other, so that a burst of events is one round.
_APART_S: Final = 0.05
_PAUSE_SHARE: Final = 0.5  # after a long round, which has many jobs, other requests get this share of its time
_MAX_STEPS: Final = 4
# Jobs in one transaction; reports about them wait for its duration.
_BATCH_SIZE: Final = 20
_PRUNE_EVERY_S: Final = 60.0
# After an outage of the service, agents reconnect within this time; until then no host counts as lost.
_REJOIN_S: Final = 5.0

_log = structlog.get_logger("clonos.reconcile")

Applied = tuple[JobFacts, Decision]


async def run(database: Database, settings: ApiSettings) -> None:
    """Run the reconciler while this replica is the leader, until cancelled; then release the leader's lease."""
    holder = f"{settings.replica}:{os.getpid()}:{secrets.token_hex(4)}"
    leader = lease.Leader(database, holder[:64])
    _log.info("waiting-for-lease", holder=holder)
    async with asyncio.TaskGroup() as group:
        group.create_task(leader.run(), name="clonos-lease")
        while True:
            token = leader.fencing_token
            if token is None:
                await _lease_changed(leader)
                continue
            _log.info("lease-acquired", token=token)
            term = Term(database, settings, leader, token)
            pruning = group.create_task(_repeat("retention", _PRUNE_EVERY_S, term.prune), name="clonos-retention")
            tidier = group.create_task(_repeat("tidying", tidying.EVERY_S, term.tidy), name="clonos-tidying")
            try:
                await term.lead()
            finally:
                pruning.cancel()
                tidier.cancel()
            _log.warning("lease-lost", token=token)


class Term:
    """One uninterrupted period in which this replica is the leader, with its fencing token."""

    def __init__(self, database: Database, settings: ApiSettings, leader: lease.Leader, token: int) -> None:
        self.database = database
        self.fencing_token = token
        self._leader = leader
        self._notifier = database.notifier
        self._locations = CheckpointLocations.of(settings)
        self._host_lease_s = settings.host_lease_s
        # A lease that ends later is from before the database's clock was set back.
        self._longest_lease_s = hosts.longest_lease_s(settings.host_lease_s) + lease.AHEAD_S
        self._rejoin_s = settings.host_lease_s + _REJOIN_S
        self._available_since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._last_answer = self._available_since  # when the database answered last
        self._batch_size = _BATCH_SIZE
        self._next_s = ROUND_S
        self._has_new_driver = False  # whether the current round has placed or promoted a driver
        self._expiries_logged: dict[str, datetime] = {}  # id of a token → when its expiry was logged
        self._ended_early = False  # whether the previous round ended early, as described in `round`
        # What a whole round began with that found nothing to do; None: the previous one found something.
        self._quiet: quiet.Signs | None = None
        self._next_whole_round = 0.0  # by the monotonic clock

    @property
    def leads(self) -> bool:
        """Whether this replica still holds the leader's lease that it acquired for this period."""
        return self._leader.fencing_token == self.fencing_token

    async def lead(self) -> None:
        """Run rounds of the reconciler until the lease is lost."""
        while self.leads:
            seq, began = self._notifier.seq, time.monotonic()
            again = False
            self._next_s = ROUND_S
            try:
                again = await self.round()
            except DatabaseUnavailable as error:
                _log.warning("database-unavailable", why=error.what)
                await asyncio.sleep(ROUND_S / 2)
            except ConcurrentUpdate:
                continue
            except Exception:
                _log.exception("round-failed")
                await asyncio.sleep(ROUND_S)
            took_s = time.monotonic() - began
            await asyncio.sleep(min(_APART_S, max(_APART_S - took_s, _PAUSE_SHARE * took_s)))
            if not again:
                await self._notifier.wait_event(seq, self._next_s)

    async def round(self) -> bool:
        """Run one round: load, decide, apply. Returns whether the next round has to follow immediately.

        A round that has placed or promoted a driver ends there: readers wait until the agent has fetched that work, and
        this process answers the agent. The next round continues with standbys and operations.

        A round without work is followed by rounds that only read whether that may have changed (`quiet`).
        """
        self._check_availability()
        self._has_new_driver = False
        valid = self._heartbeats_valid
        signs = await quiet.read(self.database)
        if self._is_quiet(signs):
            self._answered()
            return False
        self._quiet = None
        async with self.database.reading(origin=Origin.LEADER) as session:
            snapshot = await load(session, heartbeats_valid=valid)
            pending = await ending.read(session)
        self._answered()
        if valid and not self._heartbeats_valid:
            return True  # the database answered late: heartbeats were missing for that reason
        self._reserve_slots(snapshot)
        if snapshot.unresponsive_in_s is not None:
            self._next_s = min(ROUND_S, snapshot.unresponsive_in_s)
        if await self._lose_hosts(snapshot):
            return True
        again = False
        for at in range(0, len(snapshot.cases), self._batch_size):
            if not self.leads:
                return False
            try:
                again |= await self._reconcile_batch(snapshot.cases[at : at + self._batch_size], snapshot)
            except _BatchFailed:
                return True
        self._batch_size = _BATCH_SIZE
        self._ended_early = self._has_new_driver and not self._ended_early
        if self._ended_early:
            return True
        demands = await self._standby_demands(snapshot)
        again |= await self._reconcile_standbys(demands, snapshot.fleet)
        if not again and not snapshot.cases and not pending and quiet.is_satisfied(demands):
            self._quiet, self._next_whole_round = signs, time.monotonic() + quiet.WHOLE_ROUND_S
        for operation in pending:
            if not self.leads:
                return False
            with Isolated("operation", operation.operation.id):
                if not ending.is_due(operation, snapshot.hosts, self._locations):
                    continue
                async with self._transaction() as session:
                    await ending.end(session, operation, snapshot.hosts, self._locations)
        if any(entry.operation.deadline < snapshot.now for entry in pending):
            async with self._transaction() as session:
                await ending.expire(session)
        return again

    def _is_quiet(self, signs: quiet.Signs) -> bool:
        """Whether nothing has happened since a round without work. Sets when the next round has to begin."""
        if signs.unresponsive_in_s is not None and signs.unresponsive_in_s > 0:
            self._next_s = min(ROUND_S, signs.unresponsive_in_s)
        return (
            self._quiet is not None
            and self._quiet.versions == signs.versions
            and time.monotonic() < self._next_whole_round
            and all(seconds is None or seconds > 0 for seconds in (signs.unresponsive_in_s, signs.lost_in_s))
            and (signs.longest_lease_s or 0) <= self._longest_lease_s
        )

    def _reserve_slots(self, snapshot: Snapshot) -> None:
        """Reserves slots only for jobs that an open host accepts: others, such as those whose checkpoint is a path of a
        lost host, cannot use them.
        """
        waiting = []
        for case in snapshot.cases:
            with Isolated("job", case.job.id):
                if needs_slot(case) and isinstance(place(case.facts(self._locations)[0], snapshot.fleet), Placement):
                    waiting.append(case)
        snapshot.fleet.reserved = len(waiting)

    async def _reconcile_batch(self, cases: list[JobCase], snapshot: Snapshot) -> bool:
        """Reconciles several jobs; returns whether one of them was changed concurrently.

        Jobs with simple decisions share one transaction, because most round trips belong to the transaction itself. If
        it fails (`_BatchFailed`), each job needs its own.
        """
        again = False
        simple = []
        for case in cases:
            decision = NOTHING
            with Isolated("job", case.job.id):
                decision = decide(*case.facts(self._locations), snapshot.fleet, snapshot.now)
            if decision and len(cases) > 1 and decision.is_simple:
                simple.append(case)
            elif decision:
                again |= await self._reconcile_alone(case, snapshot)
        if not simple:
            return again
        applied: list[Applied] = []
        try:
            async with self._transaction() as session:
                current = await unchanged(session, simple)
                for case in current:
                    applied += await self._reconcile_job(session, case, snapshot, simple=True)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            # The snapshot counts slots as taken that are free: the next round loads it again.
            self._batch_size = 1
            raise _BatchFailed from error
        self._record(applied)
        return again or len(current) < len(simple)

    async def _reconcile_alone(self, case: JobCase, snapshot: Snapshot) -> bool:
        """Reconciles one job in its own transaction; returns whether it was changed concurrently."""
        with Isolated("job", case.job.id) as isolated:
            async with self._transaction() as session:
                applied = await self._reconcile_job(session, case, snapshot)
            self._record(applied)
        return isolated.concurrent

    async def _reconcile_job(
        self, session: AsyncSession, case: JobCase, snapshot: Snapshot, *, simple: bool = False
    ) -> list[Applied]:
        """Apply the decision about a job and those that follow: its host is lost, it recovers, it is placed."""
        applied: list[Applied] = []
        for _ in range(_MAX_STEPS):
            job, run = case.facts(self._locations)
            decision = decide(job, run, snapshot.fleet, snapshot.now)
            if not decision or (simple and not decision.is_simple):
                break
            case = await apply(session, case, decision, self._locations)
            _take_slots(snapshot.fleet, job, decision)
            applied.append((job, decision))
        return applied

    def _record(self, applied: list[Applied]) -> None:
        """Log committed decisions, and record whether a job has a new driver."""
        for job, decision in applied:
            if (rule := _rule(job, decision)) is not None:
                rule.log(job.name)
            self._has_new_driver |= decision.run.place is not None or decision.standbys.promote is not None

    async def _standby_demands(self, snapshot: Snapshot) -> list[tuple[StandbyDemand, JobCase]]:
        async with self.database.reading(origin=Origin.LEADER) as session:
            return await load_standby_demands(session, snapshot, self._locations)

    async def _reconcile_standbys(self, demands: Sequence[tuple[StandbyDemand, JobCase]], fleet: Fleet) -> bool:
        """Add, move and drop standbys, after all drivers are placed; return whether a job changed concurrently."""
        again = False
        for demand, case in demands:
            decision = NOTHING
            with Isolated("job", case.job.id):
                decision = standbys.decide(demand, [standby_facts(*rows) for rows in case.standbys], fleet)
            if not self.leads:
                return False
            if not decision:
                continue
            with Isolated("job", case.job.id) as isolated:
                async with self._transaction() as session:
                    await apply(session, case, decision, self._locations)
                standbys.log(case.job.name, decision.standbys)
            again |= isolated.concurrent
        return again

    async def _lose_hosts(self, snapshot: Snapshot) -> bool:
        """Mark hosts with an expired lease as lost; after an outage of the service, hosts can reconnect first."""
        alive = [host for host in snapshot.hosts if host.state in ("READY", "DRAINING")]
        latest = snapshot.now + timedelta(seconds=self._longest_lease_s)
        if any(host.lease_until > latest for host in alive):
            async with self._transaction() as session:
                await hosts.shorten_leases(session, lease_s=self._host_lease_s)
        if not self._heartbeats_valid or not any(host.lease_until < snapshot.now for host in alive):
            return False
        async with self._transaction() as session:
            lost = await hosts.lose_expired(session)
        for host in lost:
            _log.warning("host-lost", host=host.name)
        return bool(lost)

    async def tidy(self) -> None:
        """End rows that would otherwise wait forever (`clonos_api.reconcile.tidying`)."""
        async with self.database.reading(origin=Origin.LEADER) as session:
            if not await tidying.is_needed(session):
                return
        async with self._transaction() as session:
            ended = await tidying.tidy(session)
        if ended:
            _log.info("tidied", ended=ended)

    async def prune(self) -> None:
        """Delete old rows of the history (`clonos_api.store.retention`)."""
        await prune(self.database, check=lambda session: lease.check(session, self._leader.holder, self.fencing_token))
        await self._log_expiring_tokens()

    async def _log_expiring_tokens(self) -> None:
        """Log once a day which tokens in use expire first and soon."""
        async with self.database.reading() as session:
            moment, expiring = await now(session), await tokens.expiring(session)
        logged_before = moment - timedelta(days=1)
        for row in expiring.first:
            if self._expiries_logged.get(row.id, logged_before) <= logged_before:
                self._expiries_logged[row.id] = moment
                _log.warning("token-expires", token=row.id, name=row.name, role=row.role, at=str(row.expires_at))

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        """Provide a transaction that fails if the lease is lost."""
        async with self.database.transaction(origin=Origin.LEADER) as session:
            await lease.check(session, self._leader.holder, self.fencing_token)
            yield session
        self._answered()

    @property
    def _heartbeats_valid(self) -> bool:
        """Whether the service has been available for long enough to have received heartbeats of all live hosts."""
        return self._last_answer - self._available_since >= self._rejoin_s

    def _check_availability(self) -> float:
        """Notices a pause in which heartbeats could not arrive; returns the time in seconds.

        A long round is none: its transactions show that the database answers.
        """
        moment = time.clock_gettime(time.CLOCK_BOOTTIME)
        if moment - self._last_answer > 2 * ROUND_S:
            # The database was unavailable or this machine was suspended: heartbeats may be missing for that reason.
            self._available_since = moment
        return moment

    def _answered(self) -> None:
        self._last_answer = self._check_availability()


def _take_slots(fleet: Fleet, job: JobFacts, decision: Decision) -> None:
    """Update the free and the reserved slots for the decisions about the next jobs."""
    if decision.run.place is not None:
        fleet.take(decision.run.place.host, pool_driver=job.prefers_pool)
        fleet.reserved = max(0, fleet.reserved - 1)
    for added in decision.standbys.add:
        fleet.take(added.host, standby=True)
    if (rule := _rule(job, decision)) is not None:
        fleet.reserved += rule.reserves_slot(job.desired)


def _rule(job: JobFacts, decision: Decision) -> Rule | None:
    """Return the rule of the transition that the decision makes; None: the job stays in its state."""
    return rule_of(job.state, decision.job.state.to) if decision.job.state is not None else None


class _BatchFailed(Exception):
    """Several jobs cannot be reconciled in one transaction."""


async def _lease_changed(leader: lease.Leader) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ROUND_S / 2):
            await leader.changed()


async def _repeat(name: str, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
    """Repeats background work of the leader, also after a failure."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except (DatabaseUnavailable, ConcurrentUpdate) as error:
            _log.warning(f"{name}-failed", why=error.what)
        except Exception:
            _log.exception(f"{name}-failed")
