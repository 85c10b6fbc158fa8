"""The references of events: of the control plane, and of drivers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final

from markdown_text import NOTE, code, prose, table

from clonos.documents import meanings
from clonos.resources.event_types import EVENT_KINDS
from clonos.telemetry.driver_events import TYPES, Counted, DriverEvent, Report

_SHARED: Final[Mapping[type[DriverEvent], str]] = {Report: "*fields of an error*", Counted: "*counts*"}


def page() -> str:
    """Return the page of all types of events."""
    kinds = sorted(EVENT_KINDS.items())
    drivers = sorted(TYPES.items())
    return "\n".join(
        [
            "# Events",
            "",
            NOTE,
            "",
            "## Of the control plane",
            "",
            "`clonos events -f` and `GET /api/v1/events` follow these events. Each also has `seq`, `at`, and the ids "
            "of its job and host, if it is about one.",
            "",
            table(
                ["type", "when", "fields of `data`"],
                [(code(name), kind.when, ", ".join(map(code, kind.fields))) for name, kind in kinds],
            ),
            "## Of a driver",
            "",
            "`clonos run --events FILE` and `-o json` write these events ([observing](../observing.md#events)). Each "
            "also has `job`, `generation` (of the newest claim; 0 before the first) and `at` (seconds since 1970). "
            "Log lines omit the fields that are in italics.",
            "",
            table(["event", "when", "fields"], [(code(name), _when(kind), _fields(kind)) for name, kind in drivers]),
            "Fields of several events:",
            "",
            *(f"- {title}: {_fields(base)}." for base, title in _SHARED.items()),
        ]
    )


def _when(kind: type[DriverEvent]) -> str:
    return _linked(prose(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]))


def _fields(kind: type[DriverEvent]) -> str:
    described = meanings(kind)
    shared = next((base for base in _SHARED if issubclass(kind, base) and kind is not base), DriverEvent)
    own = [name for name in kind.__struct_fields__ if name not in shared.__struct_fields__]
    texts = [
        f"{f'*{code(name)}*' if name in kind.long else code(name)}: {_linked(prose(described[name]).rstrip('.'))}"
        for name in own
    ]
    return "; ".join([*texts, *([_SHARED[shared]] if shared in _SHARED else [])])


def _linked(text: str) -> str:
    """Return the text with links that hold in a page below ``reference``."""
    return re.sub(r"\]\((?=\w)", "](../", text)
