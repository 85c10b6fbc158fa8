"""Tasks: something for an agent to do once.

It may do it twice, if its first answer was lost; the first to end it wins.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store import agents
from clonos_api.store.clock import clock, now
from clonos_api.store.rows import found, new_id
from clonos_api.store.tables import TaskRow


async def create(
    session: AsyncSession, agent: str, kind: str, arguments: dict[str, Any], *, operation: str | None = None
) -> TaskRow:
    """Have an agent (its id) do something for an operation."""
    row = TaskRow(
        id=new_id(),
        agent=agent,
        operation=operation,
        kind=kind,
        arguments=arguments,
        created_at=await now(session),
    )
    session.add(row)
    await session.flush()
    agents.bump(session, agent)
    return row


async def get(session: AsyncSession, task: str) -> TaskRow:
    """A task.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(TaskRow, task, populate_existing=True), f"task {task}")


async def open_of_agent(session: AsyncSession, agent: str) -> list[TaskRow]:
    """What an agent has yet to do, oldest first."""
    query = select(TaskRow).where(TaskRow.agent == agent, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    return list(await session.scalars(query))


async def open_of_operation(session: AsyncSession, operation: str) -> list[TaskRow]:
    """What is yet to be done for an operation."""
    query = select(TaskRow).where(TaskRow.operation == operation, TaskRow.ended_at.is_(None)).order_by(TaskRow.id)
    return list(await session.scalars(query))


async def end(session: AsyncSession, task: TaskRow) -> bool:
    """A task is done, or given up; whether this is the first to say so. Only the first one's result counts."""
    statement = (
        update(TaskRow)
        .where(TaskRow.id == task.id, TaskRow.ended_at.is_(None))
        .values(ended_at=clock())
        .returning(TaskRow.id)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        return False
    agents.bump(session, task.agent)
    return True
