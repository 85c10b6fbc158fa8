"""The log text of drivers, stored in the chunks that agents push. Byte offsets make pushes repeatable.

An agent sends text: it replaces a byte that is not UTF-8 by ``?``, so that both sides count the same bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError, NotFound, SpecError
from clonos.resources.hosts import LogBatch
from clonos.resources.jobs import LogLines
from clonos.telemetry.driver_events import storable
from clonos.telemetry.redaction import redact_text
from clonos_api.store.db.bulk import insert_all
from clonos_api.store.pushed import Locked
from clonos_api.store.tables import LogChunkRow

CURSOR: Final = r"^[0-9]{1,18}:[0-9]{1,18}$"
KEPT_BYTES: Final = 4 * 1024 * 1024  # of one run; retention applies the same limit to all runs of a job
_TRIM_BYTES: Final = KEPT_BYTES // 8
_LINE: Final = 65_536  # longer lines are returned in pieces
PAGE_CHARACTERS: Final = 256 * 1024  # a page with more ends after the line that reaches it
_CHUNKS: Final = 4  # loaded at once; while the newest lines are searched, as many as are loaded already
_AT_ONCE: Final = 1000  # lines built between two yields to the event loop
_CHUNK: Final = select(LogChunkRow.seq, LogChunkRow.run, LogChunkRow.text)


async def push_all(session: AsyncSession, locked: Locked, pieces: Sequence[LogBatch]) -> list[int | ClonosError]:
    """Store pushed log text of several runs, at most one batch per run. An invalid batch does not affect the others.

    `locked` has the rows of these runs. Returns for each batch the byte at which the run's next batch must begin, or
    the error. Text that is stored already is skipped. A batch after missing bytes is ignored, unless its `gap` says
    that they are lost.
    """
    ends: list[int | ClonosError] = []
    chunks, long = [], []
    for piece in pieces:
        await asyncio.sleep(0)  # as in `epochs.ingest_all`
        run = locked.runs.get(piece.run)
        if run is None:
            ends.append(NotFound(f"There is no run {piece.run}."))
            continue
        have, sent = run.log_offset, piece.text.encode("utf-8", "surrogatepass")
        end = piece.offset + len(sent)
        if end <= have or (piece.offset > have and not piece.gap):
            ends.append(have)
            continue
        ends.append(end)
        start = max(have, piece.offset)
        if end > start:
            fresh = redact_text(storable(sent[start - piece.offset :].decode("utf-8", "replace")))
            chunks.append({"job": run.job, "run": run.id, "offset": start, "size": end - start, "text": fresh})
        run.log_offset, run.changed = end, True
        if end // _TRIM_BYTES != have // _TRIM_BYTES:
            long.append((run, end))
    await insert_all(session, LogChunkRow, chunks)
    for run, end in long:
        old = delete(LogChunkRow).where(
            LogChunkRow.job == run.job, LogChunkRow.run == run.id, LogChunkRow.offset < end - KEPT_BYTES
        )
        await session.execute(old.execution_options(synchronize_session=False))
    return ends


class Line(NamedTuple):
    """A line of a log, the run that wrote it, and the cursor after it."""

    run: str
    text: str
    next: str


class Lines(NamedTuple):
    """Consecutive lines of a log."""

    lines: list[Line]  # oldest first
    next: str  # cursor after them
    more: bool  # more lines are stored: of `newest` older ones, of `following` newer ones


class Chunk(NamedTuple):
    """A chunk of a log, or its beginning."""

    seq: int
    run: str
    text: str


async def tail(session: AsyncSession, job: str, lines: int, before: str | None = None) -> LogLines:
    """Return the last `lines` lines of the log of a job's drivers, or of its part before the cursor `before`."""
    newest_lines = await newest(session, job, lines, before=before)
    return LogLines(lines=[line.text for line in newest_lines.lines], next=newest_lines.next)


async def read(session: AsyncSession, job: str, after: str, limit: int = 1000) -> LogLines:
    """Up to `limit` lines of a job's log after the cursor `after`, as `following` reads them."""
    lines = await following(session, job, after, limit)
    return LogLines(lines=[line.text for line in lines.lines], next=lines.next, more=lines.more)


