"""Applies the result of a host task to its savepoint or cluster, and to its operation."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.documents import explain
from clonos.errors import ConcurrentUpdate, NotFound, SpecError
from clonos.jobs.cluster import ClusterReport
from clonos.resources.clusters import ClusterState
from clonos.resources.hosts import TaskResult
from clonos.resources.jobs import Failure
from clonos.resources.verification import VERIFY, Verification
from clonos_api.store import clusters, operations, savepoints
from clonos_api.store.tables import ClusterRow, TaskRow

_NO_REASON: Final = Failure(
    error="internal", what="The agent's task failed without a reason.", hint="check the agent's log."
)


class Copied(BaseModel):
    """The result of a host task that has copied a checkpoint to a savepoint."""

    model_config = ConfigDict(extra="ignore")

    epochs: dict[str, int] = Field(default_factory=dict)  # query → newest finished epoch in the savepoint
    size_bytes: int | None = None  # of the savepoint; None if unknown


async def settle(session: AsyncSession, task: TaskRow, result: TaskResult) -> None:
    """Apply the result of a host task: complete, fail or remove its savepoint, or change the state of its cluster, and
    end its operation.

    Call this once per task, for the first result.
    """
    if task.kind == clusters.CHECK:
        await _settle_check(session, task, result)
        return
    if task.kind == VERIFY:
        await _settle_verification(session, task, result)
        return
    savepoint = await savepoints.get(session, task.subject.savepoint)
    failure = None if result.ok else (result.failure or _NO_REASON)
    if task.kind == "delete-savepoint":
        if savepoint.state == "DELETING":
            if failure is None:
                await savepoints.remove(session, savepoint)
            else:
                await savepoints.fail(session, savepoint, failure)
    elif savepoint.state == "IN_PROGRESS":
        if failure is None:
            copied = _copied(result)
            await savepoints.complete(session, savepoint, epochs=copied.epochs, size_bytes=copied.size_bytes)
        else:
            await savepoints.fail(session, savepoint, failure)
    if task.operation is not None:
        await _end(session, task.operation, {"savepoint": savepoint.id}, failure)


async def _settle_check(session: AsyncSession, task: TaskRow, result: TaskResult) -> None:
    row = await session.get(ClusterRow, task.subject.cluster, populate_existing=True)
    if row is None or row.state != ClusterState.CHECKING or row.version != task.subject.version:
        return  # the check was ended before
    failure = None if result.ok else (result.failure or _NO_REASON)
    if failure is None:
        row = await clusters.succeed(session, row, _reported(result))
    else:
        row = await clusters.fail(session, row, failure)
    if task.operation is not None:
        await _end(session, task.operation, {"cluster": row.name, "state": row.state}, failure)


async def _settle_verification(session: AsyncSession, task: TaskRow, result: TaskResult) -> None:
    failure = None if result.ok else (result.failure or _NO_REASON)
    if task.operation is not None:
        verified = _verified(result).model_dump(mode="json") if failure is None else {}
        await _end(session, task.operation, verified, failure)


def _verified(result: TaskResult) -> Verification:
    try:
        return Verification.model_validate(result.result)
    except ValidationError as error:
        raise SpecError(f"Invalid result of a verification: {explain(error)}.", kept="nothing was changed.") from error


def _reported(result: TaskResult) -> ClusterReport:
    try:
        return ClusterReport.model_validate(result.result)
    except ValidationError as error:
        raise SpecError(f"Invalid report of a cluster: {explain(error)}.", kept="nothing was changed.") from error


def _copied(result: TaskResult) -> Copied:
    try:
        return Copied.model_validate(result.result)
    except ValidationError as error:
        raise SpecError(
            f"Invalid result of a savepoint task: {explain(error)}.", kept="nothing was changed."
        ) from error


async def _end(session: AsyncSession, operation: str, result: dict[str, Any], failure: Failure | None) -> None:
    try:
        row = await operations.get(session, operation)
        if row.state != "IN_PROGRESS":
            return  # it expired before
        if failure is None:
            await operations.complete(session, row, result)
        else:
            await operations.fail(session, row, failure)
    except (ConcurrentUpdate, NotFound):
        return
