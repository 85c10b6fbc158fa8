"""Rows of host tasks: one-time work for agents, such as copying a checkpoint.

An agent may report the result of a task several times; only the first report counts.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import hosts
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.rows import new_id, require_row
from clonos_api.store.tables import TaskRow


async def create(
    session: AsyncSession,
    host: str,
    kind: str,
    arguments: dict[str, Any],
    *,
    operation: str | None = None,
    owner_number: int = 0,
) -> TaskRow:
    """Create a host task for the agent of `host` (id), optionally as a part of an operation.

    `owner_number` is the number of the subject whose files the task handles.
    """
    row = TaskRow(
        id=new_id(),
        host=host,
        operation=operation,
        kind=kind,
        arguments=arguments,
        owner_number=owner_number,
        created_at=await now(session),
    )
    session.add(row)
    await session.flush()
    hosts.bump(session, host)
    return row


async def get(session: AsyncSession, task: str) -> TaskRow:
    """Return the row of a host task, by its id."""
    return require_row(await session.get(TaskRow, task, populate_existing=True), f"task {task}")


async def open_of_host(session: AsyncSession, host: str) -> list[TaskRow]:
    """Return the host tasks of a host that have not ended, oldest first."""
    query = select(TaskRow).where(TaskRow.host == host, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    return list(await session.scalars(query))


async def open_of_operation(session: AsyncSession, operation: str) -> list[TaskRow]:
    """Return the host tasks of an operation that have not ended."""
    query = select(TaskRow).where(TaskRow.operation == operation, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    return list(await session.scalars(query))


async def end(session: AsyncSession, task: TaskRow) -> bool:
    """Mark a host task as ended; returns False if it had ended already.

    Then the caller must ignore the result that an agent reports.
    """
    statement = (
        update(TaskRow)
        .where(TaskRow.id == task.id, TaskRow.ended_at.is_(None))
        .values(ended_at=clock())
        .returning(TaskRow.id)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        return False
    hosts.bump(session, task.host)
    return True
