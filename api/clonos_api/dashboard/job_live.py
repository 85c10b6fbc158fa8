"""The update stream of a job's page.

The lead line comes from the board that all viewers of this replica share, so that an open page costs no read of the
store. A stream begins with the complete lead line (event ``lead``: HTML, figures as texts, and the newest epochs). Then
follow its changed parts, and ``changed`` after each event of the job: the page fetches its content again. Where nothing
has changed, a ``beat`` says how late the next read is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Final, NamedTuple

from fastapi import APIRouter
from fastapi.sse import format_sse_event
from markupsafe import Markup

from clonos.errors import DatabaseUnavailable
from clonos_api.auth import Principal
from clonos_api.dashboard.live import BACK, Pulse, PulseDep, figures, filled, pause_s
from clonos_api.dashboard.rendering import part
from clonos_api.fleet import Board, Line
from clonos_api.fleet.lead import clause
from clonos_api.http.sse import EventStream
from clonos_api.replica import Replica, ReplicaDep
from clonos_api.routes.access import KnownJob, Viewer
from clonos_api.streams.feed import EventFeed, EventFilter

_CACHED: Final = 200  # lead lines that are rendered once for all viewers
_CHANGED: Final = format_sse_event(data_str="", event="changed")
router = APIRouter(include_in_schema=False)


class Lead(NamedTuple):
    """The lead line of a job's page."""

    html: str  # without figures; empty: the job is not on the board
    figures: list[str]  # what the job does now, and the time until a standby is READY
    epochs: list[int]  # the newest epoch of each query

    @classmethod
    def of(cls, line: Line | None) -> Lead:
        """Return the lead line of a job on the board; None: it is not there, because it was deleted or created just
        now.
        """
        if line is None:
            return cls("", [], [])
        return cls(_html(line.shape()), [clause(line), figures(line)[2]], [epoch for _, epoch in line.epochs])

    def whole(self) -> Markup:
        """Return the HTML with figures."""
        return filled(Markup(self.html), self.figures)  # noqa: S704 - rendered by `part`

    def changes(self, before: Lead | None) -> bytes:
        """Return the parts that differ from `before` (None: all) as an encoded event; empty if none does."""
        changed = {
            name: value for name, value in self._asdict().items() if before is None or value != getattr(before, name)
        }
        return format_sse_event(data_str=json.dumps(changed), event="lead") if changed else b""


@lru_cache(_CACHED)
def _html(shape: Line) -> Markup:
    return part("job_lead.html", line=shape)


def line_of(board: Board, job: str) -> Line | None:
    """Return the row of a job on the board; None: it is not there."""
    return next((line for line in board.lines if line.id == job), None)


@router.get("/jobs/{job}/live", response_class=EventStream)
async def stream(caller: Viewer, replica: ReplicaDep, pulse: PulseDep, row: KnownJob) -> EventStream:
    """Stream the changes of a job's page."""
    replica.check_streams(caller)
    await pulse.boards.newest()  # responds 503 while the store is unavailable
    return EventStream(_stream(replica, caller, pulse, row.id))


async def _stream(replica: Replica, caller: Principal, pulse: Pulse, job: str) -> AsyncIterator[bytes]:
    selected = EventFilter(job)
    with replica.stream(caller, pulse.ring) as held, pulse.viewed():
        try:
            board: Board | None = await pulse.board()
            seen, shown, sent_at = replica.feed.newest, None, 0.0
            yield BACK
            while board is not None and not replica.ending and not held.over():
                lead = Lead.of(line_of(board, job))
                events, seen = await replica.feed.after(seen, selected)
                chunk = lead.changes(shown) + (_CHANGED if events else b"")
                shown = lead
                left_s = sent_at + pause_s(replica, held) - time.monotonic()
                if chunk or left_s <= 0:
                    sent_at, left_s = time.monotonic(), pause_s(replica, held)
                    yield chunk or pulse.beat()
                await _wait(pulse, replica.feed, board, seen, left_s)
                board = pulse.newest
        except DatabaseUnavailable:
            return


async def _wait(pulse: Pulse, feed: EventFeed, board: Board, seen: int, timeout_s: float) -> None:
    """Wait for another board than `board` or an event after number `seen`, at most until the timeout."""
    waits = [
        asyncio.ensure_future(pulse.wait(board, timeout_s)),
        asyncio.ensure_future(feed.wait(seen, timeout_s)),
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
