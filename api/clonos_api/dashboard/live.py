"""What changes on the overview, sent to all who look: one reading, written once, however many there are.

A stream begins with everything (event ``board``), so whoever comes back, also to another replica or after a restart,
is right at once; after that come rows that have changed (``rows``: their HTML, and which are gone), figures
(``figures``: job → its texts) and, where nothing has changed, how old the reading is (``beat``: milliseconds). Nothing
is read while nobody looks. A stream ends when the store cannot be read, so that nobody takes old rows for the present.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import structlog
from fastapi import APIRouter, Depends
from markupsafe import Markup
from starlette.requests import HTTPConnection

from clonos.errors import StoreAway
from clonos.resources.figures import number
from clonos_api.auth import Principal
from clonos_api.dashboard.board import Board, Boards, Line
from clonos_api.dashboard.rendering import part, rate
from clonos_api.routes.access import Viewer
from clonos_api.services import Replica, Services
from clonos_api.sse import EventStream, encode

_BEAT_S: Final = 5.0
# Rows that are drawn before others have their turn: heartbeats must not wait for a thousand of them.
_AT_ONCE: Final = 20
_NONE: Final = "–"
# Browsers come back so soon; the end of a stream is nothing to be told of.
_BACK: Final = b"retry: 500\n\n"
_log = structlog.get_logger(__name__)
router = APIRouter(include_in_schema=False)


class Around(NamedTuple):
    """What is around the rows."""

    head: Markup
    banner: Markup
    counts: Markup


@dataclass
class Drawn:
    """HTML of boards. A row is drawn once for as long as its job's shape stays; it has no figures."""

    _rows: dict[str, tuple[Any, Markup]] = field(default_factory=dict)
    _whole: tuple[int, bytes] = (0, b"")

    async def rows(self, board: Board) -> dict[str, Markup]:
        """Job → its row."""
        columns = tuple(one.name for one in board.hosts)
        drawn: dict[str, tuple[Any, Markup]] = {}
        fresh = 0
        for line in board.lines:
            key = (columns, line.shape())
            known = self._rows.get(line.id)
            if known is None or known[0] != key:
                known = (key, part("overview_row.html", board=board, line=line))
                fresh += 1
                if fresh % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            drawn[line.id] = known
        self._rows = drawn
        return {job: html for job, (_, html) in drawn.items()}

    async def filled(self, board: Board) -> list[Markup]:
        """The rows in order, with their figures."""
        rows = await self.rows(board)
        return [_filled(rows[line.id], figures(line)) for line in board.lines]

    def around(self, board: Board) -> Around:
        """What is around them."""
        return Around(*(part(f"overview_{name}.html", board=board) for name in Around._fields))

    async def whole(self, board: Board) -> bytes:
        """All of it, as an event."""
        if self._whole[0] != board.number:
            told = {
                **self.around(board)._asdict(),
                "rows": await self.rows(board),
                "figures": {line.id: figures(line) for line in board.lines},
                "order": [line.id for line in board.lines],
            }
            self._whole = (board.number, encode(json.dumps(told), event="board", number=board.number))
        return self._whole[1]

    async def changes(self, before: Board, board: Board) -> bytes:
        """What is other than it was, as events; nothing where nothing is."""
        if [one.name for one in before.hosts] != [one.name for one in board.hosts]:
            return await self.whole(board)
        known = {line.id: line for line in before.lines}
        rows = await self.rows(board)
        fresh = {line.id for line in board.lines if line.id not in known or line.shape() != known[line.id].shape()}
        gone = sorted(known.keys() - rows.keys())
        moved = {
            line.id: figures(line)
            for line in board.lines
            if line.id in fresh or figures(line) != figures(known[line.id])
        }
        told = b""
        if fresh or gone or before.hosts != board.hosts:
            changed = {
                **self.around(board)._asdict(),
                "rows": {job: rows[job] for job in sorted(fresh)},
                "gone": gone,
                "order": [line.id for line in board.lines],
            }
            told += encode(json.dumps(changed), event="rows", number=board.number)
        if moved:
            told += encode(json.dumps(moved), event="figures", number=board.number)
        return told


