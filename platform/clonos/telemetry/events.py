"""Writes the events of a driver (`clonos.telemetry.driver_events`) to its file and to handlers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from clonos.telemetry.driver_events import DriverEvent, as_line

Emit = Callable[[DriverEvent], None]
EventHandler = Callable[[DriverEvent], None]
# Interval at which a driver touches its event file.
HEARTBEAT_S: Final = 1.0


class Events:
    """Appends events to a file, which restarts of a job share, and passes them to handlers.

    Args:
        job: The job's name.
        path: JSON lines file, or None.
        handlers: Called with each event after it is written, one event at a time; epochs wait for them, so they must
            be fast. An `OSError` of a handler is ignored; `emit` raises any other error.

    Attributes:
        generation: Generation of the driver's newest claim, a field of each event; 0 before the first claim.
    """

    def __init__(self, job: str, path: Path | None, handlers: Iterable[EventHandler] = ()) -> None:
        self._job = job
        self._out = path.open("a", buffering=1) if path else None
        self._handlers = tuple(handlers)
        self._lock = threading.Lock()  # each query ends its epochs in its own thread
        self._closed = threading.Event()
        self.generation = 0

    def emit(self, event: DriverEvent) -> None:
        """Set the job, the generation and the time of an event, write it to the file, and pass it to the handlers."""
        event.job, event.generation, event.at = self._job, self.generation, time.time()
        with self._lock:
            if self._closed.is_set():
                return  # a watch that was stopped had a request in progress
            # A full disk or a closed pipe must not fail a published epoch.
            with contextlib.suppress(OSError):
                if self._out:
                    self._out.write(as_line(event) + "\n")
            for handler in self._handlers:
                with contextlib.suppress(OSError):
                    handler(event)

    def start_heartbeat(self) -> None:
        """Touch the event file each second until `close`. The agent detects a frozen driver by the age of this file."""
        if self._out is not None:
            threading.Thread(
                target=self._touch_file, args=(self._out.name,), daemon=True, name="clonos-heartbeat"
            ).start()

    def _touch_file(self, path: str) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    def close(self) -> None:
        """Close the event file; later events are dropped."""
        with self._lock, contextlib.suppress(OSError):
            self._closed.set()
            if self._out:
                self._out.close()


def log_event(event: DriverEvent, logger: Any = None) -> None:
    """Write an event as a log line, without its long fields, such as ``offsets`` and ``stack``."""
    fields = msgspec.to_builtins(event)
    omitted = event.long | {"event", "at"}
    shown = {name: value for name, value in fields.items() if name not in omitted}
    getattr(logger or structlog.get_logger("clonos"), event.level)(event.name, **shown)
