"""Reads what decisions look at. Most jobs are where they are to be: the database leaves those out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StartFrom, StopMode, StopRequest
from clonos.spec import JobSpec
from clonos.standby import offers
from clonos.standby.states import StandbyState
from clonos_api.reconcile import checkpoints
from clonos_api.reconcile.facts import Host, Job, Run, Waiting
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.standbys import Guarded
from clonos_api.reconcile.transitions import TRANSIENT
from clonos_api.store import agents, moves, standbys
from clonos_api.store.clock import now
from clonos_api.store.tables import AgentRow, GenerationRow, JobRow, RunRow, SavepointRow, StandbyRow

_S, _D = JobState, DesiredState
_FEW: Final = 500  # identifiers in one statement
# Heartbeats; as many as a lease has.
_MISSING: Final = 4
_DISTRUST: Final = timedelta(seconds=3)
# A standby that failed by itself is not followed by another one at once.
_REST: Final = timedelta(seconds=15)


class Settings(Protocol):
    """What the reconciler takes of `clonos_api.settings.ApiSettings`."""

    home: Path
    replica: str | None
    shared_checkpoints: str | None
    agent_lease_s: float

    @property
    def savepoint_location(self) -> str:
        """Where savepoints go that name no folder."""


@dataclass(frozen=True)
class Place:
    """Where checkpoints are."""

    home: Path
    shared: str | None
    savepoints: str

    @classmethod
    def of(cls, settings: Settings) -> Place:
        """As the settings say."""
        return cls(settings.home, settings.shared_checkpoints, settings.savepoint_location)


@dataclass
class Case:
    """A job that something may have to be done about: its rows, and what else decisions ask.

    Attributes:
        claimed: A driver of its newest run has owned the causal log.
        ghosts: `Job.ghosts`.
        savepoint: The newest one since its state is what it is.
        start: Savepoint that its next start is from, if it is there.
        failed_domain: Failure domain of the host that it was lost with.
        standbys: Those that could take over, with their runs.
        relief: Run that a planned move waits for.
        relief_claimed: A driver of it has owned the causal log.
        epochs: That drivers of its newest run finished, if a planned move asks for it.
    """

    job: JobRow
    run: RunRow | None
    claimed: bool = False
    ghosts: int = 0
    savepoint: SavepointRow | None = None
    start: SavepointRow | None = None
    failed_domain: str | None = None
    standbys: list[tuple[StandbyRow, RunRow]] = field(default_factory=list)
    relief: RunRow | None = None
    relief_claimed: bool = False
    epochs: int = 0

    def facts(self, place: Place) -> tuple[Job, Run | None]:
        """For `decide`."""
        row = self.job
        start = StartFrom.model_validate(row.start_from) if row.start_from else None
        local = checkpoints.is_local(self.checkpoint(place), place.shared)
        spec = JobSpec.model_validate(row.spec).spec
        standby = spec.standby
        return (
            Job(
                id=row.id,
                name=row.name,
                state=JobState(row.state),
                desired=DesiredState(row.desired_state),
                since=row.state_since,
                deadline=row.state_deadline,
                stop=StopRequest.model_validate(row.stop) if row.stop else None,
                restart=row.restart_nonce != row.observed_nonce,
                labels=row.labels,
                local=local,
                home=row.home,
                start_from=start is not None,
                lost_start=self._lost_start(start),
                failure=Failure.model_validate(row.failure) if row.failure else None,
                ghosts=self.ghosts,
                savepoint=self._saved(),
                failed_domain=self.failed_domain,
                version=row.version,
                standbys=tuple(waiting_facts(*one) for one in self.standbys),
                alone=standby.alone_after_s > 0,
                warm=not local and standby.mode != "none",
                pooled=start is None and offers.fits(self._ordered().spec),
                moving=moves.of(row),
                relief=run_facts(self.relief, claimed=self.relief_claimed) if self.relief is not None else None,
            ),
            run_facts(self.run, claimed=self.claimed, epochs=self.epochs) if self.run is not None else None,
        )

    def _ordered(self) -> JobSpec:
        """What the driver is to be started with: a recovery changes no version."""
        return JobSpec.model_validate(self.run.order["spec"] if self.run is not None else self.job.spec)

    def checkpoint(self, place: Place) -> str:
        """Where its checkpoint is."""
        given = (self.job.spec.get("spec") or {}).get("checkpoint")
        return checkpoints.location(given, self.job.name, home=place.home, shared=place.shared)

    def restore(self, place: Place) -> str | None:
        """The checkpoint that its next start is from, if not its own as it is."""
        if not self.job.start_from:
            return None
        return self.start.location if self.start is not None else self.checkpoint(place)

    def _lost_start(self, start: StartFrom | None) -> str | None:
        if start is None or start.savepoint is None or (self.start is not None and self.start.state == "COMPLETED"):
            return None
        how = "does not exist (any more)" if self.start is None else f"is {self.start.state}"
        return f"Savepoint {start.savepoint} {how}."

    def _saved(self) -> Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None:
        if self.savepoint is None:
            return None
        state = self.savepoint.state
        return "COMPLETED" if state == "DELETING" else cast(Literal["IN_PROGRESS", "COMPLETED", "FAILED"], state)


def run_facts(row: RunRow, *, claimed: bool, epochs: int = 0) -> Run:
    """A run, for `decide`."""
    return Run(
        id=row.id,
        agent=row.agent,
        goal=row.order["goal"],
        stop_mode=StopMode(row.order["stop_mode"]),
        state=row.state,
        driver_state=row.driver_state,
        claimed=claimed,
        attempts=row.attempts,
        exit_code=row.exit_code,
        failure=Failure.model_validate(row.failure) if row.failure else None,
        ended=row.ended_at is not None,
        created_at=row.created_at,
        started_at=row.started_at,
        version=row.order["version"],
        epochs=epochs,
        spent=row.in_row > row.order["restart"]["attempts"],
    )


def waiting_facts(row: StandbyRow, run: RunRow) -> Waiting:
    """A standby, for decisions."""
    over = run.ended_at is not None or run.order["goal"] != "RUN"
    drives = not over and run.state == "RUNNING" and run.driver_state == "RUNNING"
    return Waiting(run=run.id, agent=run.agent, state=row.state, version=run.order["version"], over=over, drives=drives)


@dataclass
class Scene:
    """All that is looked at in one round.

    Attributes:
        standbys: Job → those that could take over, with their runs.
        silence_in_s: When the next host will have been silent for too long, unless it is heard of.
    """

    now: datetime
    cases: list[Case]
    hosts: list[AgentRow]
    fleet: Fleet
    standbys: dict[str, list[tuple[StandbyRow, RunRow]]]
    silence_in_s: float | None = None


async def read(session: AsyncSession, *, listening: bool = True) -> Scene:
    """The jobs that something may have to be done about, longest in their state first, and all hosts.

    Args:
        session: A transaction.
        listening: Whether heartbeats that are missing would have been heard.
    """
    moment = await now(session)
    hosts = await agents.every(session)
    loads = await agents.loads(session)
    left = {one.id: _silence_in_s(one, moment) for one in hosts if one.state == HostState.READY}
    silent = _silent(hosts, left, moment) if listening else set()
    waiting: dict[str, list[tuple[StandbyRow, RunRow]]] = {}
    for standby, run in await standbys.waiting(session):
        waiting.setdefault(run.job, []).append((standby, run))
    helped = {job for job, some in waiting.items() if any(waiting_facts(*one).drives for one in some)}
    rows = (
        await session.execute(
            select(JobRow, RunRow)
            .outerjoin(RunRow, RunRow.id == JobRow.run)
            .outerjoin(AgentRow, AgentRow.id == RunRow.agent)
            .where(JobRow.deleted_at.is_(None), _needs_a_look(silent, helped))
            .order_by(JobRow.state_since, JobRow.id)
        )
    ).all()
    cases = [Case(job, run, standbys=waiting.get(job.id, [])) for job, run in rows]
    await _complete(session, cases, {host.id: host.failure_domain for host in hosts})
    await _planned(session, cases)
    owed = sum(_owed(case) for case in cases)
    fleet = Fleet([host_facts(one, loads.get(one.id, 0), silent=one.id in silent) for one in hosts], owed)
    soon = min((seconds for seconds in left.values() if seconds > 0), default=None)
    return Scene(moment, cases, hosts, fleet, waiting, soon)


def _silent(hosts: list[AgentRow], left: dict[str, float], moment: datetime) -> set[str]:
    """Hosts whose heartbeats are missing; where all are at once, it is rather we who did not hear them."""
    silent = {host for host, seconds in left.items() if seconds <= 0}
    if len(silent) < len(left):
        return silent
    return {one.id for one in hosts if one.id in silent and one.heartbeat_at <= moment - _DISTRUST}


def _silence_in_s(row: AgentRow, moment: datetime) -> float:
    return (row.heartbeat_at - moment).total_seconds() + _MISSING * row.beat_s


def host_facts(row: AgentRow, used: int, *, silent: bool = False) -> Host:
    """A host, for `decide`."""
    return Host(
        id=row.id,
        name=row.name,
        state=HostState(row.state),
        domain=row.failure_domain,
        slots=row.slots,
        used=used,
        silent=silent,
        spares=row.spares,
    )


def _needs_a_look(silent: Iterable[str], helped: Iterable[str]) -> ColumnElement[bool]:
    """What `transitions.settled` and the states' modules do not let be, in SQL: rather a job too many than too few."""
    job, run = JobRow, RunRow
    unwell = or_(
        run.id.is_(None),
        run.ended_at.is_not(None),
        run.state != "RUNNING",
        func.coalesce(run.driver_state, "") != "RUNNING",
        AgentRow.state != HostState.READY,
        run.agent.in_(sorted(silent)),
    )
    return or_(
        job.state.in_(TRANSIENT),
        job.moving.is_not(None),
        job.id.in_(sorted(helped)),
        and_(job.restart_nonce != job.observed_nonce, job.state != _S.CANCELED),
        and_(job.state == _S.RUNNING, or_(job.desired_state != _D.RUNNING, unwell)),
        and_(job.state.in_((_S.CREATED, _S.STOPPED)), job.desired_state != _D.STOPPED),
        and_(job.state == _S.FAILED, job.desired_state != _D.RUNNING),
        and_(job.state == _S.FINISHED, job.desired_state == _D.CANCELED),
    )


