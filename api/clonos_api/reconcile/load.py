"""Loads the rows that the reconciler needs. SQL filters out jobs that are already in their desired state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, cast

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState, StartFrom, StopMode
from clonos.standby.launch_request import pool_eligible
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.reconcile.facts import ClusterFacts, HostFacts, JobFacts, RunFacts, StandbyFacts
from clonos_api.reconcile.isolated import Isolated
from clonos_api.reconcile.placement import HOST_LABEL, Fleet
from clonos_api.reconcile.transitions import TRANSIENT
from clonos_api.store import clusters, hosts, jobs, standbys
from clonos_api.store.columns import UnreadableValue
from clonos_api.store.db.clock import now
from clonos_api.store.tables import (
    ClusterRow,
    GenerationRow,
    HostRow,
    JobRow,
    JobVersionRow,
    RunRow,
    SavepointRow,
    StandbyRow,
)

_S, _D = JobState, DesiredState
_MAX_IDS: Final = 500  # in one statement
# Missing heartbeats of an unresponsive host; a lease has as many.
MISSING: Final = 4
# All hosts are unresponsive at the same time: the fault is probably here, so each needs to miss more than this.
_ALL_UNRESPONSIVE: Final = timedelta(seconds=3)


@dataclass
class JobCase:
    """The row of a job, with the related rows that the reconciler's decisions need."""

    job: JobRow
    run: RunRow | None  # the job's newest run since its last start
    claimed: bool = False  # whether a driver of that run has claimed the causal log
    unreachable_runs: int = 0  # `JobFacts.unreachable_runs`
    savepoint: SavepointRow | None = None  # the newest savepoint since the job entered its state
    # savepoint that the next start restores; None if it restores none, or if the savepoint does not exist
    start: SavepointRow | None = None
    failed_domain: str | None = None  # failure domain of the lost host that ran the job last
    # Standbys that could take over, with their runs.
    standbys: list[tuple[StandbyRow, RunRow]] = field(default_factory=list)
    successor: RunRow | None = None  # run that takes over in a planned move
    successor_claimed: bool = False  # whether a driver of `successor` has claimed the causal log
    next_stored: bool = True  # `JobFacts.next_stored`
    previous_stored: bool = True  # `JobFacts.previous_stored`
    epochs: int = 0  # number of epochs that drivers of `run` finished; loaded only for a planned move
    claimed_at: datetime | None = None  # time of the newest claim of `run`; loaded only for a planned move
    awaited: frozenset[str] = frozenset()  # queries of `run` that have not returned; loaded only for a planned move
    planned_by: tuple[int | None, ...] = ()  # `RunFacts.planned_by` of `run`
    unable: frozenset[int] = frozenset()  # `RunFacts.unable` of `run`
    clusters: Mapping[str, ClusterRow] = field(default_factory=dict)  # all Spark clusters, by name

    def facts(self, locations: CheckpointLocations) -> tuple[JobFacts, RunFacts | None]:
        """Return the facts about the job and its run, as `decide.decide` needs them."""
        row = self.job
        start = row.start_from
        local = self.is_local(locations)
        standby = row.spec.spec.standby
        job = JobFacts(
            id=row.id,
            name=row.name,
            state=JobState(row.state),
            desired=DesiredState(row.desired_state),
            since=row.state_since,
            deadline=row.state_deadline,
            stop=row.stop,
            restart=row.restart_nonce != row.observed_nonce,
            labels=row.labels,
            local=local,
            home=row.home,
            start_from=start is not None,
            resolutions=bool(row.resolutions),
            adopt=row.adopt,
            start_error=self._start_error(start),
            failure=row.failure,
            unreachable_runs=self.unreachable_runs,
            savepoint=self._savepoint_state(),
            failed_domain=self.failed_domain,
            version=row.version,
            standbys=tuple(standby_facts(*rows) for rows in self.standbys),
            self_promotion=standby.self_promote_after_s > 0,
            relocatable=not local and standby.mode != "none",
            prefers_pool=start is None and self._pool_eligible(),
            planned_move=row.moving,
            next_stored=self.next_stored,
            previous_stored=self.previous_stored,
            successor=run_facts(self.successor, claimed=self.successor_claimed) if self.successor is not None else None,
            cluster=self.cluster(),
            newest_cluster=self.cluster(newest=True),
        )
        if self.run is None:
            return job, None
        run = run_facts(self.run, claimed=self.claimed, epochs=self.epochs, awaited=self.awaited)
        return job, replace(run, claimed_at=self.claimed_at, planned_by=self.planned_by, unable=self.unable)

    def _pool_eligible(self) -> bool:
        failures = self.run.consecutive_failures if self.run is not None else 0
        return pool_eligible(self._driver_spec().spec, first_start=self.run is None, failures=failures)

    def cluster(self, *, newest: bool = False) -> ClusterFacts | None:
        """Return the facts about the Spark cluster of the next driver, or of the newest version; None: it has none."""
        name = (self.job.spec if newest else self._driver_spec()).spec.cluster
        row = self.clusters.get(name)
        if row is None:
            return ClusterFacts(name=name, exists=False) if name else None
        return ClusterFacts(name=name, hosts=frozenset(clusters.description(row).spec.hosts))

    def is_local(self, locations: CheckpointLocations) -> bool:
        """Return whether only one host can access the checkpoint of the job's run, or of its next start."""
        cluster = self.clusters.get(self._driver_spec().spec.cluster)
        shared = clusters.description(cluster).spec.shared_locations if cluster is not None else ()
        return locations.is_local(self.checkpoint_of_run(locations), shared)

    def _driver_spec(self) -> JobSpec:
        """Return the specification of the next driver: a recovery keeps the version."""
        return self.run.spec.spec if self.run is not None else self.job.spec

    def named_host(self) -> str | None:
        """Return the host that the label names, in the version of the run or of the next start; None: none."""
        return self._driver_spec().metadata.labels.get(HOST_LABEL)

    def checkpoint(self, locations: CheckpointLocations) -> str:
        """Return the location of the job's checkpoint."""
        return locations.of_job(self.job.name, self.job.spec.spec.checkpoint)

    def checkpoint_of_run(self, locations: CheckpointLocations) -> str:
        """Return the location of the checkpoint in which the job's run works, or worked last.

        The newest specification may name another one, in which the next run starts.
        """
        return locations.of_job(self.job.name, self._driver_spec().spec.checkpoint)

    def restore(self, locations: CheckpointLocations) -> str | None:
        """Return the checkpoint or savepoint that the job's next start restores; None: the job continues with its
        own checkpoint.
        """
        if not self.job.start_from:
            return None
        return self.start.location if self.start is not None else self.checkpoint(locations)

    def _start_error(self, start: StartFrom | None) -> str | None:
        if start is None or start.savepoint is None or (self.start is not None and self.start.state == "COMPLETED"):
            return None
        why = "does not exist" if self.start is None else f"is {self.start.state}"
        return f"Savepoint {start.savepoint} {why}."

    def _savepoint_state(self) -> Literal["IN_PROGRESS", "COMPLETED", "FAILED"] | None:
        if self.savepoint is None:
            return None
        state = self.savepoint.state
        return "COMPLETED" if state == "DELETING" else cast(Literal["IN_PROGRESS", "COMPLETED", "FAILED"], state)


