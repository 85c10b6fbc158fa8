"""What changes on the overview, sent to all who look: one reading, written once, however many there are.

A stream begins with everything (event ``board``), so whoever comes back, also to another replica or after a restart,
is right at once; after that come rows that have changed (``rows``: their HTML, and which are gone) and figures
(``figures``: job → its texts). Nothing is read while nobody looks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.requests import HTTPConnection

from clonos.errors import StoreAway
from clonos.resources.figures import number
from clonos_api.auth import Principal
from clonos_api.dashboard.board import Board, Boards, Line
from clonos_api.dashboard.rendering import part, rate
from clonos_api.routes.access import Viewer
from clonos_api.services import Replica, Services
from clonos_api.sse import HEARTBEAT, EventStream, encode

_AWAY_S: Final = 1.0
router = APIRouter(include_in_schema=False)


@dataclass
class Pulse:
    """Reads the board as long as somebody looks, and tells what has changed.

    Args:
        boards: What is read.
    """

    boards: Boards
    lookers: int = 0
    number: int = 0
    _told: bytes = b""
    _newest: Board | None = None
    _task: asyncio.Task[None] | None = None
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until nobody looks any more."""
        while self.lookers:
            try:
                board = await self.boards.newest()
            except StoreAway:
                await asyncio.sleep(_AWAY_S)
                continue
            before, self._newest = self._newest, board
            if before is None or board.number != before.number:
                self._told = b"" if before is None else changes(before, board)
                self.number += 1
                self.ring()
            await asyncio.sleep(self.boards.pause_s())
        self._task, self._newest = None, None

    def ring(self) -> None:
        """Wake all who wait."""
        self._next.set()
        self._next = asyncio.Event()

    async def begin(self) -> tuple[int, bytes]:
        """Look from now on: where it begins, and everything.

        Raises:
            StoreAway: The database does not answer.
        """
        self.lookers += 1
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name="clonos-pulse")
        board = self._newest or await self.boards.newest()
        return self.number, whole(board)

    def end(self) -> None:
        """Look no more."""
        self.lookers -= 1

    async def after(self, known: int, timeout_s: float) -> tuple[int, bytes | None]:
        """What has changed since; None: too much was missed, begin anew."""
        if self.number == known:
            waiting = self._next
            try:
                async with asyncio.timeout(timeout_s):
                    await waiting.wait()
            except TimeoutError:
                return known, b""
        return self.number, self._told if self.number == known + 1 else None


def whole(board: Board) -> bytes:
    """All rows and figures."""
    told: dict[str, Any] = {
        "hosts": [one.name for one in board.hosts],
        "summary": part("overview_summary.html", board=board),
        "rows": {line.id: row(board, line) for line in board.lines},
        "order": [line.id for line in board.lines],
    }
    return encode(json.dumps(told), event="board", number=board.number)


def changes(before: Board, board: Board) -> bytes:
    """What is other than it was."""
    if [one.name for one in before.hosts] != [one.name for one in board.hosts]:
        return whole(board)
    known = {line.id: line for line in before.lines}
    rows = {
        line.id: row(board, line)
        for line in board.lines
        if line.id not in known or line.shape() != known[line.id].shape()
    }
    gone = sorted(known.keys() - {line.id for line in board.lines})
    told = b""
    if rows or gone or before.hosts != board.hosts:
        summary = part("overview_summary.html", board=board)
        changed = {"rows": rows, "gone": gone, "summary": summary, "order": [line.id for line in board.lines]}
        told += encode(json.dumps(changed), event="rows", number=board.number)
    moved = {
        line.id: figures(line)
        for line in board.lines
        if line.id in known and line.id not in rows and figures(line) != figures(known[line.id])
    }
    if moved:
        told += encode(json.dumps(moved), event="figures", number=board.number)
    return told


def figures(line: Line) -> list[str]:
    """What changes all the time: lag, records published a second."""
    return [number(line.lag) or "–", rate(line.out_per_s) or "–"]


def row(board: Board, line: Line) -> str:
    """A job's row."""
    return part("overview_row.html", board=board, line=line, figures=figures(line))


async def _pulse(connection: HTTPConnection) -> Pulse:
    found: Pulse = connection.app.state.pulse
    return found


@router.get("/live", response_class=EventStream)
async def stream(caller: Viewer, replica: Replica, pulse: Annotated[Pulse, Depends(_pulse)]) -> EventStream:
    """The overview's changes."""
    replica.check_streams()
    return EventStream(_stream(replica, caller, pulse))


async def _stream(replica: Services, caller: Principal, pulse: Pulse) -> AsyncIterator[bytes]:
    wake: Callable[[], object] = pulse.ring
    with replica.stream(caller, wake) as held:
        try:
            known, first = await pulse.begin()
            yield first
            while not replica.ending and not held.over():
                known, told = await pulse.after(known, min(replica.settings.heartbeat_s, held.left_s))
                if told is None:
                    return  # the browser comes back, and begins with everything
                yield told or HEARTBEAT
        except StoreAway:
            return
        finally:
            pulse.end()
