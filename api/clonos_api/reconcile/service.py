"""The leader's loop: read, decide, write; on each event and each second, as long as this replica has the lease.

Nothing is kept from one round to the next, so that a new leader goes on where the old one was. Each decision is written
in one transaction that checks the leader's token, with those about some other jobs; if that fails, each has one of its
own, so that a job about which something goes wrong does not hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, StoreAway
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile import ending, tending
from clonos_api.reconcile.applying import apply
from clonos_api.reconcile.decide import decide
from clonos_api.reconcile.facts import Job
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.reading import Case, Place, Scene, Settings, guarded, read, unchanged
from clonos_api.reconcile.tidying import EVERY_S, tidy
from clonos_api.reconcile.writes import Close, Heed, Move, Order, PlaceStandby, Settle, Wait, Write
from clonos_api.reconcile.writes import Place as PlaceRun
from clonos_api.store import agents, lease
from clonos_api.store.database import Database
from clonos_api.store.notifier import Notifier
from clonos_api.store.retention import Limits, prune

ROUND_S: Final = 1.0
# Many events in a row are one round.
_PAUSE_S: Final = 0.05
_STEPS: Final = 4
# Jobs in one transaction; pushes about them wait as long.
_TOGETHER: Final = 20
_SIMPLE: Final = (Move, Wait, Heed, Settle, PlaceRun, Order, Close)
_PRUNE_S: Final = 60.0
# After the service was away, agents that back off come back within this time; until then none of them is lost.
_REJOIN_S: Final = 5.0

_log = structlog.get_logger("clonos.reconcile")

Decided = tuple[Job, list[Write]]


async def run(
    database: Database, settings: Settings, notifier: Notifier | None = None, *, limits: Limits = Limits()
) -> None:
    """Reconcile whenever this replica leads, until cancelled; then give the lease up.

    Args:
        database: The store.
        settings: The replica's.
        notifier: Tells of events; default the database's own.
        limits: How much history is kept.
    """
    holder = f"{settings.replica or socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    leader = lease.Leader(database, holder[:64])
    _log.info("standing-by", holder=holder)
    async with asyncio.TaskGroup() as group:
        group.create_task(leader.run(), name="clonos-lease")
        while True:
            token = leader.token
            if token is None:
                await _changed(leader)
                continue
            _log.info("leading", token=token)
            term = Term(database, settings, leader, token, notifier or database.notifier)
            pruning = group.create_task(_prune(term, limits), name="clonos-retention")
            tidying = group.create_task(_tidy(term), name="clonos-tidying")
            try:
                await term.lead()
            finally:
                pruning.cancel()
                tidying.cancel()
            _log.warning("not-leading", token=token)


class Term:
    """One time of leading.

    Args:
        database: The store.
        settings: The replica's.
        leader: Says whether we still lead.
        token: Of the lease.
        notifier: Tells of events.
    """

    def __init__(
        self, database: Database, settings: Settings, leader: lease.Leader, token: int, notifier: Notifier
    ) -> None:
        self.database = database
        self.token = token
        self._leader = leader
        self._notifier = notifier
        self._place = Place.of(settings)
        self._patience_s = settings.agent_lease_s + _REJOIN_S
        self._seen_since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._seen = self._seen_since
        self._together = _TOGETHER
        self._next_s = ROUND_S

    @property
    def leads(self) -> bool:
        """Whether what we write would be taken."""
        return self._leader.token == self.token

    async def lead(self) -> None:
        """Rounds, until we lead no more."""
        while self.leads:
            seq = self._notifier.seq
            again = False
            self._next_s = ROUND_S
            try:
                again = await self.round()
            except StoreAway as error:
                _log.warning("store-away", why=error.what)
                await asyncio.sleep(ROUND_S / 2)
            except Fenced:
                continue
            except Exception:
                _log.exception("round-failed")
                await asyncio.sleep(ROUND_S)
            await asyncio.sleep(_PAUSE_S)
            if not again:
                await self._notifier.wait_event(seq, self._next_s)

    async def round(self) -> bool:
        """Look once, and do what there is to do; whether to look again at once."""
        async with self.database.reading() as session:
            scene = await read(session, listening=self._listening)
            pending = await ending.read(session)
        self._look()
        if scene.silence_in_s is not None:
            self._next_s = min(ROUND_S, scene.silence_in_s)
        if await self._lose_hosts(scene):
            return True
        again = False
        for at in range(0, len(scene.cases), self._together):
            if not self.leads:
                return False
            try:
                again |= await self._settle_some(scene.cases[at : at + self._together], scene)
            except _Apart:
                return True
        self._together = _TOGETHER
        again |= await self._tend(scene)
        due = [one for one in pending if ending.is_due(one, scene.hosts, self._place)]
        for one in due:
            if not self.leads:
                return False
            with _Alone("operation", one.operation.id):
                async with self.database.transaction() as session:
                    await lease.check(session, self.token)
                    await ending.end(session, one, scene.hosts, self._place)
        if any(one.operation.deadline < scene.now for one in pending):
            async with self.database.transaction() as session:
                await lease.check(session, self.token)
                await ending.expire(session)
        return again

    async def _settle_some(self, cases: list[Case], scene: Scene) -> bool:
        """Bring some jobs on; whether somebody else changed one of them meanwhile.

        What touches nothing but jobs, their runs and their agents' work is one transaction for all: of its round trips
        most are the transaction's own.

        Raises:
            _Apart: That failed, for one of them: each is to be done alone.
        """
        again = False
        simple = []
        for case in cases:
            writes = decide(*case.facts(self._place), scene.fleet, scene.now)
            if writes and len(cases) > 1 and all(isinstance(one, _SIMPLE) for one in writes):
                simple.append(case)
            elif writes:
                again |= await self._settle(case, scene)
        if not simple:
            return again
        made: list[Decided] = []
        try:
            async with self.database.transaction() as session:
                await lease.check(session, self.token)
                still = await unchanged(session, simple)
                for case in still:
                    made += await self._bring_on(session, case, scene, only=_SIMPLE)
        except StoreAway:
            raise
        except Exception as error:
            # The scene counts slots as taken that are not: it is read anew.
            self._together = 1
            raise _Apart from error
        _log_moves(made)
        return again or len(still) < len(simple)

    async def _settle(self, case: Case, scene: Scene) -> bool:
        """Bring one job on; whether somebody else changed it meanwhile."""
        with _Alone("job", case.job.id) as fenced:
            async with self.database.transaction() as session:
                await lease.check(session, self.token)
                made = await self._bring_on(session, case, scene)
            _log_moves(made)
        return bool(fenced)

    async def _bring_on(
        self, session: AsyncSession, case: Case, scene: Scene, *, only: tuple[type[Write], ...] | None = None
    ) -> list[Decided]:
        """Write what is decided, and what then is: a host is lost, the job recovers, and is placed."""
        made: list[Decided] = []
        for _ in range(_STEPS):
            job, ran = case.facts(self._place)
            writes = decide(job, ran, scene.fleet, scene.now)
            if not writes or (only is not None and not all(isinstance(one, only) for one in writes)):
                break
            case = await apply(session, case, writes, self._place)
            _count(scene.fleet, job, writes)
            made.append((job, writes))
        return made

    async def _tend(self, scene: Scene) -> bool:
        """Place, move and end standbys; whether somebody else changed a job meanwhile."""
        async with self.database.reading() as session:
            jobs = await guarded(session, scene, self._place)
        again = False
        for one, job, run in jobs:
            changes = tending.decided(one, scene)
            yield_s = tending.yields(one, run, changes, scene)
            if not self.leads:
                return False
            if changes or yield_s is not None:
                with _Alone("job", job.id) as fenced:
                    async with self.database.transaction() as session:
                        await lease.check(session, self.token)
                        await tending.write(session, job, run, changes, yield_s, scene, self._place)
                again |= bool(fenced)
        return again

    async def _lose_hosts(self, scene: Scene) -> bool:
        """Mark hosts lost whose lease is over; but first let them come back, if it was the service that was away."""
        late = [host for host in scene.hosts if host.state in ("READY", "DRAINING") and host.lease_until < scene.now]
        if not late or not self._listening:
            return False
        async with self.database.transaction() as session:
            await lease.check(session, self.token)
            lost = await agents.lose_expired(session)
        for host in lost:
            _log.warning("host-lost", host=host.name)
        return bool(lost)

    @property
    def _listening(self) -> bool:
        """Whether the service was there for long enough to have heard who lives."""
        return self._seen - self._seen_since >= self._patience_s

    def _look(self) -> None:
        moment = time.clock_gettime(time.CLOCK_BOOTTIME)
        if moment - self._seen > 2 * ROUND_S:
            self._seen_since = moment  # the database was away, or this machine slept: so may the heartbeats have been
        self._seen = moment


def _count(fleet: Fleet, job: Job, writes: Sequence[Write]) -> None:
    """What was written changes what the next job finds."""
    for one in writes:
        if isinstance(one, PlaceRun):
            fleet.take(one.agent, pooled=job.pooled)
            fleet.owed = max(0, fleet.owed - 1)
        elif isinstance(one, PlaceStandby):
            fleet.take(one.agent)
        elif isinstance(one, Move):
            leaves = one.to is JobState.STOPPING and job.desired is DesiredState.RUNNING
            fleet.owed += leaves or (one.fresh and job.state is not JobState.STOPPING)


def _log_moves(made: list[Decided]) -> None:
    for job, writes in made:
        for one in writes:
            if isinstance(one, Move):
                _log.info("job-moved", job=job.name, source=str(job.state), target=str(one.to))


class _Apart(Exception):
    """Several jobs cannot be brought on together."""


class _Alone(contextlib.AbstractContextManager[list[bool]]):
    """What goes wrong with one job or operation is logged, and the others are looked at.

    Its value is true if somebody else was faster.
    """

    def __init__(self, kind: str, name: str) -> None:
        self._what = {kind: name}
        self._fenced: list[bool] = []

    def __enter__(self) -> list[bool]:
        return self._fenced

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Fenced):
            self._fenced.append(True)
            return True
        if error is None or isinstance(error, StoreAway) or not isinstance(error, Exception):
            return False
        _log.error("not-reconciled", **self._what, exc_info=error)
        return True


async def _changed(leader: lease.Leader) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ROUND_S / 2):
            await leader.changed()


async def _tidy(term: Term) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            async with term.database.transaction() as session:
                await lease.check(session, term.token)
                ended = await tidy(session)
        except (StoreAway, Fenced) as error:
            _log.warning("not-tidied", why=error.what)
        except Exception:
            _log.exception("not-tidied")
        else:
            if ended:
                _log.info("tidied", ended=ended)


async def _prune(term: Term, limits: Limits) -> None:
    while True:
        await asyncio.sleep(_PRUNE_S)
        try:
            await prune(term.database, limits, check=lambda session: lease.check(session, term.token))
        except (StoreAway, Fenced) as error:
            _log.warning("not-pruned", why=error.what)
        except Exception:
            _log.exception("not-pruned")
