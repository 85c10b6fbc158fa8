"""Events of a driver as their fields, as the event file has them."""

from __future__ import annotations

from typing import Any

import msgspec

from clonos.telemetry.driver_events import DriverEvent
from clonos.telemetry.events import EventHandler


def fields_of(event: DriverEvent) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    return fields


def into(events: list[dict[str, Any]]) -> EventHandler:
    """A handler that appends the fields of each event to `events`."""
    return lambda event: events.append(fields_of(event))
