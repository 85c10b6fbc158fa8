"""Lists in pages: newest first, and stable while rows are added."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import SpecError

R = TypeVar("R")
DEFAULT = 50


@dataclass(frozen=True)
class Page(Generic[R]):
    """One page.

    Attributes:
        rows: What is on it.
        next: Pass it as ``starting_after`` for the next page; None: this is the last.
    """

    rows: list[R]
    next: str | None = None


async def by_time(
    session: AsyncSession,
    query: Select[R],
    time: Any,
    key: Any,
    *,
    limit: int,
    starting_after: str | None,
) -> Page[R]:
    """A page by a time and, where that is the same, an id; newest first."""
    if starting_after is not None:
        moment, last = _decoded(starting_after)
        try:
            at = datetime.fromisoformat(moment)
            if at.tzinfo is None:
                raise wrong(starting_after)
            cursor = (at.astimezone(UTC), last)
        except (ValueError, OverflowError) as error:
            raise wrong(starting_after) from error
        query = query.where(tuple_(time, key) < tuple_(*cursor))
    rows = list(await session.scalars(query.order_by(time.desc(), key.desc()).limit(limit + 1)))
    return _cut(rows, limit, lambda row: f"{getattr(row, time.key).isoformat()} {getattr(row, key.key)}")


async def by_number(
    session: AsyncSession, query: Select[R], number: Any, *, limit: int, starting_after: str | None
) -> Page[R]:
    """A page by a number; largest first."""
    if starting_after is not None:
        if not (starting_after.isdecimal() and len(starting_after) < 19):
            raise wrong(starting_after)
        query = query.where(number < int(starting_after))
    rows = list(await session.scalars(query.order_by(number.desc()).limit(limit + 1)))
    more = len(rows) > limit
    return Page(rows[:limit], str(getattr(rows[limit - 1], number.key)) if more else None)


def _cut(rows: list[R], limit: int, cursor: Callable[[R], str]) -> Page[R]:
    more = len(rows) > limit
    return Page(rows[:limit], _encoded(cursor(rows[limit - 1])) if more else None)


def _encoded(cursor: str) -> str:
    return base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> tuple[str, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        moment, last = text.split(" ")
    except (ValueError, binascii.Error) as error:
        raise wrong(cursor) from error
    return moment, last


def wrong(cursor: str) -> SpecError:
    """A cursor that no page gave."""
    return SpecError(
        f"{cursor!r} is no place in this list.",
        kept="nothing was changed.",
        hint="pass what the page before gave as `next`.",
    )
