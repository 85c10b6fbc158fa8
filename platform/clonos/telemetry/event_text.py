"""Events of a driver, and JSON log lines, as text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_Fields = Mapping[str, Any]
_WARNINGS: Final = frozenset(
    {
        "lint",
        "restart",
        "waiting",
        "standby-trouble",
        "not-rehearsed",
        "primary-stalled",
        "log-topic-unsafe",
        "not-truncated",
    }
)
_ERRORS: Final = frozenset({"superseded", "failed"})
# Shown elsewhere in a line, or too long for one.
_OMITTED: Final = frozenset(
    {"event", "job", "generation", "at", "level", "timestamp", "logger", "exception", "stack", "kept", "hint"}
    | {"spans", "offsets", "operators", "partitions", "executors", "queries", "topics_in", "latencies"}
)
_MAX_VALUE: Final = 300


def level_of(event: _Fields) -> str:
    """The log level of an event: ``info``, ``warning`` or ``error``."""
    name = event.get("event")
    if name in _ERRORS or (name == "epoch" and event.get("diverged_lanes")):
        return "error"
    silent = name == "kafka" and event.get("silent_since") is not None
    loses = name == "epoch" and bool(event.get("late_rows"))
    return "warning" if silent or loses or name in _WARNINGS else "info"


def text_of(event: _Fields) -> str:
    """An event, or the fields of a JSON log line, as a short text.

    Example:
        >>> text_of({"event": "state", "job": "orders", "generation": 2, "state": "RUNNING", "at": 1.0})
        'state RUNNING'
        >>> text_of({"event": "rates are old", "level": "warning", "logger": "orders.rates", "age_s": 90.0})
        'orders.rates: rates are old age_s=90'
    """
    name = str(event["event"])
    if event.get("what") and (event.get("error") or "level" not in event):
        return ": ".join(filter(None, (name, str(event.get("error") or ""), str(event["what"]))))
    if name in _TEXTS and "level" not in event:
        try:
            return _TEXTS[name](event)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            pass  # of another version: its fields follow its name
    logger = str(event.get("logger") or "")
    # Java names are long; the class is enough.
    short = logger.rpartition(".")[2] if str(event.get("level", "")).isupper() else logger
    others = fields_text({key: value for key, value in event.items() if key not in _OMITTED})
    return " ".join(filter(None, (f"{short}:" if short else "", name, others)))


def fields_text(fields: _Fields) -> str:
    """Fields as ``name=value``, with a space between two."""
    return " ".join(f"{name}={_value(value)}" for name, value in fields.items() if value not in (None, ""))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _epoch(event: _Fields) -> str:
    parts = [f"{event['records_in']} records in, {event['records_out']} out"]
    counts = {"skipped_lanes": "lanes skipped", "diverged_lanes": "lanes diverged", "dead_letters": "dead letters"}
    counts |= {"dropped": "records dropped", "late_rows": "late rows dropped"}
    counts |= {"replayed_determinants": "determinants replayed"}
    parts += [f"{event[name]} {text}" for name, text in counts.items() if event.get(name)]
    replay = "replay of epoch" if event.get("replay") else "epoch"
    return f"{replay} {event['epoch']} of {event['query']}: {', '.join(parts)}, {event['duration_ms']:.0f} ms"


def _lag(event: _Fields) -> str:
    topics = ", ".join(f"{topic} {records}" for topic, records in event["topics"].items() if records)
    return f"lag of {event['query']}: {topics or 'none'}"


def _kafka(event: _Fields) -> str:
    if event["silent_since"] is not None:
        return "Kafka does not answer"
    behind = f", {event['under_replicated']} partitions under-replicated" if event["under_replicated"] else ""
    return f"Kafka answers, brokers: {event['brokers']}{behind}"


_TEXTS: Final = {
    "state": lambda event: f"state {event['state']}",
    "standby": lambda event: f"standby {event['state']}",
    "session": lambda event: f"Spark session {event['application_id']} on {event['master']}",
    "claimed": lambda event: f"claimed the causal log: generation {event['generation']}, lineage {event['lineage']}",
    "ready": lambda event: f"{event['query']} is ready to read",
    "epoch": _epoch,
    "lag": _lag,
    "kafka": _kafka,
}
