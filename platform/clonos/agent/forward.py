"""Tells the control plane what drivers wrote: their event files and logs, by byte offset.

The files are the queue: nothing is held in memory, and after an outage of any length the control plane says from where
to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from clonos.agent.client import ApiAway, ApiRefused
from clonos.agent.courier import Courier
from clonos.agent.place import RunPlace
from clonos.agent.rotation import RotatedLog
from clonos.errors import AgentReplaced
from clonos.resources.hosts import EventsPiece, LogPiece

_log = structlog.get_logger("clonos.agent")
_CHUNK: Final = 1 << 17
_LINES: Final = 5000
_LONGEST_LINE: Final = 1 << 20
_BLOCK: Final = 1 << 16
_LOOK_S: Final = 0.05
_MIN_BACKOFF_S: Final = 0.2
_MAX_BACKOFF_S: Final = 5.0
_TOO_MUCH: Final = frozenset({413, 422})
# A control plane that does not know the run (any more) is asked seldom.
_REFUSED_S: Final = 10.0


class Forwarder:
    """Tells what the driver of one run wrote.

    Args:
        place: The run's folder.
        courier: Takes it to the control plane.
        log_bytes: The log is rotated at this size.
        events_bytes: Space of told events is given back in pieces of this size.
    """

    def __init__(
        self,
        place: RunPlace,
        courier: Courier,
        *,
        log_bytes: int,
        events_bytes: int,
    ) -> None:
        self._run = place.run
        self._courier = courier
        self._turns = {"events": courier.turn(), "log": courier.turn()}
        self._events = _Events(place.events, events_bytes)
        self._log = RotatedLog(place.log, log_bytes)
        self._at_most = _LINES
        self._refused: set[str] = set()
        self._told_events: int | None = None  # what the control plane has; None: nobody asked yet
        self._told_log: int | None = None

    async def forward(self) -> None:
        """Until it is cancelled."""
        await asyncio.gather(
            self._go_on("events", self._tell_events), self._go_on("log", self._tell_log), self._rotate()
        )

    async def last_words(self, seconds: float) -> None:
        """Wait until everything is told, or nobody wants to hear it; for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._behind() or not await self._is_kept():
                    for turn in self._turns.values():
                        turn.hurry()
                    await asyncio.sleep(_LOOK_S)

    def _behind(self) -> bool:
        """Whether something is not told. Up to three bytes may be a character that never came whole."""
        events = "events" not in self._refused and (self._told_events or 0) < self._events.whole()
        return events or ("log" not in self._refused and (self._told_log or 0) + 3 < self._log.end())

    async def _is_kept(self) -> bool:
        """Whether what was told outlives a crash of the control plane's database.

        Its answers do not wait for the disk. Whoever goes on telling learns from the next one what was forgotten;
        whoever has told all must ask.
        """
        with contextlib.suppress(ApiAway, AgentReplaced, OSError):
            try:
                last = EventsPiece(run=self._run, offset=self._told_events or 0, lines=[], last=True)
                self._told_events = await self._courier.take(last)
            except ApiRefused:
                return True
            return not self._behind()
        return False

    async def _go_on(self, what: str, tell: Callable[[], Awaitable[bool]]) -> None:
        backoff = _MIN_BACKOFF_S
        while True:
            try:
                more = await tell()
                self._refused.discard(what)
                backoff = _MIN_BACKOFF_S
                if not more:
                    await self._turns[what].wait()
            except (ApiAway, OSError) as error:
                after = error.after_s if isinstance(error, ApiAway) else 0.0
                await asyncio.sleep(max(after, backoff * random.uniform(0.5, 1.0)))
                backoff = min(2 * backoff, _MAX_BACKOFF_S)
            except ApiRefused as error:
                self._refused.add(what)
                _log.warning("forward-refused", run=self._run, why=error.what)
                await asyncio.sleep(_REFUSED_S)
            except AgentReplaced:
                await asyncio.sleep(_REFUSED_S)  # the heartbeat hears the same, and ends the agent

    async def _tell_events(self) -> bool:
        if self._told_events is None:
            self._told_events = await self._courier.take(EventsPiece(run=self._run, offset=0, lines=[]))
        offset = self._told_events
        start, lines, end = await asyncio.to_thread(self._events.read, offset, self._at_most)
        if not lines and start == offset:
            return False
        piece = EventsPiece(run=self._run, offset=start, lines=lines, gap=start > offset)
        try:
            self._told_events = await self._courier.take(piece)
        except ApiRefused as error:
            if error.status not in _TOO_MUCH or not lines:
                raise
            return await self._tell_less(lines, end, error)
        # What is written meanwhile has its turn with all others; what is there already has not.
        more = self._told_events == end and (len(lines) == self._at_most or end - start >= _CHUNK // 2)
        self._at_most = _LINES
        self._events.give_back(self._told_events)
        return more

    async def _tell_less(self, lines: list[str], end: int, error: ApiRefused) -> bool:
        """Send half of it; one line that nobody takes must not hold up those after it."""
        self._at_most = max(1, len(lines) // 2)
        if len(lines) == 1:
            _log.error("event-refused", run=self._run, why=error.what, line=lines[0][:500])
            self._told_events = await self._courier.take(EventsPiece(run=self._run, offset=end, lines=[], gap=True))
        return True

    async def _tell_log(self) -> bool:
        if self._told_log is None:
            self._told_log = await self._courier.take(LogPiece(run=self._run, offset=0, text=""))
        offset = max(self._told_log, self._log.start())
        data = self._log.read(offset, _CHUNK)
        text = same_length(whole_characters(data))
        if not text and offset == self._told_log:
            return False
        piece = LogPiece(run=self._run, offset=offset, text=text, gap=offset > self._told_log)
        self._told_log = await self._courier.take(piece)
        return len(data) == _CHUNK

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                # In the loop, so that nobody reads by the old offsets meanwhile.
                self._log.rotate()
            except OSError as error:
                _log.warning("log-not-rotated", run=self._run, why=str(error))


class _Events:
    """An event file as whole lines."""

    def __init__(self, path: Path, piece: int) -> None:
        self._path = path
        self._piece = piece
        self._given_back = 0

    def whole(self) -> int:
        """Where the last whole line ends, near the end of the file."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - _CHUNK)
            file.seek(start)
            return start + file.read(_CHUNK).rfind(b"\n") + 1
        return 0

    def read(self, offset: int, at_most: int = _LINES) -> tuple[int, list[str], int]:
        """Whole lines from `offset` on: where they begin, the lines, where they end.

        They begin later where space was given back, or a line is too long for anybody.
        """
        try:
            with self._path.open("rb") as file:
                offset = _after_hole(file, offset)
                file.seek(offset)
                data = file.read(_CHUNK)
                if b"\n" not in data and len(data) == _CHUNK:
                    data += file.readline(_LONGEST_LINE)
                    if not data.endswith(b"\n"):
                        return _after_line(file, offset), [], offset
        except FileNotFoundError:
            return offset, [], offset
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1][:at_most]
        return offset, [same_length(line) for line in lines], offset + sum(len(line) + 1 for line in lines)

    def give_back(self, told: int) -> None:
        """Free the space of what the control plane has; offsets stay as they are."""
        if told - self._given_back >= self._piece + _LONGEST_LINE:
            # The end stays: the agent reads there how the driver is.
            self._given_back = (told - _LONGEST_LINE) // _BLOCK * _BLOCK
            with contextlib.suppress(OSError):
                _punch(self._path, self._given_back)


def _after_hole(file: BinaryIO, offset: int) -> int:
    """`offset`, or the first line after the hole that it is in."""
    try:
        data = os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError:
        return offset  # at the end
    return offset if data <= offset else _after_line(file, data)


def _after_line(file: BinaryIO, offset: int) -> int:
    """Where the line that begins at `offset` has ended; `offset` as long as it goes on."""
    file.seek(offset)
    end = offset
    while data := file.read(_CHUNK):
        if (found := data.find(b"\n")) >= 0:
            return end + found + 1
        end += len(data)
    return offset


def whole_characters(data: bytes) -> bytes:
    """`data` without a UTF-8 character at its end that has not come whole."""
    for back in range(1, 4):
        if len(data) >= back and data[-back] >= 0xC0:
            needed = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return data if back >= needed else data[:-back]
    return data


def same_length(data: bytes) -> str:
    """Text of as many bytes as `data`: what is no UTF-8, or no text for a database, becomes question marks."""
    text = data.decode("utf-8", errors="surrogateescape").replace("\0", "?")
    return "".join("?" if "\udc80" <= mark <= "\udcff" else mark for mark in text) if not text.isascii() else text


def _punch(path: Path, length: int) -> None:
    """Make a hole of the first `length` bytes, as far as the file system can."""
    keep_size, punch_hole = 0x01, 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb+") as file:
        if libc.fallocate(file.fileno(), keep_size | punch_hole, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")
