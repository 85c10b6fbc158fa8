"""What becomes of a savepoint and of the operation that waits for it when an agent has told how its task went."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, NotFound, SpecError
from clonos.resources.hosts import TaskResult
from clonos.resources.jobs import Failure
from clonos.spec import explain
from clonos_api.store import operations, savepoints
from clonos_api.store.tables import TaskRow

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
        SpecError: The agent's result is not what its kind of task has.
    """
    savepoint = await savepoints.get(session, str(task.arguments["savepoint"]))
    failure = None if told.ok else (told.failure or _UNTOLD)
    if task.kind == "delete-savepoint":
        if savepoint.state == "DELETING":
            if failure is None:
                await savepoints.remove(session, savepoint)
            else:
                await savepoints.fail(session, savepoint, failure)
    elif savepoint.state == "IN_PROGRESS":
        if failure is None:
            copied = _copied(told)
            await savepoints.complete(session, savepoint, epochs=copied.epochs, size_bytes=copied.size_bytes)
        else:
            await savepoints.fail(session, savepoint, failure)
    if task.operation is not None:
        await _end(session, task.operation, {"savepoint": savepoint.id}, failure)


def _copied(told: TaskResult) -> Copied:
    try:
        return Copied.model_validate(told.result)
    except ValidationError as error:
        raise SpecError(f"This is no result of a savepoint: {explain(error)}.", kept="nothing was changed.") from error


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