def run_facts(row: RunRow, *, claimed: bool, epochs: int = 0, awaited: frozenset[str] = frozenset()) -> RunFacts:
    """Convert the row of a run to `RunFacts`; the other arguments are those facts, which the row does not have."""
    spec = row.spec
    return RunFacts(
        id=row.id,
        host=row.host,
        desired=spec.desired,
        stop_mode=spec.stop_mode,
        state=row.state,
        driver_state=row.driver_state,
        claimed=claimed,
        attempts=row.attempts,
        exit_code=row.exit_code,
        failure=row.failure,
        ended=row.ended_at is not None,
        created_at=row.created_at,
        started_at=row.started_at,
        version=spec.version,
        finish_for=spec.finish_for,
        tried=frozenset(spec.finished),
        accepts_unpublished=spec.accept_unpublished,
        continued=spec.next is not None,
        epochs=epochs,
        awaited=awaited,
        attempts_exhausted=row.consecutive_failures > spec.restart.attempts,
    )


def standby_facts(row: StandbyRow, run: RunRow) -> StandbyFacts:
    """Convert the row of a standby and of its run to `StandbyFacts`."""
    ended = run.ended_at is not None or run.spec.desired != "RUNNING"
    return StandbyFacts(
        run=run.id,
        host=run.host,
        state=row.state,
        version=run.spec.version,
        ended=ended,
        self_promoted=not ended and run.state == "RUNNING" and run.driver_state == "RUNNING",
    )


