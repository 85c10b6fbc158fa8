"""The drivers' log, in chunks as agents push them, by byte offset, so that a push may be repeated.

An agent sends text: a byte that is not UTF-8 goes as ``?``, so that both sides count the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError, NotFound, SpecError
from clonos.redaction import redact_text
from clonos.resources.hosts import LogPiece
from clonos.resources.jobs import LogLines
from clonos_api.store import pushed
from clonos_api.store.bulk import insert_all, update_all
from clonos_api.store.ingest import storable
from clonos_api.store.pushed import Locked
from clonos_api.store.tables import LogChunkRow, RunRow

KEPT_BYTES: Final = 4 * 1024 * 1024  # of one run; retention holds all runs of a job to as much
_TRIM_BYTES: Final = KEPT_BYTES // 8
_LINE: Final = 65_536  # a line that is longer is given in pieces
_CHUNKS: Final = 50


async def push(session: AsyncSession, run: str, offset: int, text: str, *, gap: bool = False) -> int:
    """Take in a piece of a run's log; the byte up to which it is known now. What to send next begins there.

    Args:
        session: A transaction.
        run: Id of the run.
        offset: Byte at which the piece begins, of all that the run ever wrote.
        text: The piece.
        gap: What is between the byte that is known and `offset` is lost on the host: go on here.

    Raises:
        NotFound: There is no such run.
    """
    locked = await pushed.lock(session, logs=[run])
    return pushed.answer((await push_all(session, locked, [LogPiece(run=run, offset=offset, text=text, gap=gap)]))[0])


async def push_all(session: AsyncSession, locked: Locked, pieces: Sequence[LogPiece]) -> list[int | ClonosError]:
    """Take in pieces of several runs' logs, each as `push` does.

    Args:
        session: A transaction.
        locked: The runs.
        pieces: One of a run at the most.
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


async def tail(session: AsyncSession, job: str, lines: int) -> LogLines:
    """The last lines of a job's log."""
    query = select(LogChunkRow).where(LogChunkRow.job == job).order_by(LogChunkRow.seq.desc()).limit(_CHUNKS)
    chunks: list[LogChunkRow] = []
    while True:
        older = query.where(LogChunkRow.seq < chunks[-1].seq) if chunks else query
        more = list(await session.scalars(older))
        chunks += more
        if not more or sum(chunk.text.count("\n") for chunk in chunks) > lines:
            break
    taken, cursor = _lines(chunks[::-1], 0)
    return LogLines(lines=taken[-lines:] if lines else [], next=cursor)


async def read(session: AsyncSession, job: str, after: str, limit: int = 1000) -> LogLines:
    """Lines behind `after` (`LogLines.next`), oldest first; those that retention has dropped are left out.

    Raises:
        SpecError: `after` is no place in a log.
    """
    seq, at = _place(after)
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
    return LogLines(lines=lines, next=cursor or after)


def _lines(chunks: list[LogChunkRow], at: int, *, limit: int | None = None) -> tuple[list[str], str]:
    """Whole lines from character `at` of the first chunk on, and the place behind them.

    A line that has no end yet is left for later, unless another run began meanwhile, or it is very long.
    """
    lines: list[str] = []
    cursor, part = f"{chunks[0].seq}:{at}" if chunks else "0:0", ""
    for number, chunk in enumerate(chunks):
        text, position = chunk.text, at if number == 0 else 0
        if part and number and chunks[number - 1].run != chunk.run:
            lines.append(part)
            part, cursor = "", f"{chunk.seq}:0"
        while limit is None or len(lines) < limit:
            end = text.find("\n", position)
            if end < 0:
                part += text[position:]
                if len(part) > _LINE:
                    lines.append(part)
                    part, cursor = "", f"{chunk.seq}:{len(text)}"
                break
            lines.append(part + text[position:end])
            part, position = "", end + 1
            cursor = f"{chunk.seq}:{position}"
    return lines, cursor


def _place(after: str) -> tuple[int, int]:
    seq, colon, at = after.partition(":")
    if not (colon and seq.isdecimal() and at.isdecimal() and len(after) < 40):
        raise SpecError(
            f"{after!r} is no place in a log.", kept="nothing was changed.", hint="pass `next` of the answer before."
        )
    return min(int(seq), 2**62), int(at)
