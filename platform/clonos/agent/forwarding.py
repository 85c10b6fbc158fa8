"""Forwards the event files and logs of drivers to the control plane, by byte offset.

The files are the queue: nothing is buffered in memory. After an outage of any length the control plane returns the
offset from which to continue.

A log is rotated by copy and truncation, because the driver keeps the file open. Its offsets count all bytes ever
written, so that a rotation does not change them. Output between the copy and the truncation is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from clonos.agent.directories import RunDirectory
from clonos.agent.push_batcher import PushBatcher
from clonos.client.agent_api import ApiRejected, ApiUnavailable
from clonos.client.responses import Backoff
from clonos.errors import AgentReplaced
from clonos.private_folders import write_private
from clonos.resources.hosts import EventsBatch, LogBatch

_log = structlog.get_logger("clonos.agent")
_CHUNK_BYTES: Final = 1 << 17
_MAX_LINES: Final = 5000
_MAX_LINE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 16
_POLL_S: Final = 0.05
_MIN_BACKOFF_S: Final = 0.2
_MAX_BACKOFF_S: Final = 5.0
_TOO_LARGE: Final = frozenset({413, 422})
# Pause after a rejection, for example because the control plane no longer has the run.
_REJECTED_PAUSE_S: Final = 10.0
_HEAD: Final = 256  # bytes that identify a log


class Forwarder:
    """Forwards the events and the log of one run to the control plane, with the batches of all other runs.

    The log is rotated at `log_bytes`. The disk space of forwarded events is freed in pieces of `events_bytes`.
    """

    def __init__(self, directory: RunDirectory, batcher: PushBatcher, *, log_bytes: int, events_bytes: int) -> None:
        self._run = directory.run
        self._batcher = batcher
        self._timers = {"events": batcher.timer(), "log": batcher.timer()}
        self._events = _Events(directory.events, events_bytes)
        self._log = RotatedLog(directory.log, log_bytes)
        self._max_lines = _MAX_LINES
        self._rejected: set[str] = set()
        # Offsets up to which the control plane has the files; None: not requested yet.
        self._sent_events: int | None = None
        self._sent_log: int | None = None

    async def forward(self) -> None:
        """Forward new events and log text until cancelled."""
        await asyncio.gather(
            self._repeat("events", self._forward_events), self._repeat("log", self._forward_log), self._rotate()
        )

    async def flush(self, timeout_s: float) -> None:
        """Wait until the control plane has stored or rejected all events and log text, at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._has_unsent() or not await self._is_durable():
                    for timer in self._timers.values():
                        timer.expedite()
                    await asyncio.sleep(_POLL_S)

    def _has_unsent(self) -> bool:
        """Whether anything is not forwarded. Up to three bytes may be an incomplete character at the end of the log."""
        events = "events" not in self._rejected and (self._sent_events or 0) < self._events.complete_end()
        return events or ("log" not in self._rejected and (self._sent_log or 0) + 3 < self._log.end())

    async def _is_durable(self) -> bool:
        """Whether everything forwarded survives a crash of the control plane's database.

        Its acknowledgements do not wait for the disk. The acknowledgement of the next batch shows a loss; after the
        last batch, an explicit request is necessary.
        """
        with contextlib.suppress(ApiUnavailable, AgentReplaced, OSError):
            try:
                last = EventsBatch(run=self._run, offset=self._sent_events or 0, lines=[], last=True)
                self._sent_events = await self._batcher.push(last)
            except ApiRejected:
                return True
            return not self._has_unsent()
        return False

    async def _repeat(self, kind: str, forward: Callable[[], Awaitable[bool]]) -> None:
        backoff = Backoff(first_s=_MIN_BACKOFF_S, longest_s=_MAX_BACKOFF_S)
        while True:
            try:
                more = await forward()
                self._rejected.discard(kind)
                backoff.reset()
                if not more:
                    await self._timers[kind].wait()
            except (ApiUnavailable, OSError) as error:
                await asyncio.sleep(backoff.next_s(error.retry_after_s if isinstance(error, ApiUnavailable) else None))
            except ApiRejected as error:
                self._rejected.add(kind)
                _log.warning("forward-rejected", run=self._run, why=error.what)
                await asyncio.sleep(_REJECTED_PAUSE_S)
            except AgentReplaced:
                await asyncio.sleep(_REJECTED_PAUSE_S)  # the heartbeat gets the same error and stops the agent

    async def _forward_events(self) -> bool:
        if self._sent_events is None:
            self._sent_events = await self._batcher.push(EventsBatch(run=self._run, offset=0, lines=[]))
        offset = self._sent_events
        start, lines, end = await asyncio.to_thread(self._events.read, offset, self._max_lines)
        if not lines and start == offset:
            return False
        batch = EventsBatch(run=self._run, offset=start, lines=lines, gap=start > offset)
        try:
            self._sent_events = await self._batcher.push(batch)
        except ApiRejected as error:
            if error.status not in _TOO_LARGE or not lines:
                raise
            return await self._forward_less(lines, end, error)
        # Continue at once only with data that is in the file already; later data waits for the next flush.
        more = self._sent_events == end and (len(lines) == self._max_lines or end - start >= _CHUNK_BYTES // 2)
        self._max_lines = _MAX_LINES
        self._events.free(self._sent_events)
        return more

    async def _forward_less(self, lines: list[str], end: int, error: ApiRejected) -> bool:
        """Send half of the lines; a single rejected line is skipped, so that it does not block the later ones."""
        self._max_lines = max(1, len(lines) // 2)
        if len(lines) == 1:
            _log.error("event-rejected", run=self._run, why=error.what, line=lines[0][:500])
            self._sent_events = await self._batcher.push(EventsBatch(run=self._run, offset=end, lines=[], gap=True))
        return True

    async def _forward_log(self) -> bool:
        if self._sent_log is None:
            self._sent_log = await self._batcher.push(LogBatch(run=self._run, offset=0, text=""))
        offset = max(self._sent_log, self._log.start())
        data = self._log.read(offset, _CHUNK_BYTES)
        text = same_length(whole_characters(data))
        if not text and offset == self._sent_log:
            return False
        batch = LogBatch(run=self._run, offset=offset, text=text, gap=offset > self._sent_log)
        self._sent_log = await self._batcher.push(batch)
        return len(data) == _CHUNK_BYTES

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                # In the event loop, so that no read with the old offsets happens at the same time.
                self._log.rotate()
            except OSError as error:
                _log.warning("log-not-rotated", run=self._run, why=str(error))


class _Events:
    """The complete lines of an event file."""

    def __init__(self, path: Path, free_bytes: int) -> None:
        self._path = path
        self._free_bytes = free_bytes
        self._freed = 0

    def complete_end(self) -> int:
        """Offset at which the last complete line ends."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            return start + file.read(_CHUNK_BYTES).rfind(b"\n") + 1
        return 0

    def read(self, offset: int, max_lines: int = _MAX_LINES) -> tuple[int, list[str], int]:
        """Complete lines from `offset` on: their start, the lines, their end.

        The start is later than `offset` if disk space was freed there, or if a line is too long to be sent.
        """
        try:
            with self._path.open("rb") as file:
                offset = _after_hole(file, offset)
                file.seek(offset)
                data = file.read(_CHUNK_BYTES)
                if b"\n" not in data and len(data) == _CHUNK_BYTES:
                    data += file.readline(_MAX_LINE_BYTES)
                    if not data.endswith(b"\n"):
                        return _after_line(file, offset), [], offset
        except FileNotFoundError:
            return offset, [], offset
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1][:max_lines]
        return offset, [same_length(line) for line in lines], offset + sum(len(line) + 1 for line in lines)

    def free(self, forwarded: int) -> None:
        """Free the disk space of forwarded events; offsets do not change."""
        if forwarded - self._freed >= self._free_bytes + _MAX_LINE_BYTES:
            # Keep the end: the agent reads the driver's status there.
            self._freed = (forwarded - _MAX_LINE_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
            with contextlib.suppress(OSError):
                _punch(self._path, self._freed)


def _after_hole(file: BinaryIO, offset: int) -> int:
    """`offset`, or the start of the first line after the hole that contains it."""
    try:
        data = os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError:
        return offset  # at the end
    return offset if data <= offset else _after_line(file, data)


def _after_line(file: BinaryIO, offset: int) -> int:
    """Return the end of the line that begins at `offset`; `offset` while the line is incomplete."""
    file.seek(offset)
    end = offset
    while data := file.read(_CHUNK_BYTES):
        if (newline := data.find(b"\n")) >= 0:
            return end + newline + 1
        end += len(data)
    return offset


def whole_characters(data: bytes) -> bytes:
    """Return `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, 4):
        if len(data) >= back and data[-back] >= 0xC0:
            needed = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return data if back >= needed else data[:-back]
    return data


def same_length(data: bytes) -> str:
    """Return `data` as text of the same number of bytes; invalid UTF-8 and NUL become question marks."""
    text = data.decode("utf-8", errors="surrogateescape").replace("\0", "?")
    return text if text.isascii() else re.sub("[\udc80-\udcff]", "?", text)


def _punch(path: Path, length: int) -> None:
    """Free the disk blocks of the first `length` bytes, where the file system supports it."""
    keep_size, punch_hole = 0x01, 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb+") as file:
        if libc.fallocate(file.fileno(), keep_size | punch_hole, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")


class RotatedLog:
    """The log file that a driver appends to, with its previous file (``.1``); it is rotated at `limit` bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._previous = path.with_name(f"{path.name}.1")
        self._new = path.with_name(f".{path.name}.1.new")
        self._base_file = path.with_name(f"{path.name}.base")
        self._limit = limit
        self._base = self._recover()

    def end(self) -> int:
        """Offset at which the log ends: the number of bytes ever written."""
        return self._base + _size(self._path)

    def start(self) -> int:
        """Offset of the oldest byte that remains."""
        return self._base - _size(self._previous)

    def read(self, offset: int, count: int) -> bytes:
        """Read up to `count` bytes at `offset`, which must be `start` or later."""
        with contextlib.suppress(FileNotFoundError):
            if offset < self._base:
                return _read(self._previous, offset - self.start(), min(count, self._base - offset))
            return _read(self._path, offset - self._base, count)
        return b""

    def rotate(self) -> bool:
        """Rotate the log if it has reached the limit; returns whether it had."""
        if _size(self._path) < self._limit:
            return False
        with self._path.open("rb+") as source, self._new.open("wb") as copy:
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(source, copy)
            copied = copy.tell()  # codespell:ignore tell
            # Recorded before the truncation: after a crash, `_recover` compares the files to see which step was last.
            write_private(self._base_file, f"{self._base} {copied}")
            self._new.replace(self._previous)
            shutil.copyfileobj(source, copy)  # output written since the first copy
            copy.flush()
            copied = copy.tell()  # codespell:ignore tell
            source.truncate(0)
        self._base += copied
        write_private(self._base_file, f"{self._base} 0")
        return True

    def _recover(self) -> int:
        """Read the offset of the file's first byte; complete or undo a rotation that an earlier agent started."""
        try:
            base, copied = map(int, self._base_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return 0
        if copied:
            if not self._new.exists():
                head = _read(self._previous, 0, _HEAD)
                if _read(self._path, 0, _HEAD)[: len(head)] == head:
                    self._previous.unlink()  # a copy of bytes that the log still has
                else:
                    base += _size(self._previous)
            write_private(self._base_file, f"{base} 0")
        self._new.unlink(missing_ok=True)
        return base


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)
