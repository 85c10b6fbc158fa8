"""Rows of Spark clusters, and their checks.

A check is an operation: the reconciler creates its host task, and the result of the task or the operation's deadline
ends it. At most one check of a cluster is in progress; a change of the description ends it and requests another one.

Events: ``cluster.created``, ``cluster.updated``, ``cluster.state``, ``cluster.deleted``.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import NameTaken, Overtaken, StateConflict, VersionStale
from clonos.jobs.cluster import ClusterMetadata, ClusterReport, ClusterSpec
from clonos.resources.clusters import ClusterState
from clonos.resources.failures import SpecRefused, new_failure
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos.resources.service import FieldProblem
from clonos_api.store import audit, events, operations, tasks
from clonos_api.store.columns import OperationArguments
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.paging import FIRST, Page, Window, by_name
from clonos_api.store.db.rows import insert_new, new_id, require_row
from clonos_api.store.db.swap import swap
from clonos_api.store.jobs import SETTLED
from clonos_api.store.tables import ClusterRow, JobRow, OperationRow, RunRow

CHECK: Final = "check-cluster"  # kind of the operations and host tasks
CHECK_S: Final = 270.0  # the agent's limit of a check; the application's own limit is 240 s
_DEADLINE_S: Final = CHECK_S + 30.0  # of the operation, so that the agent's failure comes first
_SHOWN_JOBS: Final = 5

_EVERY: Final = select(ClusterRow).order_by(ClusterRow.name)
_S = ClusterState
TRANSITIONS: Final = {
    _S.UNCHECKED: frozenset({_S.CHECKING}),
    _S.CHECKING: frozenset({_S.READY, _S.INCOMPATIBLE, _S.UNREACHABLE, _S.UNCHECKED}),
    _S.READY: frozenset({_S.CHECKING, _S.UNCHECKED}),
    _S.INCOMPATIBLE: frozenset({_S.CHECKING, _S.UNCHECKED}),
    _S.UNREACHABLE: frozenset({_S.CHECKING, _S.UNCHECKED}),
}
"""The allowed changes of a state: to UNCHECKED by a change of the description, to the others by the checks."""


async def create(session: AsyncSession, cluster: ClusterSpec, *, by: str) -> ClusterRow:
    """Insert a cluster in the state UNCHECKED, and request its check; the subject `by` adds it."""
    moment = await now(session)
    row = await insert_new(
        session,
        ClusterRow,
        id=new_id(),
        **_columns(cluster),
        state=ClusterState.UNCHECKED,
        state_since=moment,
        created_by=by,
        created_at=moment,
        updated_at=moment,
    )
    if row is None:
        raise NameTaken(f"There is already a cluster {cluster.name!r}.")
    events.append(session, "cluster.created", data={"cluster": row.name})
    await audit.asked(session, "cluster.create", row.id, name=row.name, master=cluster.spec.master)
    await request_check(session, row, by=by)
    return row


async def get(session: AsyncSession, name: str) -> ClusterRow:
    """Return the row of a cluster, by its name."""
    query = select(ClusterRow).where(ClusterRow.name == name).execution_options(populate_existing=True)
    return require_row((await session.scalars(query)).one_or_none(), f"cluster {name!r}")


async def every(session: AsyncSession) -> dict[str, ClusterRow]:
    """All clusters: name → row."""
    return {row.name: row for row in await session.scalars(_EVERY)}


async def page(session: AsyncSession, window: Window = FIRST) -> Page[ClusterRow]:
    """One page of the clusters, by name."""
    return by_name(list((await every(session)).values()), lambda row: row.name, window)


def description(row: ClusterRow) -> ClusterSpec:
    """Return the description of a cluster, as drivers get it."""
    return ClusterSpec(metadata=ClusterMetadata(name=row.name, labels=row.labels), spec=row.spec)


async def change(session: AsyncSession, row: ClusterRow, cluster: ClusterSpec, *, version: int, by: str) -> ClusterRow:
    """Replace the description of a cluster, and request its check; the next start of a driver uses it.

    `version` is the one that the change is based on (``If-Match``).
    """
    if row.version != version:
        raise VersionStale(f"Version {version} of cluster {row.name} is stale; the newest is {row.version}.")
    if cluster.name != row.name:
        what = f"a cluster's name cannot change: {row.name!r} cannot become {cluster.name!r}"
        renamed = FieldProblem(field="metadata.name", what=what, hint="add another cluster.")
        raise SpecRefused([renamed], kept="nothing was changed.")
    await _end_checks(session, row, "its description has changed")
    columns = {**_columns(cluster), "version": version + 1, "report": None, "checked_at": None, "failure": None}
    if row.state == ClusterState.UNCHECKED:
        row = await swap(session, row, updated_at=clock(), **columns)
    else:
        row = await move(session, row, ClusterState.UNCHECKED, **columns)
    events.append(session, "cluster.updated", data={"cluster": row.name, "version": row.version})
    await audit.asked(session, "cluster.update", row.id, name=row.name, version=row.version)
    await request_check(session, row, by=by)
    return row


async def remove(session: AsyncSession, row: ClusterRow) -> None:
    """Remove a cluster; `StateConflict` while jobs run on it."""
    jobs = await jobs_using(session, row.name)
    if jobs:
        more = f" and {len(jobs) - _SHOWN_JOBS} more" if len(jobs) > _SHOWN_JOBS else ""
        raise StateConflict(
            f"Cluster {row.name} is in use by {', '.join(jobs[:_SHOWN_JOBS])}{more}.",
            kept="nothing was changed.",
            hint="stop these jobs first, or let them use another cluster.",
        )
    await _end_checks(session, row, "it was removed")
    row = await swap(session, row)
    await session.execute(delete(ClusterRow).where(ClusterRow.id == row.id))
    events.append(session, "cluster.deleted", data={"cluster": row.name})
    await audit.asked(session, "cluster.delete", row.id, name=row.name)


async def jobs_using(session: AsyncSession, name: str) -> list[str]:
    """Return the names of the jobs that run on a cluster, or will as soon as they have a host; sorted."""
    return (await users(session)).get(name, [])


async def users(session: AsyncSession) -> dict[str, list[str]]:
    """`jobs_using` of all clusters: cluster → jobs. Clusters without jobs are left out."""
    starts = and_(JobRow.state.in_((JobState.CREATED, JobState.STOPPED)), JobRow.desired_state == DesiredState.RUNNING)
    specified = JobRow.spec["spec"]["cluster"].as_string()
    waiting = select(specified, JobRow.name).where(
        JobRow.deleted_at.is_(None), specified != "", or_(JobRow.state.not_in(SETTLED), starts)
    )
    # A driver keeps the cluster of its version, although a newer version may name another one.
    used = RunRow.spec["cluster"]["metadata"]["name"].as_string()
    running = (
        select(used, JobRow.name)
        .join(RunRow, RunRow.job == JobRow.id)
        .where(RunRow.ended_at.is_(None), RunRow.spec["desired"].as_string() != "ABSENT", used.is_not(None))
    )
    named: dict[str, set[str]] = {}
    for query in (waiting, running):
        for cluster, job in await session.execute(query):
            named.setdefault(cluster, set()).add(job)
    return {cluster: sorted(jobs) for cluster, jobs in named.items()}


async def request_check(session: AsyncSession, row: ClusterRow, *, by: str) -> OperationRow:
    """Begin the operation that checks a cluster; a check of this version in progress is returned instead."""
    for operation in await checks(session, row):
        if operation.arguments.version == row.version:
            return operation
    arguments = OperationArguments(cluster=row.id, version=row.version)
    return await operations.begin(session, CHECK, arguments=arguments, timeout_s=_DEADLINE_S, by=by)


async def checks(session: AsyncSession, row: ClusterRow) -> list[OperationRow]:
    """Return the checks of a cluster that are in progress."""
    query = select(OperationRow).where(OperationRow.kind == CHECK, OperationRow.state == "IN_PROGRESS")
    in_progress = await session.scalars(query.order_by(OperationRow.id).execution_options(populate_existing=True))
    return [operation for operation in in_progress if operation.arguments.cluster == row.id]


async def begin_check(session: AsyncSession, row: ClusterRow) -> ClusterRow:
    """Record that a host executes a check: the first one, or another one after the first was lost."""
    if row.state == ClusterState.CHECKING:
        return await swap(session, row)
    return await move(session, row, ClusterState.CHECKING, failure=None)


async def succeed(session: AsyncSession, row: ClusterRow, report: ClusterReport) -> ClusterRow:
    """Record what a check saw: the cluster is READY, or INCOMPATIBLE if there are problems."""
    state = ClusterState.INCOMPATIBLE if report.problems else ClusterState.READY
    seen = {"report": report, "checked_at": clock(), "failure": None}
    return await move(session, row, state, **seen)


async def fail(session: AsyncSession, row: ClusterRow, failure: Failure) -> ClusterRow:
    """Record that a check failed: the cluster is UNREACHABLE. The last report stays."""
    return await move(session, row, ClusterState.UNREACHABLE, checked_at=clock(), failure=failure)


async def explain(session: AsyncSession, row: ClusterRow, failure: Failure) -> ClusterRow:
    """Record why no check has begun; the state stays."""
    return await swap(session, row, failure=failure)


async def move(session: AsyncSession, row: ClusterRow, to: ClusterState, **columns: Any) -> ClusterRow:
    """Change the state of a cluster, as `TRANSITIONS` allows; `columns` are other columns to set."""
    source = ClusterState(row.state)
    if to not in TRANSITIONS[source]:
        raise StateConflict(f"Cluster {row.name} cannot go from {source} to {to}.")
    moment = clock()
    row = await swap(session, row, state=to, state_since=moment, updated_at=moment, **columns)
    events.append(session, "cluster.state", data={"cluster": row.name, "from": str(source), "to": str(to)})
    return row


def _columns(cluster: ClusterSpec) -> dict[str, Any]:
    return {
        "name": cluster.name,
        "labels": dict(cluster.metadata.labels),
        "spec": cluster.spec,
    }


async def _end_checks(session: AsyncSession, row: ClusterRow, why: str) -> None:
    for operation in await checks(session, row):
        for task in await tasks.open_of_operation(session, operation.id):
            await tasks.end(session, task)
        failure = new_failure(Overtaken, f"The check of cluster {row.name} ended: {why}.")
        await operations.fail(session, operation, failure)