def figures(line: Line) -> list[str]:
    """What changes all the time: lag, records published a second."""
    return [number(line.lag) or _NONE, rate(line.out_per_s) or _NONE]


def _filled(row: Markup, texts: list[str]) -> Markup:
    html = str(row)
    for place, text in enumerate(texts):
        html = html.replace(f'data-figure="{place}">{_NONE}<', f'data-figure="{place}">{text}<')
    return Markup(html)  # noqa: S704 - a row, and numbers


@dataclass
class Pulse:
    """Reads the board as long as somebody looks, and tells what has changed.

    Args:
        boards: What is read.

    Attributes:
        drawn: Its HTML.
        lookers: How many look.
        number: Of what was told last.
    """

    boards: Boards
    drawn: Drawn = field(default_factory=Drawn)
    lookers: int = 0
    number: int = 0
    _told: bytes | None = None
    _newest: Board | None = None
    _read_at: float = 0.0
    _task: asyncio.Task[None] | None = None
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until nobody looks any more, or what there is cannot be read."""
        try:
            while self.lookers:
                begun = time.monotonic()
                board = await self.boards.newest()
                before, self._newest, self._read_at = self._newest, board, begun
                if before is not None and board.number != before.number:
                    told = await self.drawn.changes(before, board)
                    if told:
                        self._told, self.number = told, self.number + 1
                        self.ring()
                await asyncio.sleep(self.boards.pause_s())
        except StoreAway as error:
            _log.warning("The overview cannot be read; those who look are to come back", why=error.what)
        except Exception:
            _log.exception("The overview cannot be drawn; those who look are to come back")
        finally:
            # Whoever waits learns that there is nothing to wait for.
            self._newest, self._told, self.number = None, None, self.number + 2
            self.ring()

    def ring(self) -> None:
        """Wake all who wait."""
        self._next.set()
        self._next = asyncio.Event()

    async def begin(self) -> tuple[int, bytes]:
        """Look from now on: where it begins, and everything.

        Raises:
            StoreAway: The database does not answer.
        """
        board = self._newest or await self.boards.newest()
        known = self.number
        whole = await self.drawn.whole(board)
        if self._task is None or self._task.done():
            self._newest, self._read_at = board, time.monotonic()
            self._task = asyncio.create_task(self.run(), name="clonos-pulse")
        return known, whole

    def beat(self) -> bytes:
        """An event that says how old what is known is."""
        age_ms = 1000 * (time.monotonic() - self._read_at)
        return encode(str(round(age_ms)), event="beat")

    async def after(self, known: int, timeout_s: float) -> tuple[int, bytes | None]:
        """What has changed since, if anything has in this time; None: begin anew, too much was missed."""
        if self.number == known:
            waiting = self._next
            try:
                async with asyncio.timeout(timeout_s):
                    await waiting.wait()
            except TimeoutError:
                return known, b""
        if self.number == known:
            return known, b""  # somebody is to look whether their token still counts
        return self.number, self._told if self.number == known + 1 else None


async def _pulse(connection: HTTPConnection) -> Pulse:
    found: Pulse = connection.app.state.pulse
    return found


@router.get("/live", response_class=EventStream)
async def stream(caller: Viewer, replica: Replica, pulse: Annotated[Pulse, Depends(_pulse)]) -> EventStream:
    """The overview's changes."""
    replica.check_streams()
    await pulse.boards.newest()  # 503 while it cannot be read, and no stream
    return EventStream(_stream(replica, caller, pulse))


async def _stream(replica: Services, caller: Principal, pulse: Pulse) -> AsyncIterator[bytes]:
    wake: Callable[[], object] = pulse.ring
    with replica.stream(caller, wake) as held:
        pulse.lookers += 1
        try:
            known, first = await pulse.begin()
            yield _BACK + first
            while not replica.ending and not held.over():
                known, told = await pulse.after(known, min(_BEAT_S, replica.settings.heartbeat_s, held.left_s))
                if told is None or held.over():
                    return
                yield told or pulse.beat()
        except StoreAway:
            return
        finally:
            pulse.lookers -= 1