def host_facts(row: HostRow, used: int, *, unresponsive: bool = False) -> HostFacts:
    """Convert the row of a host to `HostFacts`; `used` and `unresponsive` are facts that the row does not have."""
    return HostFacts(
        id=row.id,
        name=row.name,
        state=HostState(row.state),
        domain=row.failure_domain,
        slots=row.slots,
        used=used,
        unresponsive=unresponsive,
        pool_available=row.pool_available,
        capacity=row.capacity if not isinstance(row.capacity, UnreadableValue) else None,  # placements ignore it
    )


@dataclass
class Snapshot:
    """The rows and facts that one round of the reconciler works on."""

    now: datetime
    cases: list[JobCase]  # jobs that may need a decision, longest in their state first
    hosts: list[HostRow]
    fleet: Fleet
    standbys: dict[str, list[tuple[StandbyRow, RunRow]]]  # standbys that could take over, with their runs, by job id
    clusters: dict[str, ClusterRow]  # all Spark clusters, by name
    unresponsive_in_s: float | None = None  # time until the next host becomes unresponsive unless it sends a heartbeat


async def load(session: AsyncSession, *, heartbeats_valid: bool = True) -> Snapshot:
    """Load the jobs that may need a decision, and all hosts, for one round of the reconciler.

    `heartbeats_valid`: whether missing heartbeats mean an unresponsive host, because this replica has run for long
    enough.
    """
    moment = await now(session)
    host_rows = await hosts.every(session)
    used = await hosts.loads(session)
    remaining_s = {row.id: _unresponsive_in_s(row, moment) for row in host_rows if row.state == HostState.READY}
    unresponsive = _unresponsive(host_rows, remaining_s, moment) if heartbeats_valid else set()
    of_jobs: dict[str, list[tuple[StandbyRow, RunRow]]] = {}
    for standby, run in await standbys.waiting(session):
        of_jobs.setdefault(run.job, []).append((standby, run))
    self_promoted: set[str] = set()
    for id, of_job in of_jobs.items():
        with Isolated("job", id):
            self_promoted |= {id} if any(standby_facts(*row).self_promoted for row in of_job) else set()
    chosen = {"unresponsive": sorted(unresponsive), "self_promoted": sorted(self_promoted)}
    rows = (await session.execute(_CASES, chosen)).all()
    by_name = await clusters.every(session)
    cases = _readable(JobCase(job, run, standbys=of_jobs.get(job.id, []), clusters=by_name) for job, run in rows)
    await _load_runs(session, cases, {row.id: row.failure_domain for row in host_rows})
    await _load_savepoints(session, cases)
    await _load_moves(session, cases)
    for case in list(cases):
        with Isolated("job", case.job.id) as isolated:
            await _load_next(session, case)
            await _load_planners(session, case)
        if isolated.failed:
            cases.remove(case)
    facts = [host_facts(row, used.get(row.id, 0), unresponsive=row.id in unresponsive) for row in host_rows]
    next_s = min((seconds for seconds in remaining_s.values() if seconds > 0), default=None)
    return Snapshot(moment, cases, host_rows, Fleet(facts), of_jobs, by_name, next_s)


def _unresponsive(hosts: list[HostRow], remaining_s: dict[str, float], moment: datetime) -> set[str]:
    """Return hosts with missing heartbeats. If all hosts miss some, the fault is probably on this side."""
    unresponsive = {host for host, seconds in remaining_s.items() if seconds <= 0}
    if len(unresponsive) < len(remaining_s):
        return unresponsive
    return {row.id for row in hosts if row.id in unresponsive and row.heartbeat_at <= moment - _ALL_UNRESPONSIVE}


def _unresponsive_in_s(row: HostRow, moment: datetime) -> float:
    return (row.heartbeat_at - moment).total_seconds() + MISSING * row.heartbeat_interval_s