async def _complete(session: AsyncSession, cases: list[Case], domains: dict[str, str]) -> None:
    """Add what only some states ask for."""
    moving = {case.job.id: case for case in cases if case.job.state in (_S.STARTING, _S.RECOVERING, _S.RUNNING)}
    for some in _chunks(moving):
        newest = select(GenerationRow.job, func.max(GenerationRow.generation)).where(GenerationRow.job.in_(some))
        of_run = (
            select(GenerationRow.job, GenerationRow.run, func.max(GenerationRow.generation))
            .where(GenerationRow.job.in_(some))
            .group_by(GenerationRow.job, GenerationRow.run)
        )
        top = dict((await session.execute(newest.group_by(GenerationRow.job))).all())
        for job, run, generation in await session.execute(of_run):
            case = moving[job]
            if run == case.job.run:
                case.claimed = True
            elif generation == top[job] and case.run is not None:
                case.ghosts += 1  # a driver of an earlier run took the log from the newest one's
        older = select(RunRow.job, RunRow.id, RunRow.agent, RunRow.order).where(
            RunRow.job.in_(some), RunRow.ended_at.is_(None)
        )
        for job, run, agent, order in await session.execute(older.order_by(RunRow.id)):
            case = moving[job]
            if order.get("standby") or run == (case.job.moving or {}).get("standby"):
                continue  # it has never driven
            if case.run is not None and (case.run.state == "LOST" or run != case.run.id):
                case.ghosts += run != case.run.id
                case.failed_domain = domains.get(agent)
    stopping = {
        case.job.id: case
        for case in cases
        if case.job.state == _S.STOPPING and (case.job.stop or {}).get("mode") == StopMode.CHECKPOINT
    }
    for some in _chunks(stopping):
        query = select(SavepointRow).where(SavepointRow.job.in_(some)).order_by(SavepointRow.created_at)
        for row in await session.scalars(query):
            if row.created_at >= stopping[row.job].job.state_since:
                stopping[row.job].savepoint = row
    starts: dict[str, list[Case]] = {}
    for case in cases:
        if (case.job.start_from or {}).get("savepoint"):
            starts.setdefault(case.job.start_from["savepoint"], []).append(case)  # type: ignore[index]
    for some in _chunks(starts):
        for row in await session.scalars(select(SavepointRow).where(SavepointRow.id.in_(some))):
            for case in starts[row.id]:
                case.start = row