async def newest(
    session: AsyncSession, job: str, count: int, *, before: str | None = None, loaded: list[Chunk] | None = None
) -> Lines:
    """Return the last `count` lines of the log of a job's drivers, each with its run.

    Args:
        session: Session of the database.
        job: Id of the job.
        count: Number of lines.
        before: Only lines before this cursor.
        loaded: Chunks that an earlier call with the same `before` has loaded, newest first; the call adds those that it
            loads.
    """
    chunks = [] if loaded is None else loaded
    newlines = sum(chunk.text.count("\n") for chunk in chunks)
    seq, at = (None, 0) if before is None else _position(before)
    query = _CHUNK.where(LogChunkRow.job == job).order_by(LogChunkRow.seq.desc())
    while newlines <= count:
        older = query if seq is None else query.where(LogChunkRow.seq <= seq)
        older = query.where(LogChunkRow.seq < chunks[-1].seq) if chunks else older
        more = [Chunk(*row) for row in await session.execute(older.limit(max(_CHUNKS, len(chunks))))]
        if not chunks and more and more[0].seq == seq:
            more[0] = more[0]._replace(text=more[0].text[:at])
        if not more:
            break
        chunks += more
        newlines += sum(chunk.text.count("\n") for chunk in more)
    # Lines before the last `count` ones are not built: a chunk may have a line for each of its characters.
    first, start, missing = len(chunks) - 1, 0, count + 1
    for number, chunk in enumerate(chunks):
        contained = chunk.text.count("\n")
        if contained >= missing:
            first, start = number, _after_newline(chunk.text, missing)
            break
        missing -= contained
    lines, cursor, _ = await _lines(chunks[first::-1], start)
    return Lines(lines[-count:] if count else [], cursor, newlines > count or len(lines) > count)


async def following(
    session: AsyncSession, job: str, after: str, limit: int = 1000, *, loaded: list[Chunk] | None = None
) -> Lines:
    """Lines of a job's log after the cursor `after` (`LogLines.next`), oldest first, without lines that retention has
    removed: up to `limit` lines, or about 256 Ki characters.

    `loaded` has chunks that an earlier call with an earlier cursor has loaded, oldest first. The call removes those
    before `after` and adds those that it loads.
    """
    seq, at = _position(after)
    chunks = [] if loaded is None else loaded
    chunks[:] = [chunk for chunk in chunks if chunk.seq >= seq]
    query = _CHUNK.where(LogChunkRow.job == job).order_by(LogChunkRow.seq)
    more = True
    while more and not _is_page(chunks, at if chunks and chunks[0].seq == seq else 0, limit):
        newer = query.where(LogChunkRow.seq > chunks[-1].seq if chunks else LogChunkRow.seq >= seq)
        rows = [Chunk(*row) for row in await session.execute(newer.limit(_CHUNKS))]
        more = bool(rows)
        chunks += rows
    at = at if chunks and chunks[0].seq == seq else 0
    lines, cursor, is_full = await _lines(chunks, at, limit=limit)
    return Lines(lines, cursor if chunks else after, more or is_full)


def _is_page(chunks: Sequence[Chunk], at: int, limit: int) -> bool:
    """Whether the chunks have enough text for a page from character `at` of the first one."""
    newlines = sum(chunk.text.count("\n", 0 if number else at) for number, chunk in enumerate(chunks))
    return newlines >= limit or sum(len(chunk.text) for chunk in chunks) - at >= PAGE_CHARACTERS


def _after_newline(text: str, number: int) -> int:
    """Position after the newline that is the `number`-th from the end of `text`."""
    position = len(text)
    for _ in range(number):
        position = text.rindex("\n", 0, position)
    return position + 1


async def _lines(chunks: Sequence[Chunk], at: int, *, limit: int | None = None) -> tuple[list[Line], str, bool]:
    """Complete lines from character `at` of the first chunk, the cursor after them, and whether they fill a page.

    An incomplete line is left for later, unless the next chunk is of another run or the line is very long.
    Without `limit`, the lines of all chunks.
    """
    lines: list[Line] = []
    size = 0
    cursor, part = f"{chunks[0].seq}:{at}" if chunks else "0:0", ""

    def is_full() -> bool:
        return limit is not None and (len(lines) >= limit or size >= PAGE_CHARACTERS)

    for number, chunk in enumerate(chunks):
        text, position = chunk.text, at if number == 0 else 0
        if part and number and chunks[number - 1].run != chunk.run:
            cursor = f"{chunk.seq}:0"
            lines.append(Line(chunks[number - 1].run, part, cursor))
            size += len(part)
            part = ""
        while not is_full():
            end = text.find("\n", position)
            if end < 0:
                part += text[position:]
                if len(part) > _LINE:
                    cursor = f"{chunk.seq}:{len(text)}"
                    lines.append(Line(chunk.run, part, cursor))
                    size += len(part)
                    part = ""
                break
            cursor = f"{chunk.seq}:{end + 1}"
            lines.append(Line(chunk.run, part + text[position:end], cursor))
            size += len(part) + end - position
            part, position = "", end + 1
            if len(lines) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        else:
            return lines, cursor, True
    return lines, cursor, is_full()


def _position(after: str) -> tuple[int, int]:
    if not re.fullmatch(CURSOR, after):
        raise SpecError(
            f"{after!r} is not a valid cursor of a log.",
            kept="nothing was changed.",
            hint="pass `next` of the previous page.",
        )
    seq, _, at = after.partition(":")
    return int(seq), int(at)
