"""The types of a driver's events: each is written and read again, also by another version."""

from __future__ import annotations

import json
import math
import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from clonos.errors import CheckpointMismatch
from clonos.telemetry import driver_events
from clonos.telemetry.driver_events import (
    FIGURES,
    TYPES,
    DriverEvent,
    Epoch,
    Failed,
    State,
    Unknown,
    as_line,
    from_fields,
    from_line,
    storable,
)


def value_of(kind: Any, number: int = 7) -> Any:
    """A value of a type, which differs from its default."""
    origin = get_origin(kind)
    if origin is Annotated:
        return value_of(get_args(kind)[0], number)
    if origin in (Union, types.UnionType):
        return value_of(next(part for part in get_args(kind) if part is not type(None)), number)
    if origin is list:
        return [value_of(get_args(kind)[0], number)]
    if origin is dict:
        key, value = get_args(kind)
        return {value_of(key, number): value_of(value, number)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return filled(kind, number)
    return {str: f"text {number}", int: number, float: number + 0.5, bool: True}[kind]


def filled(kind: type[Any], number: int = 7) -> Any:
    hints = get_type_hints(kind, vars(driver_events), include_extras=True)
    return kind(**{name: value_of(hints[name], number) for name in kind.__struct_fields__})


EACH_KIND = pytest.mark.parametrize("kind", list(TYPES.values()), ids=list(TYPES))


@EACH_KIND
def test_each_event_is_read_as_it_was_written(kind: type[DriverEvent]) -> None:
    event = filled(kind)
    line = as_line(event)
    assert "\n" not in line
    assert json.loads(line)["event"] == event.name
    assert from_line(line) == event
    assert from_line(line.encode()) == event


@EACH_KIND
def test_fields_and_events_of_a_later_version_are_accepted(kind: type[DriverEvent]) -> None:
    fields = json.loads(as_line(filled(kind)))
    assert from_fields({**fields, "of_a_later_version": [1]}) == filled(kind)
    assert from_line(json.dumps({**fields, "event": "of-a-later-version"})) == Unknown(
        job=fields["job"], generation=fields["generation"], at=fields["at"]
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "text",
        "[]",
        "5",
        "null",
        "{}",
        '{"event": 5}',
        '{"event": "epoch", "query": "out"}',
        '{"event": "epoch", "query": "out", "epoch": -1, "duration_ms": 1}',
        '{"event": "epoch", "query": "out", "epoch": true, "duration_ms": 1}',
        '{"event": "epoch", "query": "out", "epoch": 1, "duration_ms": NaN}',
        '{"event": "epoch", "query": "out", "epoch": 1, "duration_ms": 1, "latencies": {"200": 1}}',
        '{"event": "epoch", "query": "", "epoch": 1, "duration_ms": 1}',
        '{"event": "state", "state": "RUNNING", "at": -1}',
        '{"event": "state", "state": "RUNNING", "at": 1e12}',
        '{"event": "lag", "query": "out", "topics": {"in": 9007199254740992}}',
        '{"event": "state", "state": ' + "[" * 100_000,
    ],
)
def test_a_line_that_is_not_an_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        from_line(line)


def test_every_line_can_be_written_and_stored() -> None:
    """Text of job code, such as an exception's, may hold characters that UTF-8 or a database lacks."""
    line = as_line(Failed.of(RuntimeError("a lone surrogate \ud800 and a NUL \0")))
    event = from_line(line)
    assert isinstance(event, Failed)
    assert event.what == "RuntimeError: a lone surrogate ? and a NUL \ufffd"
    older = from_line('{"event": "failed", "what": "\\ud800\\u0000", "generation": 1}')
    assert isinstance(older, Failed)
    assert older.what == "?\ufffd"


def test_a_duration_that_is_not_a_number_is_null() -> None:
    assert json.loads(as_line(Epoch(query="out", epoch=1, duration_ms=math.nan)))["duration_ms"] is None


def test_the_codes_of_a_mismatch_are_reported() -> None:
    assert Failed.of(CheckpointMismatch("other code", codes=("a", "b"))).codes == ["a", "b"]


def test_levels() -> None:
    assert State("RUNNING").level == "info"
    assert Epoch(query="out", epoch=1, duration_ms=1.0).level == "info"
    assert Epoch(query="out", epoch=1, duration_ms=1.0, late_rows=1).level == "warning"
    assert Epoch(query="out", epoch=1, duration_ms=1.0, late_rows=1, diverged_lanes=1).level == "error"
    assert len(FIGURES) == 11


@given(
    st.recursive(
        st.one_of(st.none(), st.floats(), st.text()), lambda item: st.lists(item) | st.dictionaries(st.text(), item)
    )
)
def test_storable_values_are_accepted_by_every_database(value: Any) -> None:
    remaining = json.dumps(storable(value), allow_nan=False, ensure_ascii=False)
    remaining.encode()
    assert "\\u0000" not in remaining
