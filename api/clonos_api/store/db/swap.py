"""Optimistic locking: a row is changed only if its `row_version` is unchanged since it was read.

SQLAlchemy's `version_id_col` does not replace this: rows may be detached from the session, and callers add conditions.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Table, func, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate
from clonos_api.store.tables import ClusterRow, HostRow, JobRow, OperationRow, RunRow, SavepointRow, StandbyRow

_ROW: Final = 1 << 20  # counts a row beside its version, so that a removed row shows too
R = TypeVar("R", JobRow, HostRow, RunRow, SavepointRow, OperationRow, StandbyRow, ClusterRow)


async def swap(session: AsyncSession, row: R, *conditions: ColumnElement[bool], **columns: Any) -> R:
    """Change a row and increment its `row_version`.

    Args:
        session: A transaction.
        row: The row, read in this transaction or in an earlier one.
        conditions: Further conditions for the change.
        columns: New values.

    Returns:
        The changed row.

    Raises:
        ConcurrentUpdate: The row was changed since it was read, or a condition is false.
    """
    table = type(row)
    statement = (
        update(table)
        .where(table.id == row.id, table.row_version == row.row_version, *conditions)
        .values(row_version=table.row_version + 1, **columns)
        .returning(table)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    changed: R | None = (await session.scalars(statement)).one_or_none()
    if changed is None:
        raise ConcurrentUpdate(f"The {table.__tablename__.rstrip('s')} {row.id} was changed at the same time.")
    return changed


def versions(table: Table) -> ColumnElement[int]:
    """Return the sum of the versions of rows, which changes with each of them; NULL without rows."""
    return func.sum(table.c.row_version + _ROW)
