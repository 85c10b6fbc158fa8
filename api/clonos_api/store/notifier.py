"""Wakes who waits in this process: readers of events, and agents that long-poll for work.

A commit of this replica wakes at once; those of others are seen by `watch`, which looks each 250 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StoreAway
from clonos_api.store.tables import AgentRow, EventRow

if TYPE_CHECKING:
    from clonos_api.store.database import Database

_WAKES: Final = "clonos.wakes"
_LOOK_S: Final = 0.25
_EVENTS: Final = ""  # no agent has this id


def wakes(session: AsyncSession, revision: int, agent: str = _EVENTS) -> None:
    """Have this transaction's commit tell that the agent's work, or without one the newest event, is at `revision`."""
    told: dict[str, int] = session.info.setdefault(_WAKES, {})
    told[agent] = max(revision, told.get(agent, 0))


def wakes_somebody(session: AsyncSession) -> bool:
    """Whether this transaction's commit has anything to tell."""
    return bool(session.info.get(_WAKES))


class Notifier:
    """The newest event and each agent's newest work, as far as this process knows.

    Attributes:
        seq: Of the newest event.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}

    @property
    def seq(self) -> int:
        """Of the newest event."""
        return self._known.get(_EVENTS, 0)

    async def wait_event(self, after: int, timeout_s: float) -> int:
        """Wait until there is an event after `after`, but not for longer; the newest `seq` that is known."""
        return await self._wait(_EVENTS, lambda known: known > after, timeout_s)

    async def wait_work(self, agent: str, after: int, timeout_s: float) -> int:
        """Wait until the revision of the agent's work is known to be another one; 0 as long as none is known."""
        return await self._wait(agent, lambda known: known not in (0, after), timeout_s)

    async def watch(self, database: Database) -> None:
        """Look for what other replicas have committed, until cancelled."""
        while True:
            with contextlib.suppress(StoreAway):
                async with database.reading() as session:
                    newest = (await session.execute(select(func.max(EventRow.seq)))).scalar()
                    agents = (await session.execute(select(AgentRow.id, AgentRow.revision))).all()
                self._take({_EVENTS: newest or 0, **dict(agents)})
            await asyncio.sleep(_LOOK_S)

    def told(self, info: dict[Any, Any]) -> None:
        """Take in what a transaction that has committed left in its `info`."""
        self._take(info.pop(_WAKES, {}))

    def _take(self, told: dict[str, int]) -> None:
        for key, revision in told.items():
            if revision > self._known.get(key, 0):
                self._known[key] = revision
                if key in self._changed:
                    self._changed.pop(key).set()

    async def _wait(self, key: str, enough: Callable[[int], bool], timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not enough(self._known.get(key, 0)):
                    await self._changed.setdefault(key, asyncio.Event()).wait()
        return self._known.get(key, 0)
