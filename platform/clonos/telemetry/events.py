"""Events of a driver: JSON objects with a name and fields. `docs/observing.md` lists them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from clonos.errors import CheckpointMismatch, ClonosError
from clonos.telemetry.event_text import level_of

Emit = Callable[..., None]
Event = dict[str, Any]
EventHandler = Callable[[Event], None]
_MAX_STACK_CHARACTERS: Final = 8_000
# Interval at which a driver touches its event file.
HEARTBEAT_S: Final = 1.0
# Counts of an ``epoch`` event that are summed.
FIGURES: Final = (
    "records_in",
    "records_out",
    "recorded_determinants",
    "recorded_bytes",
    "replayed_determinants",
    "published_lanes",
    "skipped_lanes",
    "diverged_lanes",
    "dead_letters",
    "dropped",
    "late_rows",
)


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

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event with this name and these fields to the file, and pass it to the handlers."""
        record = {"event": event, "job": self._job, "generation": self.generation, **fields, "at": time.time()}
        with self._lock:
            if self._closed.is_set():
                return  # a watch that was stopped had a request in progress
            # A full disk or a closed pipe must not fail a published epoch.
            with contextlib.suppress(OSError):
                if self._out:
                    self._out.write(as_line(record) + "\n")
            for handler in self._handlers:
                with contextlib.suppress(OSError):
                    handler(record)

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


def as_line(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps(event, default=str)


def error_fields(error: ClonosError) -> Event:
    """Fields of an event that reports `error`: slug, ``what``, ``kept``, ``hint``; ``stack`` if it has a cause."""
    fields: Event = {"error": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
    if isinstance(error, CheckpointMismatch) and error.codes:
        fields["codes"] = list(error.codes)
    cause = error.__cause__
    seen = {id(error)}  # `raise error from error` makes a circle
    # RestartsExhausted wraps the error that wraps the original exception
    while isinstance(cause, ClonosError) and cause.__cause__ is not None and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__
    return fields if cause is None else {**fields, "stack": _stack(cause)}


def _stack(cause: BaseException) -> str:
    """The stack as text; an exception of Spark contains the traceback of the worker, then the one of the JVM."""
    text = "".join(traceback.format_exception(cause, chain=False))
    half = _MAX_STACK_CHARACTERS // 2
    return text if len(text) <= _MAX_STACK_CHARACTERS else f"{text[:half]}\n…\n{text[-half:]}"


def log_event(event: Event, logger: Any = None) -> None:
    """Write an event as a log line, without long fields such as ``offsets`` and ``stack``.

    Events about problems are written as a warning or an error, others as information.

    Args:
        event: The event.
        logger: A structlog logger; default the logger of the process.
    """
    omitted = {
        "event",
        "at",
        "executors",
        "latencies",
        "offsets",
        "operators",
        "queries",
        "spans",
        "stack",
        "topics_in",
    }
    fields = {name: value for name, value in event.items() if name not in omitted}
    getattr(logger or structlog.get_logger("clonos"), level_of(event))(event["event"], **fields)
