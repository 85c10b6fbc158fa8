"""Verifications of jobs' outputs: operations, each with one host task. The newest result of a job is shown."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.hosts import HostState
from clonos.resources.verification import READING_S, VERIFY, Verification, VerifyRequest, VerifyTask
from clonos_api.store import hosts, operations, owners, tasks
from clonos_api.store.tables import JobRow, OperationRow, RunRow

# Of the operation, beyond the agent's limit: its failure comes first.
_MARGIN_S: Final = 30.0


async def begin(session: AsyncSession, job: JobRow, request: VerifyRequest, *, by: str) -> OperationRow:
    """Begin a verification on the host of the job's driver, or else on any READY host.

    Raises:
        StateConflict: No host is READY, or a verification of the job is in progress.
    """
    if any(row.kind == VERIFY for row in await operations.in_progress(session, job=job.id)):
        raise StateConflict(
            f"The output of {job.name} is being verified.", kept="nothing was changed.", hint="wait for its result."
        )
    host = await _host(session, job)
    operation = await operations.begin(
        session,
        VERIFY,
        job=job.id,
        timeout_s=request.seconds + READING_S + _MARGIN_S,
        by=by,
    )
    arguments = dict(VerifyTask(job=job.name, **request.model_dump()))
    number = await owners.number_of_job(session, job.id)
    await tasks.create(session, host, VERIFY, arguments, operation=operation.id, owner_number=number)
    return operation


async def _host(session: AsyncSession, job: JobRow) -> str:
    ready = [host for host in await hosts.every(session) if host.state == HostState.READY]
    if not ready:
        raise StateConflict(
            f"No host is READY, so the output of {job.name} cannot be verified.",
            kept="nothing was changed.",
            hint="start an agent, or use clonos verify, which reads Kafka itself.",
        )
    run = await session.get(RunRow, job.run) if job.run else None
    at_driver = [host for host in ready if run is not None and host.id == run.host]
    return min(at_driver or ready, key=lambda host: host.name).id


async def newest(session: AsyncSession, *, job: str | None = None) -> dict[str, Verification]:
    """Return the result that counts for each job that has one, or only for one `job`: id of the job → verification.

    It is the newest one that proved or contradicted something: one that did neither does not end a contradiction. Only
    without such a result, it is the newest one.
    """
    ids = select(func.max(OperationRow.id)).where(OperationRow.kind == VERIFY, OperationRow.state == "COMPLETED")
    if job is not None:
        ids = ids.where(OperationRow.job == job)
    ids = ids.group_by(OperationRow.job)
    decided = or_(OperationRow.result["clean"].as_boolean(), OperationRow.result["contradicted"].as_boolean())
    chosen = or_(OperationRow.id.in_(ids), OperationRow.id.in_(ids.where(decided)))
    rows = list(await session.scalars(select(OperationRow).where(chosen).order_by(OperationRow.id)))
    results: dict[str, Verification] = {}
    for row in rows:
        result, job_id = Verification.model_validate(row.result), str(row.job)
        if job_id not in results or result.clean or result.contradicted:
            results[job_id] = result
    return results
