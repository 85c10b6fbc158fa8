"""Pages of a list: in a fixed order, mostly newest first, and stable while rows are added."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import BigInteger, Select, literal, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import SpecError

R = TypeVar("R")

# The cursors of each order. OpenAPI has these patterns, so every text that matches one is a position.
TIME_CURSOR: Final = r"^[0-9]{1,16}\.[A-Za-z0-9-]{1,100}$"  # microseconds and an id
NUMBER_CURSOR: Final = r"^[0-9]{1,18}$"
GENERATION_CURSOR: Final = r"^[0-9]{1,9}\.[0-9]{1,9}$"  # lineage and generation
NAME_CURSOR: Final = r"^[A-Za-z0-9._/-]{1,100}$"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


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
    return cut(rows, window, lambda row: _encoded(getattr(row, time.key), getattr(row, key.key)))


async def by_number(session: AsyncSession, query: Select[R], number: Any, window: Window) -> Page[R]:
    """One page of `query`, ordered by a number column, largest first."""
    if window.starting_after is not None:
        check_cursor(window.starting_after, NUMBER_CURSOR)
        # Wider than the column may be: a cursor can be any number that its pattern allows.
        query = query.where(number < literal(int(window.starting_after), BigInteger))
    rows = list(await session.scalars(query.order_by(number.desc()).limit(window.limit + 1)))
    return cut(rows, window, lambda row: str(getattr(row, number.key)))


def cut(rows: list[R], window: Window, cursor: Callable[[R], str]) -> Page[R]:
    """Return the page of `rows`, which were read with the limit `window.limit + 1`: an extra row shows that pages
    follow.

    `cursor` computes the cursor of a row; the page's last row determines `Page.next`.
    """
    more = len(rows) > window.limit
    return Page(rows[: window.limit], cursor(rows[window.limit - 1]) if more else None)


def by_name(rows: Sequence[R], name: Callable[[R], str], window: Window) -> Page[R]:
    """One page of `rows`, a complete list whose names differ, ordered by name."""
    after = window.starting_after or ""
    ordered = sorted((row for row in rows if name(row) > after), key=name)
    return cut(ordered[: window.limit + 1], window, name)


def _encoded(moment: datetime, key: str) -> str:
    return f"{(moment - _EPOCH) // _MICROSECOND}.{key}"


def _decoded(cursor: str) -> tuple[datetime, str]:
    check_cursor(cursor, TIME_CURSOR)
    microseconds, _, key = cursor.partition(".")
    return _EPOCH + timedelta(microseconds=int(microseconds)), key


def check_cursor(cursor: str, pattern: str) -> None:
    """Raise `SpecError` if a `starting_after` is not a cursor of a list with this order."""
    if not re.fullmatch(pattern, cursor):
        raise SpecError(
            f"{cursor!r} is not a valid cursor of this list.",
            kept="nothing was changed.",
            hint="pass `next` of the previous page.",
        )
