"""Pages of a list: newest first, and stable while rows are added."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import SpecError

R = TypeVar("R")


@dataclass(frozen=True)
class Window:
    """The requested part of a list; `starting_after` is `Page.next` of the previous page."""

    limit: int = 50
    starting_after: str | None = None


FIRST = Window()


@dataclass(frozen=True)
class Page(Generic[R]):
    """One page of rows."""

    rows: list[R]
    next: str | None = None  # the cursor of the next page (``starting_after``); None on the last page


async def by_time(session: AsyncSession, query: Select[R], time: Any, key: Any, window: Window) -> Page[R]:
    """One page of `query`, ordered by a time column and then an id column, newest first."""
    if window.starting_after is not None:
        query = query.where(tuple_(time, key) < tuple_(*_decoded(window.starting_after)))
    rows = list(await session.scalars(query.order_by(time.desc(), key.desc()).limit(window.limit + 1)))
    return cut(rows, window, lambda row: _encoded(f"{getattr(row, time.key).isoformat()} {getattr(row, key.key)}"))


async def by_number(session: AsyncSession, query: Select[R], number: Any, window: Window) -> Page[R]:
    """One page of `query`, ordered by a number column, largest first."""
    if window.starting_after is not None:
        if not (window.starting_after.isdecimal() and len(window.starting_after) < 19):
            raise invalid_cursor(window.starting_after)
        query = query.where(number < int(window.starting_after))
    rows = list(await session.scalars(query.order_by(number.desc()).limit(window.limit + 1)))
    return cut(rows, window, lambda row: str(getattr(row, number.key)))


def cut(rows: list[R], window: Window, cursor: Callable[[R], str]) -> Page[R]:
    """The page of `rows`, which were read with the limit `window.limit + 1`: an extra row shows that pages follow.

    `cursor` computes the cursor of a row; the page's last row determines `Page.next`.
    """
    more = len(rows) > window.limit
    return Page(rows[: window.limit], cursor(rows[window.limit - 1]) if more else None)


def _encoded(cursor: str) -> str:
    return base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> tuple[datetime, str]:
    try:
        moment, last = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(" ")
        at = datetime.fromisoformat(moment)
        if at.tzinfo is None:
            raise ValueError("a time needs its zone")
        return at.astimezone(UTC), last
    except (ValueError, OverflowError) as error:
        raise invalid_cursor(cursor) from error


def invalid_cursor(cursor: str) -> SpecError:
    """The error for a `starting_after` that is not a cursor of an earlier page."""
    return SpecError(
        f"{cursor!r} is not a valid cursor of this list.",
        kept="nothing was changed.",
        hint="pass `next` of the previous page.",
    )
