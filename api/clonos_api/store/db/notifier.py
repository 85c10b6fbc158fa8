"""Wakes the waiting requests of this process: event streams, and agents that long-poll for work.

A commit of this replica wakes them at once. `Database.watch_commits` reports the commits of other replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

_NOTIFICATIONS: Final = "clonos.notifications"
EVENTS: Final = ""  # the key of the newest event; no host has this id


def notify(session: AsyncSession, revision: int, host: str = EVENTS) -> None:
    """When this transaction commits, wake the requests that wait for new events, or for the work of `host` (id).

    `revision` is the number of the newest event, or the host's work revision.
    """
    revisions: dict[str, int] = session.info.setdefault(_NOTIFICATIONS, {})
    revisions[host] = max(revision, revisions.get(host, 0))


def has_notifications(session: AsyncSession) -> bool:
    """Whether the commit of this transaction wakes waiting requests."""
    return bool(session.info.get(_NOTIFICATIONS))


class Notifier:
    """Holds the newest event number and the newest work revision of each host, and wakes requests that wait for
    newer ones.
    """

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}

    @property
    def seq(self) -> int:
        """Number of the newest event."""
        return self._newest.get(EVENTS, 0)

    async def wait_event(self, after: int, timeout_s: float) -> int:
        """Wait for an event with a number above `after`, at most `timeout_s` seconds; return the newest number."""
        return await self._wait(EVENTS, lambda newest: newest > after, timeout_s)

    async def wait_work(self, host: str, after: int, timeout_s: float) -> int:
        """Wait until the host's work revision differs from `after`, at most `timeout_s` seconds; return the
        revision, or 0 if this process has seen none.
        """
        return await self._wait(host, lambda newest: newest not in (0, after), timeout_s)

    def committed(self, info: dict[Any, Any]) -> None:
        """Wake the requests that wait for what a transaction has committed; `info` is the ``info`` of its session."""
        self.update(info.pop(_NOTIFICATIONS, {}))

    def update(self, revisions: Mapping[str, int]) -> None:
        """Record newer numbers (host id or `EVENTS` → revision or event number), and wake the requests that wait
        for them.
        """
        for key, revision in revisions.items():
            if revision > self._newest.get(key, 0):
                self._set(key, revision)

    def seen(self) -> dict[str, int]:
        """Return a copy of the numbers that this process has."""
        return dict(self._newest)

    def correct(self, before: Mapping[str, int], current: Mapping[str, int]) -> None:
        """Record the numbers that the database has now, also smaller ones.

        A number below that of `before`, a copy from before the read, shows that the database lost commits: a failover
        led to a server without the newest ones. Requests that wait for newer numbers would otherwise return at once.
        """
        for key, revision in current.items():
            lost_commits = revision < before.get(key, 0)
            if lost_commits and self._newest.get(key) == before.get(key):
                self._set(key, revision)
        self.update(current)

    def _set(self, key: str, revision: int) -> None:
        self._newest[key] = revision
        if key in self._changed:
            self._changed.pop(key).set()

    async def _wait(self, key: str, enough: Callable[[int], bool], timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not enough(self._newest.get(key, 0)):
                    await self._changed.setdefault(key, asyncio.Event()).wait()
        return self._newest.get(key, 0)
