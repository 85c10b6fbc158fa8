"""Rows of jobs: their desired and actual state.

There are three kinds of writers. Users change the specification and the desired state. The reconciler changes the
state. Ingestion (`store.epochs`) changes `generation`, `metrics`, `restarts` and `observed_version`. Users and the
reconciler compare `state` and `row_version`. Ingestion does not change `row_version`, because a busy job would
otherwise make every other writer retry; no other writer changes its columns.

Events: ``job.created``, ``job.updated``, ``job.desired``, ``job.state``, ``job.deleted``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from clonos.errors import Forbidden, NameTaken, NotFound, SpecError, StateConflict, VersionStale
from clonos.jobs.spec import JobSpec
from clonos.resources.failures import SpecRefused
from clonos.resources.jobs import DesiredState, Failure, JobState, ResolveRequest, StartFrom, StopRequest
from clonos.resources.service import FieldProblem
from clonos_api.store import artifacts, audit, events, owners, recoveries
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.paging import FIRST, Page, Window, by_number, by_time
from clonos_api.store.db.rows import insert_new, new_id, require_row, upsert
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import GenerationRow, JobNameRow, JobRow, JobVersionRow, RunRow

# States without a running driver and without a transition in progress.
_COMPARED: Final = 200  # newest names that an unknown name is compared with
SETTLED: Final = frozenset({JobState.CREATED, JobState.STOPPED, JobState.CANCELED, JobState.FAILED, JobState.FINISHED})


async def create(
    session: AsyncSession,
    spec: JobSpec,
    artifact: str,
    *,
    created_by: str,
    start: bool = True,
    start_from: StartFrom | None = None,
    adopt: bool = False,
    any_name: bool = False,
) -> JobRow:
    """Create a job in the state CREATED; its desired state is RUNNING if `start`, else STOPPED.

    `adopt`: the first start may take the job over from another platform. `any_name` allows the name of a deleted job
    of another subject.
    """
    await artifacts.get(session, artifact)
    moment = await now(session)
    row = await insert_new(
        session,
        JobRow,
        id=new_id(),
        name=spec.name,
        labels=dict(spec.metadata.labels),
        spec=spec,
        artifact=artifact,
        desired_state=DesiredState.RUNNING if start else DesiredState.STOPPED,
        state=JobState.CREATED,
        state_since=moment,
        start_from=start_from,
        adopt=adopt,
        created_by=created_by,
        owner_number=await owners.number(session, created_by),
        created_at=moment,
        updated_at=moment,
    )
    if row is None:
        raise NameTaken(
            f"There is already a job {spec.name!r}.",
            hint="change that job with `clonos apply PATH`, or choose another name.",
        )
    await _take_name(session, row, any_name)
    await _remember_version(session, row, created_by)
    events.append(session, "job.created", job=row.id, data={"name": row.name, "desired_state": row.desired_state})
    how: dict[str, Any] = {"start_from": row.start_from} | ({"adopt": True} if adopt else {})
    await audit.asked(session, "job.create", row.id, name=row.name, artifact=artifact, **how)
    return row


async def get(session: AsyncSession, job: str, *, deleted: bool = False) -> JobRow:
    """Return the row of a job, by its id, or by its name if the job is not deleted. `deleted` also finds deleted
    jobs.
    """
    row = await session.get(JobRow, job, populate_existing=True)
    if row is None:
        query = select(JobRow).where(JobRow.name == job, JobRow.deleted_at.is_(None))
        row = (await session.scalars(query.execution_options(populate_existing=True))).one_or_none()
    if row is None or (row.deleted_at is not None and not deleted):
        raise await _unknown(session, job)
    return row


async def _unknown(session: AsyncSession, name: str) -> NotFound:
    """Return the error about a job that does not exist, with the most similar name."""
    names = await session.scalars(
        select(JobRow.name).where(JobRow.deleted_at.is_(None)).order_by(JobRow.created_at.desc()).limit(_COMPARED)
    )
    close = difflib.get_close_matches(name, list(names), 1)
    return NotFound(
        f"There is no job {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""),
        hint="check the name: `clonos ps` lists the jobs.",
    )


async def page(
    session: AsyncSession,
    window: Window = FIRST,
    *,
    states: Iterable[str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str | None = None,
    created_by: str | None = None,
) -> Page[JobRow]:
    """One page of the jobs that are not deleted, newest first, without their specifications.

    Optional filters: any of `states`, all `labels`, the text `name` in the job's name, the subject `created_by`.
    """
    query = select(JobRow).options(defer(JobRow.spec, raiseload=True)).where(JobRow.deleted_at.is_(None))
    if states:
        query = query.where(JobRow.state.in_(list(states)))
    if name:
        query = query.where(JobRow.name.contains(name, autoescape=True))
    if created_by:
        query = query.where(JobRow.created_by == created_by)
    for key, value in (labels or {}).items():
        if '"' in key:
            raise SpecError(f"{key!r} is not a valid label.", kept="nothing was changed.", hint="remove the quotes.")
        query = query.where(JobRow.labels[key].as_string() == value)
    return await by_time(session, query, JobRow.created_at, JobRow.id, window)


async def patch(
    session: AsyncSession,
    job: JobRow,
    *,
    version: int,
    spec: JobSpec | None = None,
    artifact: str | None = None,
    by: str,
) -> JobRow:
    """Change a job's specification or code; its next start uses it.

    `version` is the one that the change is based on (``If-Match``).
    """
    if job.version != version:
        raise VersionStale(f"Version {version} of job {job.name} is stale; the newest is {job.version}.")
    if spec is not None and spec.name != job.name:
        what = f"A job's name cannot change: {job.name!r} cannot become {spec.name!r}"
        renamed = FieldProblem(field="metadata.name", what=what, hint="create another job.")
        raise SpecRefused([renamed], kept="nothing was changed.")
    if artifact is not None:
        await artifacts.get(session, artifact)
    columns: dict[str, Any] = {}
    if spec is not None:
        columns |= {"spec": spec, "labels": dict(spec.metadata.labels)}
    newest = await session.scalar(select(func.max(JobVersionRow.version)).where(JobVersionRow.job == job.id))
    row = await change(session, job, artifact=artifact or job.artifact, version=(newest or version) + 1, **columns)
    await _remember_version(session, row, by)
    events.append(session, "job.updated", job=row.id, data={"version": row.version})
    await audit.asked(session, "job.update", row.id, version=row.version)
    return row


async def revert(session: AsyncSession, job: JobRow, version: int, **columns: Any) -> JobRow:
    """Make another version of a job the one that its next start runs; newer versions remain in the history.

    `columns` are other columns to set.
    """
    old = await stored_version(session, job, version)
    labels = dict(old.spec.metadata.labels)
    row = await change(session, job, spec=old.spec, labels=labels, artifact=old.artifact, version=version, **columns)
    events.append(session, "job.updated", job=row.id, data={"version": version, "instead": job.version})
    await audit.asked(session, "job.revert", row.id, version=version, instead=job.version)
    return row


async def stored_version(session: AsyncSession, job: JobRow, version: int) -> JobVersionRow:
    """Return the row of one version of a job."""
    return require_row(await session.get(JobVersionRow, (job.id, version)), f"version {version} of job {job.name!r}")


async def worked(session: AsyncSession, job: JobRow, *, but: int | None = None) -> int | None:
    """Return the stored version whose driver finished an epoch last, other than version `but`; None: there is none.

    A version whose code failed in its newest run did not work.
    """
    version = RunRow.spec["version"].as_integer()
    query = (
        select(version)
        .join(GenerationRow, and_(GenerationRow.job == RunRow.job, GenerationRow.run == RunRow.id))
        .join(JobVersionRow, and_(JobVersionRow.job == RunRow.job, JobVersionRow.version == version))
        .where(RunRow.job == job.id, GenerationRow.epochs > 0, version != (but if but is not None else 0))
        .group_by(version)
        .order_by(func.max(GenerationRow.generation).desc())
    )
    versions = list(await session.scalars(query))
    failed = await code_failed(session, job.id, versions)
    return next((number for number in versions if number not in failed), None)


async def code_failed(
    session: AsyncSession, job: str, versions: Collection[int], *, but_run: str | None = None
) -> frozenset[int]:
    """Return the given versions of a job whose newest driver failed because of the code, without the run `but_run`."""
    version, domain = RunRow.spec["version"].as_integer(), RunRow.failure["domain"].as_string()
    query = (
        select(version, domain)
        .where(RunRow.job == job, RunRow.id != (but_run or ""), version.in_(versions))
        .where(~func.coalesce(RunRow.spec["standby"].as_boolean(), False))
        .order_by(RunRow.created_at.desc(), RunRow.id.desc())
    )
    newest: dict[int, str | None] = {}
    for number, failed_in in await session.execute(query) if versions else ():
        newest.setdefault(number, failed_in)
    return frozenset(number for number, failed_in in newest.items() if failed_in == "user")


async def desire(
    session: AsyncSession,
    job: JobRow,
    state: DesiredState,
    *,
    stop: StopRequest | None = None,
    start_from: StartFrom | None = None,
    adopt: bool = False,
    restart: bool = False,
) -> JobRow:
    """Set the desired state of a job; the reconciler realises it.

    `start_from` is the start point of the next start, by default the current checkpoint. `adopt`: this start may take
    the job over from another platform. `restart` also restarts a job that runs.
    """
    cancelled = DesiredState.CANCELED
    if state != cancelled and cancelled in (job.desired_state, job.state):
        raise StateConflict(f"Job {job.name} was cancelled; that is final.", hint="create the job again.")
    row = await change(
        session,
        job,
        desired_state=state,
        stop=stop,
        start_from=start_from or job.start_from,
        adopt=adopt and job.state not in _WITH_DRIVER,
        restart_nonce=job.restart_nonce + (restart or _is_new_start(job, state, start_from)),
    )
    data = {"desired_state": str(state), "restart": restart}
    events.append(session, "job.desired", job=row.id, data=data)
    how: dict[str, Any] = {
        "stop": row.stop,
        "start_from": start_from,
    }
    how |= {"adopt": True} if row.adopt else {}
    await audit.asked(session, "job.restart" if restart else f"job.{_VERBS[state]}", row.id, **how)
    return row


def _is_new_start(job: JobRow, state: DesiredState, start_from: StartFrom | None) -> bool:
    """Whether a request for RUNNING begins a new start: of a job that has ended, or from an older point although the
    job still has a driver, because its stop has not begun yet.
    """
    if state != DesiredState.RUNNING:
        return False
    return job.state in _ENDED or (start_from is not None and job.state in _WITH_DRIVER)


async def resolve(session: AsyncSession, job: JobRow, request: ResolveRequest) -> JobRow:
    """Start a job with the user's decision about an epoch in doubt. A newer decision about an epoch replaces the older.

    Raises:
        StateConflict: The job has a driver, or it was cancelled.
    """
    if job.state not in SETTLED:
        raise StateConflict(
            f"Job {job.name} is {job.state}: its driver replays the epochs in doubt by itself.",
            hint="decide about an epoch after the job has FAILED because of it.",
        )
    kept = [other for other in job.resolutions or [] if (other.query, other.epoch) != (request.query, request.epoch)]
    row = await change(session, job, resolutions=[*kept, request])
    await audit.asked(session, "job.resolve", row.id, **dict(request))
    return await desire(session, row, DesiredState.RUNNING)


_ENDED: Final = (JobState.FAILED, JobState.FINISHED)
_WITH_DRIVER: Final = (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING)
_VERBS: Final = {DesiredState.RUNNING: "start", DesiredState.STOPPED: "stop", DesiredState.CANCELED: "cancel"}


async def move(
    session: AsyncSession,
    job: JobRow,
    to: JobState,
    *,
    allowed: Callable[[JobState, JobState], bool],
    deadline_s: float | None = None,
    failure: Failure | None = None,
    **columns: Any,
) -> JobRow:
    """Change the state of a job; only the reconciler calls this.

    `allowed` decides whether a transition (from, to) is legal. `deadline_s` limits the time in the new state, in
    seconds. `failure` is why the job does not make progress. `columns` are other columns to set.
    """
    source = JobState(job.state)
    if not allowed(source, to):
        raise StateConflict(f"Job {job.name} cannot go from {source} to {to}.")
    row = await change(
        session,
        job,
        state=to,
        state_since=clock(),
        state_deadline=None if deadline_s is None else clock(deadline_s),
        failure=failure,
        **columns,
    )
    if to in SETTLED:
        await recoveries.abandon(session, row.id)
    data = {"from": str(source), "to": str(to), "failure": row.failure}
    events.append(session, "job.state", job=row.id, data=data)
    return row


async def change(session: AsyncSession, job: JobRow, **columns: Any) -> JobRow:
    """Set columns of a job's row without appending an event."""
    return await swap(
        session,
        job,
        JobRow.state == job.state,
        JobRow.deleted_at.is_(None),
        updated_at=clock(),
        **columns,
    )


