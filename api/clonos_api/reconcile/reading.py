"""Reads what decisions look at. Most jobs are where they are to be: the database leaves those out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, Protocol, cast

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState, StartFrom, StopMode, StopRequest
from clonos_api.reconcile import checkpoints
from clonos_api.reconcile.facts import Host, Job, Run
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.transitions import TRANSIENT
from clonos_api.store import agents
from clonos_api.store.clock import now
from clonos_api.store.tables import AgentRow, GenerationRow, JobRow, RunRow, SavepointRow

_S, _D = JobState, DesiredState
_FEW: Final = 500  # identifiers in one statement


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
    """

    job: JobRow
    run: RunRow | None
    claimed: bool = False
    ghosts: int = 0
    savepoint: SavepointRow | None = None
    start: SavepointRow | None = None
    failed_domain: str | None = None

    def facts(self, place: Place) -> tuple[Job, Run | None]:
        """For `decide`."""
        row = self.job
        start = StartFrom.model_validate(row.start_from) if row.start_from else None
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
                local=checkpoints.is_local(self.checkpoint(place), place.shared),
                home=row.home,
                start_from=start is not None,
                lost_start=self._lost_start(start),
                failure=Failure.model_validate(row.failure) if row.failure else None,
                ghosts=self.ghosts,
                savepoint=self._saved(),
                failed_domain=self.failed_domain,
            ),
            run_facts(self.run, claimed=self.claimed) if self.run is not None else None,
        )

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


def run_facts(row: RunRow, *, claimed: bool) -> Run:
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
    )


@dataclass
class Scene:
    """All that is looked at in one round."""

    now: datetime
    cases: list[Case]
    hosts: list[AgentRow]
    fleet: Fleet


async def read(session: AsyncSession) -> Scene:
    """The jobs that something may have to be done about, longest in their state first, and all hosts."""
    moment = await now(session)
    hosts = await agents.every(session)
    loads = await agents.loads(session)
    rows = (
        await session.execute(
            select(JobRow, RunRow)
            .outerjoin(RunRow, RunRow.id == JobRow.run)
            .outerjoin(AgentRow, AgentRow.id == RunRow.agent)
            .where(JobRow.deleted_at.is_(None), _needs_a_look())
            .order_by(JobRow.state_since, JobRow.id)
        )
    ).all()
    cases = [Case(job, run) for job, run in rows]
    await _complete(session, cases, {host.id: host.failure_domain for host in hosts})
    owed = sum(_owed(case) for case in cases)
    return Scene(moment, cases, hosts, Fleet([host_facts(one, loads.get(one.id, 0)) for one in hosts], owed))


def host_facts(row: AgentRow, used: int) -> Host:
    """A host, for `decide`."""
    return Host(
        id=row.id, name=row.name, state=HostState(row.state), domain=row.failure_domain, slots=row.slots, used=used
    )


def _needs_a_look() -> ColumnElement[bool]:
    """What `transitions.settled` and the states' modules do not let be, in SQL: rather a job too many than too few."""
    job, run = JobRow, RunRow
    unwell = or_(
        run.id.is_(None),
        run.ended_at.is_not(None),
        run.state != "RUNNING",
        func.coalesce(run.driver_state, "") != "RUNNING",
        AgentRow.state != HostState.READY,
    )
    return or_(
        job.state.in_(TRANSIENT),
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
        older = select(RunRow.job, RunRow.id, RunRow.agent).where(RunRow.job.in_(some), RunRow.ended_at.is_(None))
        for job, run, agent in await session.execute(older.order_by(RunRow.id)):
            case = moving[job]
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
