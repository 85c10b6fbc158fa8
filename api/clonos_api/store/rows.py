"""How rows are made and found."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils import uuid7

from clonos.errors import NotFound
from clonos_api.store.tables import Base

R = TypeVar("R", bound=Base)


def table(of: type[Base]) -> Table:
    """For statements that are executed with many rows at once, which SQLAlchemy's ORM would do one by one."""
    return cast(Table, of.__table__)


def new_id() -> str:
    """A new id, UUIDv7: later ones are larger."""
    return str(uuid7())


def upsert(session: AsyncSession, table: type[Base]) -> Any:
    """The ``INSERT`` that knows ``ON CONFLICT``, which both databases have and SQLAlchemy has twice."""
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(table)


async def insert_new(session: AsyncSession, table: type[R], **columns: Any) -> R | None:
    """Insert a row; None if one with the same key or unique name is there."""
    statement = upsert(session, table).values(**columns).on_conflict_do_nothing().returning(table)
    row: R | None = (await session.scalars(statement)).one_or_none()
    return row


def found(row: R | None, what: str) -> R:
    """The row.

    Raises:
        NotFound: There is none.
    """
    if row is None:
        raise NotFound(f"There is no {what}.")
    return row
