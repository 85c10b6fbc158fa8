"""The overview's update stream: each change is read and encoded once for all viewers of this replica.

A stream begins with the complete overview (event ``board``), so it is correct after a reconnect, also to another
replica. Then follow changed rows (``rows``: HTML, and removed jobs), figures (``figures``: texts by job) and, where
nothing has changed, how late the next read is (``beat``: milliseconds). The store is read only while there are viewers.
A stream ends when the store is unavailable, so that no page shows old rows as current. The pages of jobs use the same
boards (`clonos_api.dashboard.job_live`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import structlog
from fastapi import APIRouter, Depends
from fastapi.sse import format_sse_event
from markupsafe import Markup
from starlette.requests import HTTPConnection

from clonos.errors import DatabaseUnavailable
from clonos.resources.figures import duration, number
from clonos_api.auth import Principal
from clonos_api.dashboard.rendering import part, rate
from clonos_api.fleet import Board, Boards, Line
from clonos_api.http.sse import EventStream
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import Viewer
from clonos_api.streams.open_requests import OpenRequest

_BEAT_S: Final = 1.0  # a page without one for four seconds is stale
# Rows rendered between two yields to the event loop: heartbeats must not wait for a thousand rows.
_AT_ONCE: Final = 20
_NONE: Final = "–"
# The first bytes of a stream: browsers reconnect after half a second, too soon for a page to show the interruption.
BACK: Final = format_sse_event(retry=500)
_log = structlog.get_logger(__name__)
router = APIRouter(include_in_schema=False)


class Around(NamedTuple):
    """The parts of the overview page outside its rows, as HTML."""

    head: Markup  # column heads
    banner: Markup  # whether the jobs are healthy, in a sentence
    counts: Markup  # number of jobs by health, and of hosts
    strip: Markup  # recoveries of the last 24 hours


@dataclass
class Drawn:
    """Caches the HTML of the overview's rows. A row is rendered again only if `Line.shape` of its job has changed."""

    _rows: dict[str, tuple[Any, Markup]] = field(default_factory=dict)
    _whole: tuple[int, bytes] = (0, b"")

    async def rows(self, board: Board) -> dict[str, Markup]:
        """Return the HTML of each row without figures, by job id."""
        columns = tuple(host.name for host in board.hosts)
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
        """Return the HTML of the rows with figures, in the order of the board."""
        rows = await self.rows(board)
        return [filled(rows[line.id], figures(line)) for line in board.lines]

    def around(self, board: Board) -> Around:
        """Return the HTML of the page parts outside the rows."""
        return Around(*(part(f"overview_{name}.html", board=board) for name in Around._fields))

    async def whole(self, board: Board) -> bytes:
        """Return the complete overview as an encoded server-sent event."""
        if self._whole[0] != board.number:
            update = {
                **self.around(board)._asdict(),
                "rows": await self.rows(board),
                "figures": {line.id: figures(line) for line in board.lines},
                "order": [line.id for line in board.lines],
            }
            self._whole = (
                board.number,
                format_sse_event(data_str=json.dumps(update), event="board", id=str(board.number)),
            )
        return self._whole[1]

    async def changes(self, before: Board, board: Board) -> bytes:
        """Return the changes from board `before` to `board` as encoded server-sent events; empty if there are none."""
        if [host.name for host in before.hosts] != [host.name for host in board.hosts]:
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
        events = b""
        if fresh or gone or _surroundings(before) != _surroundings(board):
            changed = {
                **self.around(board)._asdict(),
                "rows": {job: rows[job] for job in sorted(fresh)},
                "gone": gone,
                "order": [line.id for line in board.lines],
            }
            if before.strip == board.strip:
                del changed["strip"]  # it may be as large as all rows
            events += format_sse_event(data_str=json.dumps(changed), event="rows", id=str(board.number))
        if moved:
            events += format_sse_event(data_str=json.dumps(moved), event="figures", id=str(board.number))
        return events


def _surroundings(board: Board) -> tuple[object, ...]:
    """Return what the parts outside of the rows show, besides the rows themselves."""
    return board.hosts, board.led, board.dependencies, board.strip


def figures(line: Line) -> list[str]:
    """Return the figures of a row as texts: lag, records published per second, and the time until a standby is
    READY.
    """
    ready_in_s = line.forecast.ready_in_s if line.forecast is not None else None
    ready = f", READY in about {duration(1000 * ready_in_s)}" if ready_in_s is not None else ""
    return [number(line.lag) or _NONE, rate(line.out_per_s) or _NONE, ready]


def filled(html: Markup, texts: list[str]) -> Markup:
    """HTML with these texts in its elements ``data-figure``. The texts contain no characters that HTML escapes."""
    text = str(html)
    for index, figure in enumerate(texts):
        text = text.replace(f'data-figure="{index}">{_NONE}<', f'data-figure="{index}">{figure}<')
    return Markup(text)  # noqa: S704 - rendered HTML, and figures


