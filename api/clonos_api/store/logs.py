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
from clonos.telemetry.redaction import redact_text
from clonos_api.store.db.bulk import insert_all, update_all
from clonos_api.store.ingest import storable
from clonos_api.store.pushed import Locked
from clonos_api.store.tables import LogChunkRow, RunRow

CURSOR: Final = r"^[0-9]{1,18}:[0-9]{1,18}$"
KEPT_BYTES: Final = 4 * 1024 * 1024  # of one run; retention applies the same limit to all runs of a job
_TRIM_BYTES: Final = KEPT_BYTES // 8
_LINE: Final = 65_536  # longer lines are returned in pieces
_CHUNKS: Final = 50


async def push_all(session: AsyncSession, locked: Locked, pieces: Sequence[LogBatch]) -> list[int | ClonosError]:
    """Store pushed log text of several runs, at most one batch per run. An invalid batch does not affect the others.

    `locked` has the rows of these runs. Returns for each batch the byte at which the run's next batch must begin, or
    the error. Text that is stored already is skipped. A batch after missing bytes is ignored, unless its `gap` says
    that they are lost.
    """
    ends: list[int | ClonosError] = []
    chunks, offsets, long = [], [], []
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
        offsets.append({"id": run.id, "log_offset": end})
        if end // _TRIM_BYTES != have // _TRIM_BYTES:
            long.append((run, end))
    await insert_all(session, LogChunkRow, chunks)
    await update_all(session, RunRow, offsets, keys=("id",))
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
    """Consecutive lines of a log.

    Attributes:
        lines: The lines, oldest first.
        next: Cursor after them.
        complete: Of `newest`: no older line is stored.
    """

    lines: list[Line]
    next: str
    complete: bool


async def tail(session: AsyncSession, job: str, lines: int) -> LogLines:
    """The last `lines` lines of the log of a job's drivers."""
    newest_lines = await newest(session, job, lines)
    return LogLines(lines=[line.text for line in newest_lines.lines], next=newest_lines.next)


async def read(session: AsyncSession, job: str, after: str, limit: int = 1000) -> LogLines:
    """Up to `limit` lines of a job's log after the cursor `after`, as `following` reads them."""
    lines = await following(session, job, after, limit)
    return LogLines(lines=[line.text for line in lines.lines], next=lines.next)


async def newest(session: AsyncSession, job: str, count: int) -> Lines:
    """The last `count` lines of the log of a job's drivers, each with its run."""
    query = select(LogChunkRow).where(LogChunkRow.job == job).order_by(LogChunkRow.seq.desc()).limit(_CHUNKS)
    chunks: list[LogChunkRow] = []
    while True:
        older = query.where(LogChunkRow.seq < chunks[-1].seq) if chunks else query
        more = list(await session.scalars(older))
        chunks += more
        if not more or sum(chunk.text.count("\n") for chunk in chunks) > count:
            break
    lines, cursor = _lines(chunks[::-1], 0)
    return Lines(lines[-count:] if count else [], cursor, not more and len(lines) <= count)


async def following(session: AsyncSession, job: str, after: str, limit: int = 1000) -> Lines:
    """Up to `limit` lines of a job's log after the cursor `after` (`LogLines.next`), oldest first, without lines
    that retention has removed.
    """
    seq, at = _position(after)
    query = select(LogChunkRow).where(LogChunkRow.job == job, LogChunkRow.seq >= seq).order_by(LogChunkRow.seq)
    chunks: list[LogChunkRow] = []
    while True:
        newer = query.where(LogChunkRow.seq > chunks[-1].seq) if chunks else query
        more = list(await session.scalars(newer.limit(_CHUNKS)))
        chunks += more
        if not more or sum(chunk.text.count("\n") for chunk in chunks) >= limit:
            break
    at = at if chunks and chunks[0].seq == seq else 0
    lines, cursor = _lines(chunks, at, limit=limit)
    return Lines(lines, cursor if chunks else after, complete=False)


def _lines(chunks: list[LogChunkRow], at: int, *, limit: int | None = None) -> tuple[list[Line], str]:
    """Complete lines from character `at` of the first chunk, and the cursor behind them.

    An incomplete line is left for later, unless the next chunk is of another run or the line is very long.
    """
    lines: list[Line] = []
    cursor, part = f"{chunks[0].seq}:{at}" if chunks else "0:0", ""
    for number, chunk in enumerate(chunks):
        text, position = chunk.text, at if number == 0 else 0
        if part and number and chunks[number - 1].run != chunk.run:
            cursor = f"{chunk.seq}:0"
            lines.append(Line(chunks[number - 1].run, part, cursor))
            part = ""
        while limit is None or len(lines) < limit:
            end = text.find("\n", position)
            if end < 0:
                part += text[position:]
                if len(part) > _LINE:
                    cursor = f"{chunk.seq}:{len(text)}"
                    lines.append(Line(chunk.run, part, cursor))
                    part = ""
                break
            cursor = f"{chunk.seq}:{end + 1}"
            lines.append(Line(chunk.run, part + text[position:end], cursor))
            part, position = "", end + 1
    return lines, cursor


def _position(after: str) -> tuple[int, int]:
    if not re.fullmatch(CURSOR, after):
        raise SpecError(
            f"{after!r} is not a valid cursor of a log.",
            kept="nothing was changed.",
            hint="pass `next` of the previous page.",
        )
    seq, _, at = after.partition(":")
    return int(seq), int(at)
