"""Reads a job's log as entries, all or those that a filter requests. The parser is `clonos.telemetry.log_entries`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import LogLines
from clonos.telemetry.log_entries import LogEntry, LogFilter, LogParser, joined
from clonos_api.store import logs
from clonos_api.store.tables import StandbyRow

# Lines parsed between two yields to the event loop: heartbeats must not wait for a whole log.
_AT_ONCE: Final = 100


class LogPart(NamedTuple):
    """A part of a log, and whether more of it is stored already."""

    part: LogLines
    more: bool


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
        parsed: Return entries in place of lines.
    """

    def __init__(self, job: str, requested: LogFilter, *, parsed: bool) -> None:
        self._job = job
        self._requested = requested
        self._parsed = parsed
        self._parser = LogParser()

    async def newest(self, session: AsyncSession, count: int) -> LogPart:
        """The newest `count` lines; parsed or filtered, the newest `count` entries."""
        if not self._requested and not self._parsed:
            return LogPart(await logs.tail(session, self._job, count), more=False)
        lines = 2 * count
        while True:
            newest = await logs.newest(session, self._job, lines)
            self._parser = LogParser()
            groups = await self._groups(session, newest.lines)
            if not newest.complete:
                groups = groups[1:]  # its first line may be missing
            matching = self._matching(groups)
            if newest.complete or len(matching) >= count:
                return LogPart(self._part(matching[-count:] if count else [], newest.next), more=False)
            lines = 4 * lines + 100

    async def following(self, session: AsyncSession, after: str, limit: int) -> LogPart:
        """About `limit` lines or entries after the cursor `after`, oldest first.

        An entry is not split where more lines are stored. The newest entry may get lines later: these come as an entry
        of their own, with the same time and level.
        """
        if not self._requested and not self._parsed:
            lines = await logs.read(session, self._job, after, limit)
            return LogPart(lines, more=len(lines.lines) >= limit)
        matching: list[_Group] = []
        while len(matching) < limit:
            page = await logs.following(session, self._job, after, limit)
            groups = await self._groups(session, page.lines)
            after = page.next
            more = len(page.lines) >= limit
            if more and len(groups) > 1:
                groups.pop()  # the next page may continue it
                after = groups[-1].next
            matching += self._matching(groups)
            if not more:
                return LogPart(self._part(matching, after), more=False)
        return LogPart(self._part(matching, after), more=True)

    async def _groups(self, session: AsyncSession, lines: Sequence[logs.Line]) -> list[_Group]:
        standbys = await session.scalars(select(StandbyRow.id).where(StandbyRow.job == self._job))
        self._parser.standbys = frozenset(standbys)
        groups: list[_Group] = []
        for number, line in enumerate(lines):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            entry, continues = self._parser.add(line.run, line.text)
            if continues and groups and groups[-1].entry.run == line.run:
                last = groups[-1]
                last.entry, last.next = joined(last.entry, entry), line.next
                last.lines.append(line.text)
            else:
                groups.append(_Group(entry, [line.text], line.next))
        return groups

    def _matching(self, groups: Sequence[_Group]) -> list[_Group]:
        return [group for group in groups if self._requested.matches(group.entry, group.lines)]

    def _part(self, groups: Sequence[_Group], cursor: str) -> LogLines:
        if self._parsed:
            return LogLines(lines=[], next=cursor, entries=[group.entry for group in groups])
        return LogLines(lines=[line for group in groups for line in group.lines], next=cursor)
