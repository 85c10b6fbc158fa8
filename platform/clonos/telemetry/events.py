"""Writes the events of a driver (`clonos.telemetry.driver_events`) to its file and handlers, and as text for people."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from clonos.telemetry import driver_events as reported
from clonos.telemetry.driver_events import DriverEvent, as_line, from_fields

Emit = Callable[[DriverEvent], None]
EventHandler = Callable[[DriverEvent], None]
_Fields = Mapping[str, Any]
# Interval at which a driver touches its event file.
HEARTBEAT_S: Final = 1.0
_MAX_VALUE: Final = 300
# Shown elsewhere in a line, or too long for one.
_OMITTED: Final = frozenset(
    {"event", "job", "generation", "at", "level", "timestamp", "logger", "exception", "stack", "kept", "hint"}
    | {"spans", "offsets", "operators", "partitions", "executors", "queries", "topics_in", "latencies"}
)


class Events:
    """Appends events to a file (JSON lines), which restarts of a job share, and passes them to handlers.

    Epochs wait for handlers, which get one event at a time, so they must be fast. An `OSError` of a handler is ignored;
    `emit` raises any other error.
    """

    def __init__(self, job: str, path: Path | None, handlers: Iterable[EventHandler] = ()) -> None:
        self._job = job
        self._out = path.open("a", buffering=1) if path else None
        self._handlers = tuple(handlers)
        self._lock = threading.Lock()  # each query ends its epochs in its own thread
        self._closed = threading.Event()
        self.generation = 0  # generation of the driver's newest claim, a field of each event; 0 before the first claim

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


def level_of(fields: _Fields) -> str:
    """Return the level of a log line without one: ``info``, ``warning`` or ``error``."""
    event = _event(fields)
    return "info" if event is None else event.level


def text_of(fields: _Fields) -> str:
    """Return an event, or the fields of a JSON log line, as a short text.

    Example:
        >>> text_of({"event": "state", "job": "orders", "generation": 2, "state": "RUNNING", "at": 1.0})
        'state RUNNING'
        >>> text_of({"event": "rates are old", "level": "warning", "logger": "orders.rates", "age_s": 90.0})
        'orders.rates: rates are old age_s=90'
    """
    name = str(fields["event"])
    if fields.get("what") and (fields.get("error") or "level" not in fields):
        return ": ".join(filter(None, (name, str(fields.get("error") or ""), str(fields["what"]))))
    event = None if "level" in fields else _event(fields)
    if event is not None and (text := _text(event)):
        return text
    logger = str(fields.get("logger") or "")
    # Java names are long; the class is enough.
    short = logger.rpartition(".")[2] if str(fields.get("level", "")).isupper() else logger
    others = fields_text({key: value for key, value in fields.items() if key not in _OMITTED})
    return " ".join(filter(None, (f"{short}:" if short else "", name, others)))


def _event(fields: _Fields) -> DriverEvent | None:
    """Return the event of a driver with these fields; None if they are the fields of another log line."""
    try:
        return from_fields(fields)
    except ValueError:
        return None


def fields_text(fields: _Fields) -> str:
    """Fields as ``name=value``, with a space between two."""
    return " ".join(f"{name}={_value(value)}" for name, value in fields.items() if value not in (None, ""))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _text(event: DriverEvent) -> str:
    """Return the text of an event; empty: its fields are shown as they are."""
    match event:
        case reported.State():
            return f"state {event.state}"
        case reported.Standby():
            return f"standby {event.state}"
        case reported.Session():
            return f"Spark session {event.application_id} on {event.master}"
        case reported.Claimed():
            return f"claimed the causal log: generation {event.generation}, lineage {event.lineage}"
        case reported.Ready():
            return f"{event.query} is ready to read"
        case reported.Epoch():
            return _epoch(event)
        case reported.Lag():
            topics = ", ".join(f"{topic} {records}" for topic, records in event.topics.items() if records)
            return f"lag of {event.query}: {topics or 'none'}"
        case reported.Kafka():
            if event.silent_since is not None:
                return "Kafka does not answer"
            behind = f", {event.under_replicated} partitions under-replicated" if event.under_replicated else ""
            return f"Kafka answers, brokers: {event.brokers}{behind}"
    return ""


def _epoch(event: reported.Epoch) -> str:
    parts = [f"{event.records_in} records in, {event.records_out} out"]
    counts = {"skipped_lanes": "lanes skipped", "diverged_lanes": "lanes diverged", "dead_letters": "dead letters"}
    counts |= {"dropped": "records dropped", "late_rows": "late rows dropped"}
    counts |= {"replayed_determinants": "determinants replayed"}
    parts += [f"{count} {text}" for name, text in counts.items() if (count := getattr(event, name))]
    replay = "replay of epoch" if event.replay else "epoch"
    return f"{replay} {event.epoch} of {event.query}: {', '.join(parts)}, {event.duration_ms:.0f} ms"
