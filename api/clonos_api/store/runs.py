"""Rows of runs: the placements of jobs on hosts, their specifications, and the reports of agents.

Events: ``run.created``, ``run.state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import HostTask, RunReport, RunSpec, Work
from clonos_api.store import events, hosts, owners, standbys, views
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import require_row
from clonos_api.store.db.swap import swap
from clonos_api.store.tables import HostRow, JobRow, RunRow, TaskRow


async def create(session: AsyncSession, job: JobRow, host: HostRow, spec: RunSpec, *, why: str = "") -> RunRow:
    """Place a job on a host: insert a run with the specification `spec`, which the host's agent starts.

    `why` is the reason for this host, for the event.
    """
    savepoint = spec.start_from.savepoint if spec.start_from is not None else None
    spec = spec.model_copy(update={"folder_owners": await owners.of_folders(session, job, savepoint)})
    row = RunRow(
        id=spec.run,
        row_version=1,
        job=job.id,
        host=host.id,
        spec=spec,
        state="PENDING",
        created_at=await now(session),
    )
    session.add(row)
    await session.flush()
    hosts.bump(session, host.id)
    data = {"run": row.id, "host": host.name, "version": spec.version, "standby": spec.standby, "why": why}
    events.append(session, "run.created", job=job.id, host=host.id, data=data)
    return row


async def change_spec(session: AsyncSession, run: RunRow, **changes: Any) -> RunRow:
    """Change fields of the specification of a run (`RunSpec`), and notify its agent."""
    row = await swap(session, run, spec=run.spec.model_copy(update=changes))
    hosts.bump(session, row.host)
    return row


async def lock(session: AsyncSession, runs: Sequence[str]) -> None:
    """Lock runs before changing them, in the order in which `report` locks them."""
    if len(runs) > 1:
        query = select(RunRow.id).where(RunRow.id.in_(runs)).order_by(RunRow.id)
        await session.execute(query.with_for_update(key_share=True))


async def report(session: AsyncSession, host: str, reports: Sequence[RunReport]) -> list[RunRow]:
    """Store an agent's reports on its runs, and return the rows that changed.

    Reports on ended runs and on runs of other hosts are ignored.
    """
    # Most heartbeats change nothing: compare the small columns first, and lock rows only if something changed.
    changes_by_run = await news(session, host, reports)
    if not changes_by_run:
        return []
    which = RunRow.host == host, RunRow.id.in_(changes_by_run), RunRow.ended_at.is_(None)
    query = select(RunRow).where(*which).order_by(RunRow.id).with_for_update()
    locked = await session.scalars(query.execution_options(populate_existing=True))
    changed = []
    for row in locked.all():
        changes = _changes(row, changes_by_run[row.id])
        if changes_by_run[row.id].final:
            changes["ended_at"] = changes_by_run[row.id].ended_at or await now(session)
        before = row.state
        row = await swap(session, row, **changes)
        changed.append(row)
        # The driver has published its last epoch, although its process still runs: a standby may wait for that.
        stopped = changes.get("driver_state") == "STOPPED"
        if row.state != before or row.ended_at is not None or stopped:
            _append_state(session, row)
        await standbys.update_from_run(session, row)
    return changed


async def news(session: AsyncSession, host: str, reports: Sequence[RunReport]) -> dict[str, RunReport]:
    """Select the reports that differ from the row of their run, if it has not ended: run id → report."""
    by_run = {report.run: report for report in reports}
    if not by_run:
        return {}
    known = await session.execute(_REPORTED, {"host": host, "runs": list(by_run)})
    return {row.id: by_run[row.id] for row in known if _changes(row, by_run[row.id])}


_REPORTED: Final = select(
    RunRow.id,
    RunRow.state,
    RunRow.driver_state,
    RunRow.attempts,
    RunRow.pid,
    RunRow.exit_code,
    RunRow.failure,
    RunRow.checkpoint_bytes,
    RunRow.consecutive_failures,
    RunRow.started_at,
    RunRow.ended_at,
).where(RunRow.host == bindparam("host"), RunRow.id.in_(bindparam("runs", expanding=True)), RunRow.ended_at.is_(None))


def _changes(row: Any, report: RunReport) -> dict[str, Any]:
    reported = {
        "state": str(report.state),
        "driver_state": report.driver_state,
        "attempts": report.attempts,
        "pid": report.pid,
        "exit_code": report.exit_code,
        "failure": report.failure,
        "started_at": report.started_at or row.started_at,
        "checkpoint_bytes": report.checkpoint_bytes or row.checkpoint_bytes,
        "consecutive_failures": report.consecutive_failures,
    }
    changes = {name: value for name, value in reported.items() if getattr(row, name) != value}
    if report.final and row.ended_at is None:
        changes.setdefault("state", "EXITED")
    return changes


async def lose(session: AsyncSession, run: RunRow) -> RunRow:
    """Mark a run LOST, because its host is lost.

    The run remains open: if the agent returns, it gets the run's specification.
    """
    row = await swap(session, run, state="LOST")
    _append_state(session, row)
    await standbys.update_from_run(session, row)
    return row


async def end(session: AsyncSession, run: RunRow) -> RunRow:
    """Mark a run as ended although its agent has not reported the end, for instance because the agent never
    received the run. Returns the changed row.
    """
    row = await swap(session, run, ended_at=await now(session))
    hosts.bump(session, row.host)
    _append_state(session, row)
    await standbys.update_from_run(session, row)
    return row


async def get(session: AsyncSession, run: str) -> RunRow:
    """Return the row of a run, by its id."""
    return require_row(await session.get(RunRow, run, populate_existing=True), f"run {run}")


async def of_job(session: AsyncSession, job: str, window: Window = FIRST) -> Page[RunRow]:
    """One page of a job's runs, newest first."""
    query = select(RunRow).where(RunRow.job == job)
    return await by_time(session, query, RunRow.created_at, RunRow.id, window)


async def open_of_job(session: AsyncSession, job: str) -> list[RunRow]:
    """Return a job's runs that have not ended, oldest first. There are several while a lost host has not returned."""
    query = select(RunRow).where(RunRow.job == job, RunRow.ended_at.is_(None)).order_by(RunRow.id)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def open_of_host(session: AsyncSession, host: str) -> list[RunRow]:
    """Return a host's runs that have not ended, by id."""
    query = select(RunRow).where(RunRow.host == host, RunRow.ended_at.is_(None)).order_by(RunRow.id)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def work(session: AsyncSession, host: str) -> Work:
    """Return the work of a host: its runs and host tasks that have not ended, with the work revision."""
    # Read the revision first: newer specifications then only cause one more request of the agent.
    revision = (await session.execute(select(HostRow.revision).where(HostRow.id == host))).scalar_one()
    tasks = await session.scalars(
        select(TaskRow).where(TaskRow.host == host, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    )
    return Work(
        revision=revision,
        runs=[run.spec for run in await open_of_host(session, host)],
        tasks=[views.resource(HostTask, task, task=task.id) for task in tasks],
    )


def _append_state(session: AsyncSession, row: RunRow) -> None:
    """Append the event of a run's new state."""
    data = {
        "run": row.id,
        "state": row.state,
        "exit_code": row.exit_code,
        "attempts": row.attempts,
        "ended": row.ended_at is not None,
        "standby": row.spec.standby,
    }
    events.append(session, "run.state", job=row.job, host=row.host, data=data)