def _may_need_decision() -> ColumnElement[bool]:
    """Select, in SQL, the jobs that are not `transitions.settled` or not well; it may select a settled job as well."""
    job, run = JobRow, RunRow
    driver_not_well = or_(
        run.id.is_(None),
        run.ended_at.is_not(None),
        run.state != "RUNNING",
        func.coalesce(run.driver_state, "") != "RUNNING",
        HostRow.state != HostState.READY,
        run.host.in_(bindparam("unresponsive", expanding=True)),
    )
    return or_(
        job.state.in_(TRANSIENT),
        job.moving.is_not(None),
        job.id.in_(bindparam("self_promoted", expanding=True)),
        and_(job.restart_nonce != job.observed_nonce, job.state != _S.CANCELED),
        and_(job.state == _S.RUNNING, or_(job.desired_state != _D.RUNNING, driver_not_well)),
        and_(job.state.in_((_S.CREATED, _S.STOPPED)), job.desired_state != _D.STOPPED),
        and_(job.state == _S.FAILED, job.desired_state != _D.RUNNING),
        and_(job.state == _S.FINISHED, job.desired_state == _D.CANCELED),
    )


_CASES: Final = (
    select(JobRow, RunRow)
    .outerjoin(RunRow, RunRow.id == JobRow.run)
    .outerjoin(HostRow, HostRow.id == RunRow.host)
    .where(JobRow.deleted_at.is_(None), _may_need_decision())
    .order_by(JobRow.state_since, JobRow.id)
)


def _readable(cases: Iterable[JobCase]) -> list[JobCase]:
    """Return the cases whose rows can be read; a job with another row waits until it is repaired, and the others do
    not.
    """
    readable = []
    for case in cases:
        with Isolated("job", case.job.id):
            for stored in (case.job.moving, case.job.stop, case.job.start_from):
                if isinstance(stored, UnreadableValue):
                    raise ValueError(stored.reason)
            if case.run is not None:
                run_facts(case.run, claimed=False)
            readable.append(case)
    return readable


async def _load_runs(session: AsyncSession, cases: list[JobCase], domains: dict[str, str]) -> None:
    """Add the claims and the older runs of jobs that need a driver."""
    active = {case.job.id: case for case in cases if case.job.state in (_S.STARTING, _S.RECOVERING, _S.RUNNING)}
    for ids in _chunks(active):
        newest = select(GenerationRow.job, func.max(GenerationRow.generation)).where(GenerationRow.job.in_(ids))
        of_run = (
            select(GenerationRow.job, GenerationRow.run, func.max(GenerationRow.generation))
            .where(GenerationRow.job.in_(ids))
            .group_by(GenerationRow.job, GenerationRow.run)
        )
        newest_of = dict((await session.execute(newest.group_by(GenerationRow.job))).all())
        for job, run, generation in await session.execute(of_run):
            case = active[job]
            if run == case.job.run:
                case.claimed = True
            elif generation == newest_of[job] and case.run is not None:
                case.unreachable_runs += 1  # a driver of an earlier run claimed the log after the newest run
        # A standby has never been a driver.
        open_runs = select(RunRow.job, RunRow.id, RunRow.host).where(
            RunRow.job.in_(ids), RunRow.ended_at.is_(None), ~func.coalesce(RunRow.spec["standby"].as_boolean(), False)
        )
        for job, run, host in await session.execute(open_runs.order_by(RunRow.id)):
            case = active[job]
            if case.job.moving is not None and run == case.job.moving.standby:
                continue
            if case.run is not None and (case.run.state == "LOST" or run != case.run.id):
                case.unreachable_runs += run != case.run.id
                case.failed_domain = domains.get(host)


async def _load_savepoints(session: AsyncSession, cases: list[JobCase]) -> None:
    """Add the savepoints that stops wait for, and those that starts are from."""
    stopping = {
        case.job.id: case
        for case in cases
        if case.job.state == _S.STOPPING and case.job.stop is not None and case.job.stop.mode == StopMode.CHECKPOINT
    }
    for ids in _chunks(stopping):
        query = select(SavepointRow).where(SavepointRow.job.in_(ids)).order_by(SavepointRow.created_at)
        for row in await session.scalars(query):
            if row.created_at >= stopping[row.job].job.state_since:
                stopping[row.job].savepoint = row
    starts: dict[str, list[JobCase]] = {}
    for case in cases:
        if case.job.start_from is not None and case.job.start_from.savepoint is not None:
            starts.setdefault(case.job.start_from.savepoint, []).append(case)
    for ids in _chunks(starts):
        for row in await session.scalars(select(SavepointRow).where(SavepointRow.id.in_(ids))):
            for case in starts[row.id]:
                case.start = row