async def _planned(session: AsyncSession, cases: list[Case]) -> None:
    """What planned moves wait for."""
    moving = {case.job.moving["standby"]: case for case in cases if (case.job.moving or {}).get("standby")}  # type: ignore[index]
    for some in _chunks(moving):
        for run in await session.scalars(select(RunRow).where(RunRow.id.in_(some))):
            moving[run.id].relief = run
        counted = select(GenerationRow.run, func.sum(GenerationRow.epochs)).where(GenerationRow.run.in_(some))
        for of_run, epochs in await session.execute(counted.group_by(GenerationRow.run)):
            case = moving[of_run]
            case.relief_claimed = True
            case.epochs = int(epochs) if of_run == case.job.run else 0


async def guarded(session: AsyncSession, scene: Scene, place: Place) -> list[tuple[Guarded, JobRow, RunRow | None]]:
    """The jobs that are to have standbys, or have some, with their newest runs."""
    asked = JobRow.spec["spec"]["standby"]["replicas"].as_integer() > 0
    query = (
        select(JobRow, RunRow)
        .outerjoin(RunRow, RunRow.id == JobRow.run)
        .where(JobRow.deleted_at.is_(None), or_(asked, JobRow.id.in_(scene.standbys)))
        .order_by(JobRow.id)
    )
    rows = (await session.execute(query)).all()
    # Of themselves: what was dropped, to be somewhere else perhaps, has had no trouble.
    failed = (
        select(StandbyRow.job, func.count())
        .join(RunRow, RunRow.id == StandbyRow.id)
        .where(
            StandbyRow.state == StandbyState.FAILED,
            StandbyRow.since > scene.now - _REST,
            RunRow.order["goal"].as_string() != "GONE",
            RunRow.order["standby"].as_boolean(),
        )
    )
    resting = dict((await session.execute(failed.group_by(StandbyRow.job))).all()) if rows else {}
    return [(guarded_of(job, run, place, resting.get(job.id, 0)), job, run) for job, run in rows]


