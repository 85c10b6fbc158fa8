"""Compare and set: a row is changed only if it still is as it was read."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
from clonos_api.store.tables import AgentRow, JobRow, OperationRow, RunRow, SavepointRow, StandbyRow

R = TypeVar("R", JobRow, AgentRow, RunRow, SavepointRow, OperationRow, StandbyRow)


async def swap(session: AsyncSession, row: R, *conditions: ColumnElement[bool], **columns: Any) -> R:
    """Change a row that has `token`; the row as it is then.

    Args:
        session: A transaction.
        row: As it was read, in this transaction or in an earlier one.
        conditions: What must hold besides.
        columns: New values.

    Raises:
        Fenced: Somebody changed it since, or a condition does not hold any more.
    """
    table = type(row)
    statement = (
        update(table)
        .where(table.id == row.id, table.token == row.token, *conditions)
        .values(token=table.token + 1, **columns)
        .returning(table)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    changed: R | None = (await session.scalars(statement)).one_or_none()
    if changed is None:
        raise Fenced(f"Somebody else changed {table.__tablename__.rstrip('s')} {row.id} meanwhile.")
    return changed
