"""Durations and sizes as users write them: ``500ms``, ``10s``, ``5min``, ``1h30m``, ``30d``; ``512m``, ``1g``.

``job.yaml``, ``cluster.yaml``, settings and the command line have this one grammar. The suffixes are Spark's; sizes are
binary (``1k`` is 1,024 bytes). A number other than 0 needs its unit. Pydantic models use the types of this module: a
field holds a plain number in the unit of its type. JSON output shows the unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, PlainSerializer, WithJsonSchema

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)
_TEXT: Final = re.compile(r"\s*([0-9]+(\.[0-9]+)?\s*[a-z]+\s*)+", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {"b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_DURATION_PATTERN: Final = r"^(0|([0-9]+(\.[0-9]+)?(ms|s|m|min|h|d))+)$"
_SIZE_PATTERN: Final = r"^(0|[0-9]+(\.[0-9]+)?(b|k|kb|m|mb|g|gb))$"
_DURATION: Final = "a number with ms, s, m (min), h or d, such as 10s or 1h30m"
_SIZE: Final = "a number with k, m or g, such as 512m"


@dataclass(frozen=True)
class Unit:
    """Annotation of a model field whose value users write with a unit, such as ``10s``."""

    expected: str
    """Description of the expected form, for error messages."""


def parse_duration(text: str) -> float:
    """Parse a duration: numbers with units, in seconds; ``m`` and ``min`` are minutes. `ValueError` if one is missing.

    Example:
        >>> parse_duration("500ms")
        0.5
        >>> parse_duration("1h30m")
        5400.0
    """
    return sum(_parts(text, _SECONDS, _DURATION))


def parse_size(text: str) -> int:
    """Parse a size: a number with a unit, in bytes; `ValueError` if one is missing.

    Example:
        >>> parse_size("1g")
        1073741824
    """
    (size,) = _parts(text, _BYTES, _SIZE, most=1)
    return round(size)


def format_duration(seconds: float) -> str:
    """Format a duration with the largest unit that gives a whole number: ``90s``, ``10min``, ``500ms``."""
    ms = round(seconds * 1000)
    for unit in ("d", "h", "min", "s"):
        if ms and ms % round(_SECONDS[unit] * 1000) == 0:
            return f"{ms // round(_SECONDS[unit] * 1000)}{unit}"
    return f"{ms}ms" if ms else "0s"


def format_size(size: int) -> str:
    """Format a size with the largest unit that gives a whole number: ``1g``, ``512m``, ``100b``."""
    for unit in ("g", "m", "k"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}b"


def require_units(model: type[BaseModel], values: dict[str, Any]) -> None:
    """Reject numbers without a unit (`ValueError`) in fields that need one; `values` are by alias, as the user wrote
    them.
    """
    for field in model.model_fields.values():
        unit = next((part for part in field.metadata if isinstance(part, Unit)), None)
        value = values.get(field.alias or "")
        if unit is not None and isinstance(value, int | float) and value:
            raise ValueError(f"{field.alias}: {value} has no unit: write {unit.expected}")


def _parts(text: str, units: dict[str, Any], expected: str, most: int = 6) -> list[float]:
    parts = [(number, unit.lower()) for number, unit in _PART.findall(text)]
    if text.strip() == "0":
        return [0.0]
    if not _TEXT.fullmatch(text) or len(parts) > most or not all(unit in units for _, unit in parts):
        raise ValueError(f"{text!r} has no unit that is known: write {expected}")
    return [float(number) * float(units[unit]) for number, unit in parts]


def _reader(parse: Callable[[str], float], per_unit: float, whole: bool) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        number = parse(value) / per_unit
        return round(number) if whole else number

    return read


def _type(
    parse: Callable[[str], float],
    write: Callable[[Any], str],
    per_unit: float,
    *,
    whole: bool,
    expected: str,
    pattern: str,
) -> tuple[Any, ...]:
    return (
        Unit(expected),
        BeforeValidator(_reader(parse, per_unit, whole)),
        PlainSerializer(lambda number: write(number * per_unit), return_type=str, when_used="json-unless-none"),
        WithJsonSchema({"type": "string", "pattern": pattern, "description": f"{expected[0].upper()}{expected[1:]}."}),
    )


_duration = partial(_type, parse_duration, expected=_DURATION, pattern=_DURATION_PATTERN)
_size = partial(_type, parse_size, expected=_SIZE, pattern=_SIZE_PATTERN)
Seconds = Annotated[float, *_duration(format_duration, 1.0, whole=False)]
Milliseconds = Annotated[int, *_duration(format_duration, 0.001, whole=True)]
Bytes = Annotated[int, *_size(format_size, 1, whole=True)]
Mebibytes = Annotated[int, *_size(lambda size: format_size(round(size)), 1 << 20, whole=True)]
