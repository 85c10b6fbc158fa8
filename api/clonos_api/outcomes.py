"""What becomes of a savepoint and of the operation that waits for it when an agent has told how its task went."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, NotFound
from clonos.resources.hosts import TaskResult
from clonos.resources.jobs import Failure
from clonos_api.store import operations, savepoints
from clonos_api.store.tables import SavepointRow, TaskRow

_UNTOLD: Final = Failure(
    error="internal", what="The agent could not do it, and did not say why.", hint="look into the agent's log."
)


class Copied(BaseModel):
    """What an agent tells of a savepoint that it has written.

    Attributes:
        epochs: Query → the newest finished epoch in it.
    """

    model_config = ConfigDict(extra="ignore")

    epochs: dict[str, int] = Field(default_factory=dict)
    size_bytes: int | None = None


async def settle(session: AsyncSession, task: TaskRow, told: TaskResult) -> None:
    """Take in how a task went. Call it once for each task, for the agent that was first to end it.

    Raises:
        ValidationError: The agent's result is not what its kind of task has.
    """
    savepoint = await savepoints.get(session, str(task.arguments["savepoint"]))
    failure = None if told.ok else (told.failure or _UNTOLD)
    if task.kind == "delete-savepoint":
        await _deleted(session, savepoint, failure)
    elif failure is None:
        copied = Copied.model_validate(told.result)
        await savepoints.complete(session, savepoint, epochs=copied.epochs, size_bytes=copied.size_bytes)
    else:
        await savepoints.fail(session, savepoint)
    if task.operation is not None:
        await _end(session, task.operation, {"savepoint": savepoint.id}, failure)


async def _deleted(session: AsyncSession, savepoint: SavepointRow, failure: Failure | None) -> None:
    if failure is None:
        await savepoints.remove(session, savepoint)


async def _end(session: AsyncSession, operation: str, result: dict[str, str], failure: Failure | None) -> None:
    try:
        row = await operations.get(session, operation)
        if row.state != "IN_PROGRESS":
            return  # its deadline was first
        if failure is None:
            await operations.complete(session, row, dict(result))
        else:
            await operations.fail(session, row, failure)
    except (Fenced, NotFound):
        return
