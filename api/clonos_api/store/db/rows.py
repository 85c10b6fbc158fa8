"""Helpers to insert and require rows."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils import uuid7

from clonos.errors import NotFound
from clonos_api.store.tables import Base

R = TypeVar("R", bound=Base)


def new_id() -> str:
    """Return a new id: a UUIDv7, which grows with time."""
    return str(uuid7())


def upsert(dialect: str, table: type[Base]) -> Any:
    """Return an ``INSERT`` statement for the table in a dialect of the database, which supports ``ON CONFLICT``."""
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)


async def insert_new(session: AsyncSession, table: type[R], **columns: Any) -> R | None:
    """Insert and return a row; None if a row with the same key or unique name exists."""
    statement = (
        upsert(session.get_bind().dialect.name, table).values(**columns).on_conflict_do_nothing().returning(table)
    )
    row: R | None = (await session.scalars(statement)).one_or_none()
    return row


def require_row(row: R | None, description: str) -> R:
    """Return the row; `NotFound`, with `description`, if it is None."""
    if row is None:
        raise NotFound(f"There is no {description}.")
    return row
