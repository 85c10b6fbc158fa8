"""Reads a job's log as entries, all or those that a filter requests. The parser is `clonos.telemetry.log_entries`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import LogLines
from clonos.telemetry.log_entries import LogEntry, LogFilter, LogParser, joined
from clonos_api.store import logs
from clonos_api.store.tables import StandbyRow

# Lines parsed between two yields to the event loop: heartbeats must not wait for a whole log.
_AT_ONCE: Final = 100
# A request that has searched this number of lines, or for this duration, returns the entries that it has.
_SEARCHED: Final = 50_000
_SEARCH_S: Final = 2.0


@dataclass
class _Group:
    """An entry, its lines as they were written, and the cursor after them."""

    entry: LogEntry
    lines: list[str]
    next: str


class LogReader:
    """Reads one job's log, part after part.

    Args:
        job: Id of the job.
        requested: Only these entries.
        parsed: Return entries instead of lines.
    """

    def __init__(self, job: str, requested: LogFilter, *, parsed: bool) -> None:
        self._job = job
        self._requested = requested
        self._parsed = parsed
        self._parser = LogParser()

    async def newest(self, session: AsyncSession, count: int, before: str | None = None) -> LogLines:
        """Return the newest `count` lines before the cursor `before`; parsed or filtered, the newest `count` entries.

        After 50,000 lines or 2 s, the search ends with fewer entries. `LogLines.older` is then where it continues.
        """
        if not self._requested and not self._parsed:
            return await logs.tail(session, self._job, count, before)
        deadline = time.monotonic() + _SEARCH_S
        standbys = await self._standbys(session)
        chunks: list[logs.Chunk] = []
        # More than one entry can have: each search comes closer to the start of the log.
        lines = 2 * count + 1000
        while True:
            lines = min(lines, _SEARCHED)
            newest = await logs.newest(session, self._job, lines, before=before, loaded=chunks)
            parser = LogParser(standbys)
            groups = await _groups(parser, newest.lines)
            if before is None:
                self._parser = parser  # `following` continues there
            is_searched = lines >= _SEARCHED or time.monotonic() >= deadline
            older = None
            if newest.more and groups:
                older = groups.pop(0).next  # its first line may be missing
            matching = self._matching(groups)
            if not newest.more or len(matching) >= count or is_searched:
                older = older if len(matching) < count else None
                return self._part(matching[-count:] if count else [], newest.next, older=older)
            lines = 4 * lines

    async def following(self, session: AsyncSession, after: str, limit: int) -> LogLines:
        """About `limit` lines or entries after the cursor `after`, oldest first; fewer if they are long.

        An entry is not split where more lines are stored. The newest entry may get lines later: these come as an entry
        of their own, with the same time and level. After 50,000 lines or 2 s, the search ends, perhaps without an
        entry; `LogLines.more` says whether it continues at `LogLines.next`.
        """
        if not self._requested and not self._parsed:
            return await logs.read(session, self._job, after, limit)
        deadline = time.monotonic() + _SEARCH_S
        self._parser.standbys = await self._standbys(session)
        chunks: list[logs.Chunk] = []
        matching: list[_Group] = []
        searched = size = 0
        while True:
            page = await logs.following(session, self._job, after, limit, loaded=chunks)
            groups = await _groups(self._parser, page.lines)
            after = page.next
            if page.more and len(groups) > 1:
                groups.pop()  # the next page may continue it
                after = groups[-1].next
            new = self._matching(groups)
            matching += new
            searched += len(page.lines)
            size += sum(len(line) for group in new for line in group.lines)
            is_full = len(matching) >= limit or size >= logs.PAGE_CHARACTERS
            if not page.more or is_full or searched >= _SEARCHED or time.monotonic() >= deadline:
                return self._part(matching, after, more=page.more)

    async def _standbys(self, session: AsyncSession) -> frozenset[str]:
        return frozenset(await session.scalars(select(StandbyRow.id).where(StandbyRow.job == self._job)))

    def _matching(self, groups: Sequence[_Group]) -> list[_Group]:
        return [group for group in groups if self._requested.matches(group.entry, group.lines)]

    def _part(self, groups: Sequence[_Group], cursor: str, *, more: bool = False, older: str | None = None) -> LogLines:
        entries = [group.entry for group in groups] if self._parsed else []
        lines = [] if self._parsed else [line for group in groups for line in group.lines]
        return LogLines(lines=lines, next=cursor, entries=entries, more=more, older=older)


async def _groups(parser: LogParser, lines: Sequence[logs.Line]) -> list[_Group]:
    groups: list[_Group] = []
    for number, line in enumerate(lines):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        entry, continues = parser.add(line.run, line.text)
        if continues and groups and groups[-1].entry.run == line.run:
            last = groups[-1]
            last.entry, last.next = joined(last.entry, entry), line.next
            last.lines.append(line.text)
        else:
            groups.append(_Group(entry, [line.text], line.next))
    return groups
