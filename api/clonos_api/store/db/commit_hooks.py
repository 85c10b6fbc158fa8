"""Functions that run right before a transaction's commit: check the leader's fencing token, then number the events;
and what the commit waits for.

Both must happen as close to the commit as possible. `store.lease` and `store.events` register their hooks here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

ACTOR: Final = "clonos.actor"
WAITS_FOR_DISK: Final = "clonos.waits-for-disk"
_HOOKS: Final = "clonos.hooks"

Hook = Callable[[AsyncSession], Awaitable[None]]


def before_commit(session: AsyncSession, position: int, hook: Hook) -> None:
    """Call `hook` right before the commit of this transaction. If the hook raises, the transaction is rolled back.

    Hooks run in ascending order of `position`, a number; a second hook at a position is ignored.
    """
    hooks: dict[int, Hook] = session.info.setdefault(_HOOKS, {})
    hooks.setdefault(position, hook)


def wait_for_disk(session: AsyncSession) -> None:
    """Let the commit of this transaction wait until it is on the disk. `database.Origin` has the default."""
    session.info[WAITS_FOR_DISK] = True


async def run_hooks(session: AsyncSession) -> None:
    """Run the hooks of this transaction. `Database.transaction` calls this after the last flush, before the commit.

    An exception of a hook ends the run, and the transaction is rolled back.
    """
    hooks: dict[int, Any] = session.info.pop(_HOOKS, {})
    for position in sorted(hooks):
        await hooks[position](session)