@dataclass
class Pulse:
    """The update stream of the overview, shared by all viewers of this replica: reads boards while there are
    viewers, and publishes the changes. Streams of jobs' pages use its boards.
    """

    boards: Boards
    drawn: Drawn = field(default_factory=Drawn)  # cache of the rendered HTML
    viewers: int = 0  # number of open streams
    number: int = 0  # sequence number of the newest change
    newest: Board | None = None  # None: nobody reads boards, or the store is unavailable
    _changes: bytes | None = None
    _read_at: float = 0.0
    _task: asyncio.Task[None] | None = None
    _next: asyncio.Event = field(default_factory=asyncio.Event)
    _read: asyncio.Event = field(default_factory=asyncio.Event)  # set when there is another board

    async def run(self) -> None:
        """Read and publish boards until there are no viewers, or the database is unavailable."""
        try:
            while self.viewers:
                begun = time.monotonic()
                board = await self.boards.newest()
                before, self.newest, self._read_at = self.newest, board, begun
                if before is not None and board.number != before.number:
                    self._announce()
                    changes = await self.drawn.changes(before, board)
                    if changes:
                        self._changes, self.number = changes, self.number + 1
                        self.ring()
                await asyncio.sleep(self.boards.pause_s())
        except DatabaseUnavailable as error:
            _log.warning("overview.unavailable", why=error.what)
        except Exception:
            _log.exception("overview.failed")
        finally:
            # End the waiting streams; their browsers reconnect.
            self.newest, self._changes, self.number = None, None, self.number + 2
            self.ring()

    def ring(self) -> None:
        """Wake all open streams, so that they send the newest change."""
        self._next.set()
        self._next = asyncio.Event()
        self._announce()

    def _announce(self) -> None:
        """Wake the streams that wait for another board."""
        self._read.set()
        self._read = asyncio.Event()

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """Count a viewer: boards are read inside the context, after the first call of `board`."""
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1

    async def board(self) -> Board:
        """Return the newest board. Starts to read boards if no other viewer did."""
        board = self.newest or await self.boards.newest()
        if self._task is None or self._task.done():
            self.newest, self._read_at = board, time.monotonic()
            self._task = asyncio.create_task(self.run(), name="clonos-pulse")
        return board

    async def wait(self, known: Board, timeout_s: float) -> None:
        """Wait until `newest` is another board than `known`, at most until the timeout."""
        if self.newest is known:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._read.wait()

    async def begin(self) -> tuple[int, bytes]:
        """Return data for a new stream: the current sequence number, and the complete overview as an encoded event."""
        board = await self.board()
        known = self.number
        return known, await self.drawn.whole(board)

    def beat(self) -> bytes:
        """Return an encoded event with the age of the newest board beyond the pause between reads, in milliseconds."""
        late_s = time.monotonic() - self._read_at - self.boards.pause_s()
        return format_sse_event(data_str=str(round(1000 * max(0, late_s))), event="beat")

    async def after(self, known: int, timeout_s: float) -> tuple[int, bytes | None]:
        """Return the newest sequence number, and the changes since number `known` as encoded events.

        The changes are empty after the timeout, and None if the stream missed some and must restart.
        """
        if self.number == known:
            waiting = self._next
            try:
                async with asyncio.timeout(timeout_s):
                    await waiting.wait()
            except TimeoutError:
                return known, b""
        if self.number == known:
            return known, b""  # woken to check the token again
        return self.number, self._changes if self.number == known + 1 else None


def pause_s(replica: Replica, held: OpenRequest) -> float:
    """Seconds after which a silent stream sends a heartbeat, and checks whether to end."""
    return min(_BEAT_S, replica.settings.heartbeat_s, held.left_s)


async def _pulse(connection: HTTPConnection) -> Pulse:
    pulse: Pulse = connection.app.state.pulse
    return pulse


PulseDep = Annotated[Pulse, Depends(_pulse)]


@router.get("/live", response_class=EventStream)
async def stream(caller: Viewer, replica: ReplicaDep, pulse: PulseDep) -> EventStream:
    """Stream the changes of the overview."""
    replica.check_streams(caller)
    await pulse.boards.newest()  # responds 503 while the store is unavailable
    return EventStream(_stream(replica, caller, pulse))


async def _stream(replica: Replica, caller: Principal, pulse: Pulse) -> AsyncIterator[bytes]:
    with replica.stream(caller, pulse.ring) as held, pulse.viewed():
        try:
            known, first = await pulse.begin()
            yield BACK + first
            while not replica.ending and not held.over():
                known, changes = await pulse.after(known, pause_s(replica, held))
                if changes is None or held.over():
                    return
                yield changes or pulse.beat()
        except DatabaseUnavailable:
            return
