"""What a driver tells about itself, one record for each event; `docs/observing.md` lists them."""

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

from clonos.errors import ClonosError

Emit = Callable[..., None]
Event = dict[str, Any]
Teller = Callable[[Event], None]
# Of a stack, characters.
_STACK: Final = 8_000
# How often a driver shows that it is alive.
ALIVE_S: Final = 1.0
# Counts of an ``epoch`` event, which are added up.
FIGURES: Final = (
    "read",
    "records",
    "recorded",
    "recorded_bytes",
    "replayed",
    "published_lanes",
    "skipped_lanes",
    "diverged_lanes",
    "dead_letters",
    "dropped",
)


class Events:
    """Tells events to a file (appended, so that restarts of a job share one) and to whoever else wants them.

    Args:
        job: The job's name.
        path: JSON lines file, or None.
        tellers: Called with each event, one at a time; they must be quick, because epochs wait for them.

    Attributes:
        generation: That of the driver's claim; 0 before the first.
    """

    def __init__(self, job: str, path: Path | None, tellers: Iterable[Teller] = ()) -> None:
        self._job = job
        self._out = path.open("a", buffering=1) if path else None
        self._tellers = tuple(tellers)
        self._lock = threading.Lock()  # queries end their epochs in threads of their own
        self._closed = threading.Event()
        self.generation = 0

    def emit(self, event: str, **fields: Any) -> None:
        """Tell one event."""
        record = {"event": event, "job": self._job, "generation": self.generation, **fields, "at": time.time()}
        with self._lock:
            # A full disk or a closed pipe is no reason to fail an epoch that is published.
            with contextlib.suppress(OSError):
                if self._out:
                    self._out.write(as_line(record) + "\n")
            for tell in self._tellers:
                with contextlib.suppress(OSError):
                    tell(record)

    def be_alive(self) -> None:
        """Until the end, touch the file each second: what was frozen does not (`clonos.agent.keeper` looks)."""
        if self._out is not None:
            threading.Thread(target=self._touch, args=(self._out.name,), daemon=True, name="clonos-alive").start()

    def _touch(self, path: str) -> None:
        while not self._closed.wait(ALIVE_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    def close(self) -> None:
        """Close the file."""
        self._closed.set()
        with contextlib.suppress(OSError):
            if self._out:
                self._out.close()


def as_line(event: Event) -> str:
    """An event as one line of JSON."""
    return json.dumps(event, default=str)


def trouble(error: ClonosError) -> Event:
    """The fields of an event that tells an error; ``stack`` where something else was raised behind it."""
    told = {"error": error.slug, "what": error.what, "kept": error.kept, "hint": error.hint}
    cause = error.__cause__
    while isinstance(cause, ClonosError) and cause.__cause__ is not None:
        cause = cause.__cause__  # that restarts are used up has an error behind it that has what was raised
    return told if cause is None else {**told, "stack": _stack(cause)}


def _stack(cause: BaseException) -> str:
    """Spark's exceptions hold the worker's traceback, and below it the JVM's."""
    text = "".join(traceback.format_exception(cause, chain=False))
    return text if len(text) <= _STACK else f"{text[: _STACK // 2]}\n…\n{text[-_STACK // 2 :]}"


def log_event(event: Event, logger: Any = None) -> None:
    """Tell an event as a log line, without what is long; what went wrong as a warning or an error.

    Args:
        event: The event.
        logger: A structlog logger; default the process's own.
    """
    level = {"lint": "warning", "restart": "warning", "superseded": "error", "failed": "error"}.get(
        event["event"], "info"
    )
    left_out = {"event", "at", "offsets", "operators", "spans", "stack"}
    fields = {name: value for name, value in event.items() if name not in left_out}
    getattr(logger or structlog.get_logger("clonos"), level)(event["event"], **fields)
