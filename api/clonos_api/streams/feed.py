"""The newest events in memory, read from the database once for all streams of this replica; and the followers of
job logs.

One task reads new events, keeps the newest ones in memory and wakes the streams. A waiting stream costs only memory.
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
from fastapi.sse import format_sse_event

from clonos.errors import DatabaseUnavailable
from clonos.resources.service import Event
from clonos_api.store import events
from clonos_api.store.db.database import Database
from clonos_api.store.event_views import EventViews
from clonos_api.store.lookups import ends_of_logs

_CAPACITY: Final = 2_000
_READ: Final = 500
_WAIT_S: Final = 30.0
_RETRY_S: Final = 0.5
_POLL_S: Final = 0.25
# Pieces of a log get their numbers before they are committed: a late one is read at the next look.
_MAX_WAIT_S: Final = 5.0


@dataclass(frozen=True)
class EventFilter:
    """Selects the events of a stream: of one job (None: all jobs), and of some types (empty: all types)."""

    job: str | None = None
    types: Collection[str] = ()  # event types (``job.state``) or their first parts (``job``)

    def __contains__(self, event: Event) -> bool:
        """Whether the filter selects an event."""
        if self.job is not None and event.job != self.job:
            return False
        return not self.types or event.type in self.types or event.type.partition(".")[0] in self.types


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event with its encoding as a server-sent event, computed once for all streams."""

    event: Event
    encoded: bytes

    @classmethod
    def of(cls, event: Event) -> EncodedEvent:
        """Encode an event as a server-sent event, with its JSON as ``data`` and its number as ``id``."""
        return cls(event, format_sse_event(data_str=event.model_dump_json(), event=event.type, id=str(event.seq)))


class _Bell:
    """Wakes all current waiters."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def wait(self, timeout_s: float) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # Not wait_for: it would cancel the future of the other waiters.
        await asyncio.wait((self._next,), timeout=timeout_s)


class EventFeed:
    """Keeps at most `capacity` of the newest events in memory, and wakes the streams of this replica when there
    are new ones.

    `on_event` is called with each event before the streams are woken.
    """

    def __init__(
        self, database: Database, *, capacity: int = _CAPACITY, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self.newest = 0  # number of the newest event; by default, streams start after it
        self.closed = False  # the service is stopping; streams end
        self._database = database
        self._views = EventViews()
        self._on_event = on_event
        self._recent: deque[EncodedEvent] = deque(maxlen=capacity)
        self._complete_after = 0  # `_recent` has all events after this number
        self._bell = _Bell()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Read new events from the database until cancelled."""
        await retry_until_available(self._start)
        while True:
            announced = await self._database.notifier.wait_event(self.newest, _WAIT_S)
            await retry_until_available(partial(self._read, announced))

    async def started(self) -> None:
        """Wait until `newest`, the number of the newest event, is loaded from the database."""
        await self._started.wait()

    def close(self) -> None:
        """End all event streams, because the service stops."""
        self.closed = True
        self._started.set()
        self._bell.ring()

    def wake(self) -> None:
        """Wakes all event streams, so that each checks whether it must end."""
        self._bell.ring()

    async def wait(self, after: int, timeout_s: float) -> bool:
        """Wait for an event after number `after`, at most `timeout_s` seconds; return whether there is one."""
        if self.newest <= after and not self.closed:
            await self._bell.wait(timeout_s)
        return self.newest > after

    async def after(self, seq: int, selected: EventFilter) -> tuple[list[EncodedEvent], int]:
        """Return events after number `seq`, oldest first, and the number to continue after."""
        if seq >= self._complete_after:
            return [entry for entry in self._recent_after(seq) if entry.event in selected], max(seq, self.newest)
        committed = self.newest  # this event and all before it are committed before the read
        async with self._database.reading() as session:
            rows = await events.after(session, seq, job=selected.job, limit=_READ)
            page = [EncodedEvent.of(event) for event in await self._views.of(session, rows)]
        end = page[-1].event.seq if len(page) == _READ else max(seq, committed, *(entry.event.seq for entry in page))
        return [entry for entry in page if entry.event in selected], end

    def _recent_after(self, seq: int) -> list[EncodedEvent]:
        """Search from the end, because most streams are near it."""
        return list(itertools.takewhile(lambda entry: entry.event.seq > seq, reversed(self._recent)))[::-1]

    async def _start(self) -> None:
        async with self._database.reading() as session:
            _, self.newest = await events.bounds(session)
        self._complete_after = self.newest
        self._started.set()

    async def _read(self, announced: int) -> None:
        async with self._database.reading() as session:
            rows = await events.after(session, self.newest, limit=_READ)
            new = await self._views.of(session, rows)
        for event in new:
            if len(self._recent) == self._recent.maxlen:
                self._complete_after = self._recent[0].event.seq
            self._recent.append(EncodedEvent.of(event))
            if self._on_event is not None:
                self._on_event(event)
        # Numbers up to `announced` that a short page does not have were removed by retention.
        self.newest = rows[-1].seq if len(rows) == _READ else max(self.newest, announced, *(row.seq for row in rows))
        self._bell.ring()


@dataclass
class _Followed:
    end: int = 0
    version: int = 0
    followers: int = 0
    bell: _Bell = field(default_factory=_Bell)

    def ring(self) -> None:
        self.version += 1
        self.bell.ring()


class LogWatch:
    """Wakes the requests that follow a job's log when the log grows, also if another replica stored the lines."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: dict[str, _Followed] = {}
        self._followed = asyncio.Event()
        self.closed = False

    async def run(self) -> None:
        """Poll the database for new lines of the logs that requests follow, until cancelled."""
        while True:
            await self._followed.wait()
            await retry_until_available(self._poll)
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """End all requests that follow a log, because the service stops."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        """Wakes all requests that follow a log, so that each checks whether it must end."""
        for followed in self._jobs.values():
            followed.ring()

    def grown(self, job: str) -> None:
        """Wakes the requests that follow the job's log, after this replica has stored new lines."""
        if job in self._jobs:
            self._jobs[job].ring()

    @contextlib.contextmanager
    def following(self, job: str) -> Iterator[Callable[[float], Awaitable[None]]]:
        """Register a request that follows a job's log, inside the context.

        The request repeatedly reads the log, then awaits the yielded function: it returns when there may be more lines,
        or after its argument, a timeout in seconds.
        """
        followed = self._jobs.setdefault(job, _Followed())
        followed.followers += 1
        self._followed.set()
        seen = followed.version

        async def more(timeout_s: float) -> None:
            nonlocal seen
            if followed.version == seen and not self.closed:
                await followed.bell.wait(min(timeout_s, _MAX_WAIT_S))
            seen = followed.version

        try:
            yield more
        finally:
            followed.followers -= 1
            if not followed.followers:
                del self._jobs[job]

    async def _poll(self) -> None:
        if not self._jobs:
            self._followed.clear()
            return
        async with self._database.reading() as session:
            ends = await ends_of_logs(session, list(self._jobs))
        for job, end in ends.items():
            if job in self._jobs and end > self._jobs[job].end:
                self._jobs[job].end = end
                self._jobs[job].ring()


async def retry_until_available(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and repeat it while the database is unavailable."""
    logged = False
    while True:
        try:
            return await work()
        except DatabaseUnavailable as error:
            if not logged:
                structlog.get_logger("clonos.api").warning("The database is unavailable; retrying", error=error.what)
            logged = True
        await asyncio.sleep(_RETRY_S)