async def _load_moves(session: AsyncSession, cases: list[JobCase]) -> None:
    """Add the runs that planned moves wait for, and whether the job can go back to the version before."""
    moving = [(case, move) for case in cases if (move := case.job.moving) is not None]
    for case, move in moving:
        case.previous_stored = move.previous in await _stored(session, case.job.id, {move.previous})
    moves = {move.standby: case for case, move in moving if move.standby is not None}
    for ids in _chunks(moves):
        for run in await session.scalars(select(RunRow).where(RunRow.id.in_(ids))):
            case = moves[run.id]
            case.successor = run
            if run.id == case.job.run:
                case.awaited = _awaited(case.job, run)
        claims = (
            select(GenerationRow.run, func.sum(GenerationRow.epochs), func.max(GenerationRow.claimed_at))
            .where(GenerationRow.job.in_([moves[run].job.id for run in ids]), GenerationRow.run.in_(ids))
            .group_by(GenerationRow.run)
        )
        for run_id, epochs, claimed_at in await session.execute(claims):
            case = moves[run_id]
            case.successor_claimed = True
            if run_id == case.job.run:
                case.epochs, case.claimed_at = int(epochs), claimed_at


async def _load_next(session: AsyncSession, case: JobCase) -> None:
    """Add whether the version is stored that the job continues with after its run."""
    following = case.run.spec.next if case.run is not None else None
    if following is not None:
        case.next_stored = following.version in await _stored(session, case.job.id, {following.version})


async def _load_planners(session: AsyncSession, case: JobCase) -> None:
    """Add the versions that planned the epochs in doubt which a driver has refused, from the code that each run of the
    job reported.
    """
    codes = case.run.failure.codes if case.run is not None and case.run.failure is not None else []
    if case.run is None or not codes:
        return
    code, version = RunRow.ingest_state["code"].as_string(), RunRow.spec["version"].as_integer()
    of_codes = select(code, version).where(RunRow.job == case.job.id, code.in_(codes))
    planned: dict[str, int] = {}
    for name, number in await session.execute(of_codes.order_by(RunRow.created_at.desc(), RunRow.id.desc())):
        planned.setdefault(name, number)
    stored = await _stored(session, case.job.id, set(planned.values()))
    case.planned_by = tuple(v if (v := planned.get(code)) in stored else None for code in codes)
    case.unable = await jobs.code_failed(session, case.job.id, stored, but_run=case.run.id)


async def _stored(session: AsyncSession, job: str, versions: set[int]) -> set[int]:
    """Return the given versions of a job, without removed ones."""
    query = select(JobVersionRow.version).where(JobVersionRow.job == job, JobVersionRow.version.in_(versions))
    return set(await session.scalars(query)) if versions else set()


def _awaited(job: JobRow, run: RunRow) -> frozenset[str]:
    """Return the queries of a run that have not returned since its newest claim. A query that never published is not
    among them: it may have no input, and its driver does not know its offsets.
    """
    not_returned = set(run.ingest_state.queries) - set(run.ingest_state.returned)
    queries = job.figures.queries
    return frozenset(name for name in not_returned if name in queries and queries[name].epochs)


def needs_slot(case: JobCase) -> bool:
    """Whether the job needs a slot that it does not have yet."""
    if case.job.desired_state != _D.RUNNING:
        return False
    without = case.run is None or case.run.spec.desired == "ABSENT" or case.run.state == "LOST"
    return case.job.state == _S.STOPPING or (case.job.state in (_S.STARTING, _S.RECOVERING) and without)


async def unchanged(session: AsyncSession, cases: list[JobCase]) -> list[JobCase]:
    """Locks the rows of jobs and their runs; returns the cases whose rows have not changed since `load`."""
    jobs = (
        select(JobRow.id, JobRow.row_version).where(JobRow.id.in_([case.job.id for case in cases])).order_by(JobRow.id)
    )
    versions = dict((await session.execute(jobs.with_for_update(key_share=True))).all())
    ids = [case.run.id for case in cases if case.run is not None]
    if ids:
        runs = select(RunRow.id, RunRow.row_version).where(RunRow.id.in_(ids)).order_by(RunRow.id)
        versions |= dict((await session.execute(runs.with_for_update(key_share=True))).all())
    return [
        case
        for case in cases
        if all(versions.get(row.id) == row.row_version for row in (case.job, case.run) if row is not None)
    ]


def _chunks(ids: Iterable[str]) -> list[list[str]]:
    every = list(ids)
    return [every[at : at + _MAX_IDS] for at in range(0, len(every), _MAX_IDS)]
