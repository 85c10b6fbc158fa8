"""Jobs: what somebody asked for, and what is.

Three kinds of writers: users change specification and desired state, the reconciler the state, and ingestion
(`store.epochs`) `generation`, `metrics`, `restarts` and `observed_version`. The first two compare and set on
(`state`, `token`). Ingestion's columns are its own and only grow; it does not touch `token`, or a job that works
would make every other writer start again.

Events: ``job.created``, ``job.updated``, ``job.desired``, ``job.state``, ``job.deleted``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Forbidden, NameTaken, SpecError, StateConflict, VersionStale
from clonos.resources.jobs import DesiredState, Failure, JobState, StartFrom, StopRequest
from clonos.spec import JobSpec
from clonos_api.store import artifacts, audit, events, recoveries
from clonos_api.store.clock import clock, now
from clonos_api.store.paging import DEFAULT, Page, by_number, by_time
from clonos_api.store.rows import found, insert_new, new_id, upsert
from clonos_api.store.swap import swap
from clonos_api.store.tables import JobNameRow, JobRow, JobVersionRow

# Nothing runs in these and nothing is under way.
SETTLED: Final = frozenset({JobState.CREATED, JobState.STOPPED, JobState.CANCELED, JobState.FAILED, JobState.FINISHED})


class _Keep:
    """Says: leave it as it is."""


KEEP: Final = _Keep()


async def create(
    session: AsyncSession,
    spec: JobSpec,
    artifact: str,
    *,
    owner: str,
    start: bool = True,
    start_from: StartFrom | None = None,
    any_name: bool = False,
) -> JobRow:
    """A new job.

    Args:
        session: A transaction.
        spec: Its specification.
        artifact: Its code.
        owner: The subject whose it is.
        start: Whether it is to run at once.
        start_from: Where its first start begins.
        any_name: Also under the name of a deleted job of somebody else.

    Raises:
        NameTaken: A job that is not deleted has the name.
        Forbidden: Somebody else's job had it.
        NotFound: There is no such artifact.
    """
    await artifacts.get(session, artifact)
    moment = await now(session)
    row = await insert_new(
        session,
        JobRow,
        id=new_id(),
        name=spec.name,
        labels=dict(spec.metadata.labels),
        spec=as_written(spec),
        artifact=artifact,
        desired_state=DesiredState.RUNNING if start else DesiredState.STOPPED,
        state=JobState.CREATED,
        state_since=moment,
        start_from=start_from.model_dump(mode="json") if start_from else None,
        owner=owner,
        created_at=moment,
        updated_at=moment,
    )
    if row is None:
        raise NameTaken(f"There is a job {spec.name!r} already.")
    await _take_name(session, row, any_name)
    await _remember_version(session, row, owner)
    events.append(session, "job.created", job=row.id, data={"name": row.name, "desired_state": row.desired_state})
    await audit.asked(session, "job.create", row.id, name=row.name, artifact=artifact, start_from=row.start_from)
    return row


async def get(session: AsyncSession, job: str, *, deleted: bool = False) -> JobRow:
    """A job by its id, or by its name if it is not deleted.

    Raises:
        NotFound: There is none, or it is deleted and `deleted` ones are not wanted.
    """
    row = await session.get(JobRow, job, populate_existing=True)
    if row is None:
        query = select(JobRow).where(JobRow.name == job, JobRow.deleted_at.is_(None))
        row = (await session.scalars(query.execution_options(populate_existing=True))).one_or_none()
    return found(row if row is None or deleted or row.deleted_at is None else None, f"job {job!r}")


async def page(
    session: AsyncSession,
    *,
    states: Iterable[str] | None = None,
    labels: Mapping[str, str] | None = None,
    name: str | None = None,
    owner: str | None = None,
    limit: int = DEFAULT,
    starting_after: str | None = None,
) -> Page[JobRow]:
    """Jobs that are not deleted, newest first.

    Args:
        session: A transaction.
        states: Any of these.
        labels: All of these.
        name: Names that contain this.
        owner: Whose.
        limit: At most so many.
        starting_after: `Page.next` of the page before.
    """
    query = select(JobRow).where(JobRow.deleted_at.is_(None))
    if states:
        query = query.where(JobRow.state.in_(list(states)))
    if name:
        query = query.where(JobRow.name.contains(name, autoescape=True))
    if owner:
        query = query.where(JobRow.owner == owner)
    for key, value in (labels or {}).items():
        if '"' in key:
            raise SpecError(f"{key!r} is no label.", kept="nothing was changed.", hint="leave out the quotes.")
        query = query.where(JobRow.labels[key].as_string() == value)
    return await by_time(session, query, JobRow.created_at, JobRow.id, limit=limit, starting_after=starting_after)


async def patch(
    session: AsyncSession,
    job: JobRow,
    *,
    version: int,
    spec: JobSpec | None = None,
    artifact: str | None = None,
    by: str,
) -> JobRow:
    """Give a job another specification or other code; it counts from its next start.

    Args:
        session: A transaction.
        job: The job.
        version: The version that the change is based on (``If-Match``).
        spec: The new specification; its name must be the old one.
        artifact: The new code.
        by: The subject who asks.

    Raises:
        VersionStale: It has a newer version.
        SpecError: The name is another one.
        NotFound: There is no such artifact.
    """
    if job.version != version:
        raise VersionStale(f"Version {version} of job {job.name} is not its newest; that is {job.version}.")
    if spec is not None and spec.name != job.name:
        raise SpecError(
            f"A job keeps its name: {job.name!r} cannot become {spec.name!r}.",
            kept="nothing was changed.",
            hint="create another job.",
        )
    if artifact is not None:
        await artifacts.get(session, artifact)
    columns: dict[str, Any] = {}
    if spec is not None:
        columns |= {"spec": as_written(spec), "labels": dict(spec.metadata.labels)}
    row = await change(session, job, artifact=artifact or job.artifact, version=version + 1, **columns)
    await _remember_version(session, row, by)
    events.append(session, "job.updated", job=row.id, data={"version": row.version})
    await audit.asked(session, "job.update", row.id, version=row.version)
    return row


async def revert(session: AsyncSession, job: JobRow, version: int) -> JobRow:
    """Give a job an older specification and its code again, as its newest version: the newest one failed.

    Raises:
        NotFound: It had no such version.
        Fenced: Somebody changed it since.
    """
    old = found(await session.get(JobVersionRow, (job.id, version)), f"version {version} of job {job.name!r}")
    labels = old.spec["metadata"].get("labels") or {}
    row = await change(
        session, job, spec=old.spec, labels=labels, artifact=old.artifact, version=job.version + 1, run=None
    )
    await _remember_version(session, row, "clonos")
    events.append(session, "job.updated", job=row.id, data={"version": row.version, "again": version})
    return row


async def desire(
    session: AsyncSession,
    job: JobRow,
    state: DesiredState,
    *,
    stop: StopRequest | None = None,
    start_from: StartFrom | None = None,
    restart: bool = False,
) -> JobRow:
    """Say what a job is to be; the reconciler brings it there.

    Args:
        session: A transaction.
        job: The job.
        state: What it is to be.
        stop: How it is stopped.
        start_from: Where its next start begins; None: where it ended.
        restart: Start it anew although it runs.

    Raises:
        StateConflict: It was cancelled, which is for good.
        Fenced: Somebody changed it since.
    """
    cancelled = DesiredState.CANCELED
    if state != cancelled and cancelled in (job.desired_state, job.state):
        raise StateConflict(f"Job {job.name} was cancelled, which is for good.", hint="create it again.")
    row = await change(
        session,
        job,
        desired_state=state,
        stop=stop.model_dump(mode="json") if stop else None,
        start_from=start_from.model_dump(mode="json") if start_from else job.start_from,
        # What has failed or finished stays so until somebody asks for it anew.
        restart_nonce=job.restart_nonce + (restart or (state == DesiredState.RUNNING and job.state in _ENDED)),
    )
    data = {"desired_state": str(state), "restart": restart}
    events.append(session, "job.desired", job=row.id, data=data)
    how = {"stop": row.stop, "start_from": start_from.model_dump(mode="json") if start_from else None}
    await audit.asked(session, "job.restart" if restart else f"job.{_VERBS[state]}", row.id, **how)
    return row


_ENDED: Final = (JobState.FAILED, JobState.FINISHED)
_VERBS: Final = {DesiredState.RUNNING: "start", DesiredState.STOPPED: "stop", DesiredState.CANCELED: "cancel"}


async def move(
    session: AsyncSession,
    job: JobRow,
    to: JobState,
    *,
    allowed: Callable[[JobState, JobState], bool],
    deadline_s: float | None = None,
    failure: Failure | _Keep | None = KEEP,
    **columns: Any,
) -> JobRow:
    """Change a job's state, for the reconciler.

    Args:
        session: A transaction.
        job: The job.
        to: The new state.
        allowed: Whether the table of transitions has (from, to).
        deadline_s: When the new state is given up; None: never, for states that wait for nothing.
        failure: Why it does not go on; None: all is well.
        columns: Other columns to set with it.

    Raises:
        StateConflict: The table of transitions does not have it.
        Fenced: Somebody changed the job since.
    """
    source = JobState(job.state)
    if not allowed(source, to):
        raise StateConflict(f"Job {job.name} cannot go from {source} to {to}.")
    if not isinstance(failure, _Keep):
        columns["failure"] = failure.model_dump(mode="json") if failure else None
    row = await change(
        session,
        job,
        state=to,
        state_since=clock(),
        state_deadline=None if deadline_s is None else clock(deadline_s),
        **columns,
    )
    if to in SETTLED:
        await recoveries.abandon(session, row.id)
    data = {"from": str(source), "to": str(to), "failure": row.failure}
    events.append(session, "job.state", job=row.id, data=data)
    return row


async def change(session: AsyncSession, job: JobRow, **columns: Any) -> JobRow:
    """Change columns of a job, without an event.

    Raises:
        Fenced: Somebody changed it since.
    """
    return await swap(
        session,
        job,
        JobRow.state == job.state,
        JobRow.deleted_at.is_(None),
        updated_at=clock(),
        **columns,
    )


async def delete(session: AsyncSession, job: JobRow) -> JobRow:
    """Delete a job that has ended: its name is free again, its history stays for a while.

    Raises:
        StateConflict: It has not ended.
        Fenced: Somebody changed it since.
    """
    if job.state not in SETTLED:
        raise StateConflict(f"Job {job.name} is {job.state}.", hint="stop or cancel it first.")
    row = await change(session, job, deleted_at=clock(), state_deadline=None)
    events.append(session, "job.deleted", job=row.id, data={"name": row.name})
    await audit.asked(session, "job.delete", row.id, name=row.name)
    return row


async def versions(
    session: AsyncSession, job: str, *, limit: int = DEFAULT, starting_after: str | None = None
) -> Page[JobVersionRow]:
    """The specifications that a job had, newest first."""
    query = select(JobVersionRow).where(JobVersionRow.job == job)
    return await by_number(session, query, JobVersionRow.version, limit=limit, starting_after=starting_after)


async def _take_name(session: AsyncSession, job: JobRow, any_name: bool) -> None:
    """A name stays its owner's when the job is deleted: its checkpoint and causal log are found by it."""
    statement = upsert(session, JobNameRow).values(name=job.name, owner=job.owner)
    statement = statement.on_conflict_do_update(
        index_elements=[JobNameRow.name],
        set_={"owner": job.owner},
        where=None if any_name else JobNameRow.owner == job.owner,
    ).returning(JobNameRow.name)
    if (await session.execute(statement.execution_options(synchronize_session=False))).one_or_none() is None:
        raise Forbidden(
            f"The name {job.name!r} was that of a job of somebody else: its checkpoint and causal log are there still.",
            hint="choose another name, or have an admin create the job.",
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


def as_written(spec: JobSpec) -> dict[str, Any]:
    """A specification as it is kept: what is not set stays not set, for there the decorator in the code counts."""
    whole = spec.model_dump(mode="json", by_alias=True)
    return {**whole, "spec": spec.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)}
