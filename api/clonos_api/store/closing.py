"""What a transaction does last, right before its commit: the leader's token is checked, then events get their numbers.

Both must be as close to the commit as they can be. `store.lease` and `store.events` leave here what is to be done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

ACTOR: Final = "clonos.actor"
_LAST: Final = "clonos.last"

Last = Callable[[AsyncSession], Awaitable[None]]


def at_the_end(session: AsyncSession, order: int, last: Last) -> None:
    """Have `last` called before the commit, by its `order`; once, however often it is asked for."""
    asked: dict[int, Last] = session.info.setdefault(_LAST, {})
    asked.setdefault(order, last)


async def close(session: AsyncSession) -> None:
    """Do what is to be done last."""
    asked: dict[int, Any] = session.info.pop(_LAST, {})
    for order in sorted(asked):
        await asked[order](session)
