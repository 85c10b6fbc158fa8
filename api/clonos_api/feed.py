"""The newest events, read once for all streams of this replica; and who follows which log.

A stream that waits costs its memory and nothing else: one task reads what is new, keeps the newest events, and wakes
the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from clonos.errors import StoreAway
from clonos.resources.service import Event
from clonos_api.lookups import ends_of_logs
from clonos_api.sse import encode
from clonos_api.store import events
from clonos_api.store.database import Database
from clonos_api.store.tables import EventRow
from clonos_api.views import event

_KEPT: Final = 2_000
_READ: Final = 500
_WAIT_S: Final = 30.0
_AWAY_S: Final = 0.5
_LOOK_S: Final = 0.25
# A log's pieces get their numbers before they are committed: one that comes late is found when its follower looks
# again.
_LOOK_AGAIN_S: Final = 5.0


@dataclass(frozen=True)
class Wanted:
    """Which events a stream gets: of one job, of some types, or all.

    Attributes:
        types: Whole types (``job.state``) or their first parts (``job``).
    """

    job: str | None = None
    types: Collection[str] = ()

    def __contains__(self, one: Event) -> bool:
        """Whether the stream gets it."""
        if self.job is not None and one.job != self.job:
            return False
        return not self.types or one.type in self.types or one.type.partition(".")[0] in self.types


@dataclass(frozen=True, slots=True)
class Told:
    """An event as streams send it: written once, however many there are."""

    event: Event
    written: bytes

    @classmethod
    def of(cls, row: EventRow) -> Told:
        """A row of the store."""
        one = event(row)
        return cls(one, encode(one.model_dump_json(), event=one.type, number=one.seq))


class _Bell:
    """Wakes all who wait for it at this moment."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def wait(self, timeout_s: float) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # Not wait_for: it would cancel what others wait for.
        await asyncio.wait((self._next,), timeout=timeout_s)


class EventFeed:
    """The newest events.

    Args:
        database: Where they are.
        kept: So many are kept in memory.
        hear: Told of each before the streams are.

    Attributes:
        newest: Number of the newest event; a stream that names no other place starts after it.
        closed: The service ends: streams end too.
    """

    def __init__(self, database: Database, *, kept: int = _KEPT, hear: Callable[[Event], None] | None = None) -> None:
        self.newest = 0
        self.closed = False
        self._database = database
        self._hear = hear
        self._kept: deque[Told] = deque(maxlen=kept)
        self._complete_after = 0  # everything after this number is in `_kept`
        self._bell = _Bell()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Read what is new, until cancelled."""
        await while_away(self._start)
        while True:
            told = await self._database.notifier.wait_event(self.newest, _WAIT_S)
            await while_away(partial(self._read, told))

    async def started(self) -> None:
        """Wait until `newest` is known."""
        await self._started.wait()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._started.set()
        self._bell.ring()

    def wake(self) -> None:
        """Have all streams look whether they are over."""
        self._bell.ring()

    async def wait(self, after: int, timeout_s: float) -> bool:
        """Wait for an event after number `after`; whether there is one."""
        if self.newest <= after and not self.closed:
            await self._bell.wait(timeout_s)
        return self.newest > after

    async def after(self, seq: int, wanted: Wanted) -> tuple[list[Told], int]:
        """Events after number `seq`, oldest first, and the number after which to go on.

        Raises:
            StoreAway: They are not in memory any more, and the database does not answer.
        """
        if seq >= self._complete_after:
            return [one for one in self._kept_after(seq) if one.event in wanted], max(seq, self.newest)
        known = self.newest  # committed before we read, and so is everything before it
        async with self._database.reading() as session:
            found = [Told.of(row) for row in await events.after(session, seq, job=wanted.job, limit=_READ)]
        end = found[-1].event.seq if len(found) == _READ else max(seq, known, *(one.event.seq for one in found))
        return [one for one in found if one.event in wanted], end

    def _kept_after(self, seq: int) -> list[Told]:
        """Most streams are near the end: that is where to look."""
        return list(itertools.takewhile(lambda one: one.event.seq > seq, reversed(self._kept)))[::-1]

    async def _start(self) -> None:
        async with self._database.reading() as session:
            _, self.newest = await events.bounds(session)
        self._complete_after = self.newest
        self._started.set()

    async def _read(self, told: int) -> None:
        async with self._database.reading() as session:
            rows = await events.after(session, self.newest, limit=_READ)
        for row in rows:
            if len(self._kept) == self._kept.maxlen:
                self._complete_after = self._kept[0].event.seq
            self._kept.append(Told.of(row))
            if self._hear is not None:
                self._hear(self._kept[-1].event)
        # Numbers up to `told` that are not among a short answer will never be: retention dropped them.
        self.newest = rows[-1].seq if len(rows) == _READ else max(self.newest, told, *(row.seq for row in rows))
        self._bell.ring()


@dataclass
class _Followed:
    end: int = 0
    turn: int = 0
    followers: int = 0
    bell: _Bell = field(default_factory=_Bell)

    def ring(self) -> None:
        self.turn += 1
        self.bell.ring()


class LogWatch:
    """Wakes the followers of a job's log when it has grown, also through another replica."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: dict[str, _Followed] = {}
        self._asked = asyncio.Event()
        self.closed = False

    async def run(self) -> None:
        """Look for new lines as long as somebody follows, until cancelled."""
        while True:
            await self._asked.wait()
            await while_away(self._look)
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Wake all followers for good."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        """Have all followers look whether they are over."""
        for one in self._jobs.values():
            one.ring()

    def grown(self, job: str) -> None:
        """This replica has just taken lines of the job's log."""
        if job in self._jobs:
            self._jobs[job].ring()

    @contextlib.contextmanager
    def following(self, job: str) -> Iterator[Callable[[float], Awaitable[None]]]:
        """Follow a job's log: read, then await what this gives until there may be more, and so on."""
        followed = self._jobs.setdefault(job, _Followed())
        followed.followers += 1
        self._asked.set()
        seen = followed.turn

        async def more(timeout_s: float) -> None:
            nonlocal seen
            if followed.turn == seen and not self.closed:
                await followed.bell.wait(min(timeout_s, _LOOK_AGAIN_S))
            seen = followed.turn

        try:
            yield more
        finally:
            followed.followers -= 1
            if not followed.followers:
                del self._jobs[job]

    async def _look(self) -> None:
        if not self._jobs:
            self._asked.clear()
            return
        async with self._database.reading() as session:
            ends = await ends_of_logs(session, list(self._jobs))
        for job, end in ends.items():
            if job in self._jobs and end > self._jobs[job].end:
                self._jobs[job].end = end
                self._jobs[job].ring()


async def while_away(work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`; again and again while the database is away."""
    told = False
    while True:
        try:
            return await work()
        except StoreAway as error:
            if not told:
                structlog.get_logger("clonos.api").warning("The database does not answer; trying on", error=error.what)
            told = True
        await asyncio.sleep(_AWAY_S)
