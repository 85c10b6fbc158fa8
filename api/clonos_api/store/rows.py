"""How rows are made and found."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils import uuid7

from clonos.errors import NotFound
from clonos_api.store.tables import Base

R = TypeVar("R", bound=Base)


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
