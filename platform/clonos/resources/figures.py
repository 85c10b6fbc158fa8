"""Formats numbers, sizes and times for people, on the command line and in the dashboard. None stays None."""

from __future__ import annotations

import datetime as dt


def clock(moment: dt.datetime | None) -> str | None:
    """Format a time in UTC, such as ``2026-01-31 12:00:00Z``."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ") if moment is not None else None


def age(moment: dt.datetime | None, now: dt.datetime | None = None) -> str | None:
    """Format the time since `moment`, such as ``3 min 20 s``."""
    if moment is None:
        return None
    return duration(max(0.0, ((now or dt.datetime.now(dt.UTC)) - moment).total_seconds() * 1000))


def duration(ms: float | None) -> str | None:
    """Format a duration in its one or two largest units, such as ``350 ms``, ``2 min 5 s`` or ``3 d 4 h``."""
    if ms is None:
        return None
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float | None) -> str | None:
    """Format a number of bytes with a unit."""
    if count is None:
        return None
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def number(count: float | None) -> str | None:
    """Format a number without decimals, with a space between thousands."""
    return f"{count:,.0f}".replace(",", " ") if count is not None else None


def rate(per_s: float | None) -> str | None:
    """Format a number per second without its unit, with one decimal below 10."""
    return f"{per_s:.1f}" if per_s is not None and 0 < per_s < 10 else number(per_s)