async def delete(session: AsyncSession, job: JobRow) -> JobRow:
    """Mark a job that is not running as deleted.

    Its name becomes free; its history remains until retention removes it.
    """
    if job.state not in SETTLED:
        raise StateConflict(f"Job {job.name} is {job.state}.", hint="stop or cancel it first.")
    row = await change(session, job, deleted_at=clock(), state_deadline=None)
    events.append(session, "job.deleted", job=row.id, data={"name": row.name})
    await audit.asked(session, "job.delete", row.id, name=row.name)
    return row


async def versions(session: AsyncSession, job: str, window: Window = FIRST) -> Page[JobVersionRow]:
    """One page of the versions of a job's specification, newest first."""
    query = select(JobVersionRow).where(JobVersionRow.job == job)
    return await by_number(session, query, JobVersionRow.version, window)


async def _take_name(session: AsyncSession, job: JobRow, any_name: bool) -> None:
    """Assign a name to its owner, even after the job is deleted: the name identifies its checkpoint and causal log."""
    statement = upsert(session.get_bind().dialect.name, JobNameRow).values(name=job.name, subject=job.created_by)
    statement = statement.on_conflict_do_update(
        index_elements=[JobNameRow.name],
        set_={"subject": job.created_by},
        where=None if any_name else JobNameRow.subject == job.created_by,
    ).returning(JobNameRow.name)
    if (await session.execute(statement.execution_options(synchronize_session=False))).one_or_none() is None:
        raise Forbidden(
            f"The name {job.name!r} belongs to another subject, whose checkpoint and causal log still exist.",
            hint="choose another name, or let an admin create the job.",
        )


async def _remember_version(session: AsyncSession, job: JobRow, by: str) -> None:
    session.add(
        JobVersionRow(
            job=job.id,
            version=job.version,
            spec=job.spec,
            artifact=job.artifact,
            created_at=job.updated_at,
            created_by=by,
        )
    )
    await session.flush()