def guarded_of(job: JobRow, run: RunRow | None, place: Place, resting: int) -> Guarded:
    """A job, as far as its standbys depend on it; so many of them failed a moment ago."""
    local = checkpoints.is_local(Case(job, run).checkpoint(place), place.shared)
    moving = moves.of(job)
    return Guarded(
        id=job.id,
        state=JobState(job.state),
        desired=DesiredState(job.desired_state),
        wanted=max(JobSpec.model_validate(job.spec).spec.standby.wanted, moving.kept if moving is not None else 0),
        version=run.order["version"] if run is not None else job.version,
        spare=moving.previous if moving is not None else None,
        relief=moving.standby if moving is not None else None,
        agent=run.agent if run is not None else None,
        bound=job.home if local else None,
        resting=resting,
    )


def _owed(case: Case) -> bool:
    """Whether the job will want a slot that it has not got."""
    if case.job.desired_state != _D.RUNNING:
        return False
    without = case.run is None or case.run.order["goal"] == "GONE" or case.run.state == "LOST"
    return case.job.state == _S.STOPPING or (case.job.state in (_S.STARTING, _S.RECOVERING) and without)


async def unchanged(session: AsyncSession, cases: list[Case]) -> list[Case]:
    """Lock jobs and their runs, in the store's order; the cases that nobody has changed since they were read."""
    jobs = select(JobRow.id, JobRow.token).where(JobRow.id.in_([case.job.id for case in cases])).order_by(JobRow.id)
    tokens = dict((await session.execute(jobs.with_for_update(key_share=True))).all())
    ids = [case.run.id for case in cases if case.run is not None]
    if ids:
        runs = select(RunRow.id, RunRow.token).where(RunRow.id.in_(ids)).order_by(RunRow.id)
        tokens |= dict((await session.execute(runs.with_for_update(key_share=True))).all())
    return [
        case
        for case in cases
        if all(tokens.get(row.id) == row.token for row in (case.job, case.run) if row is not None)
    ]


def _chunks(names: Iterable[str]) -> list[list[str]]:
    every = list(names)
    return [every[at : at + _FEW] for at in range(0, len(every), _FEW)]
