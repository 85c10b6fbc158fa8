"""Events of a driver; a failure to write them never fails the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from clonos.driver.running import _typed
from clonos.errors import EpochFailed, RestartsExhausted
from clonos.telemetry.driver_events import DriverEvent, Failed, Report, Restart, State, Stopped, error_fields
from clonos.telemetry.events import Events, log_event
from support.event_fields import fields_of


def test_file_and_receivers_get_the_same_events(tmp_path: Path) -> None:
    received: list[DriverEvent] = []
    events = Events("j", tmp_path / "events", [received.append])
    events.emit(State("CLAIMING"))
    events.generation = 3
    events.emit(Restart.of(EpochFailed("oops", kept="all", hint="wait"), attempt=1))
    events.close()
    written = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert written == [fields_of(event) for event in received]
    first, second = written
    assert first.items() >= {"event": "state", "job": "j", "generation": 0, "state": "CLAIMING"}.items()
    expected = {"generation": 3, "error": "epoch-failed", "what": "oops", "kept": "all", "hint": "wait", "attempt": 1}
    assert second.items() >= expected.items()


def test_a_closed_pipe_does_not_stop_other_receivers() -> None:
    received: list[DriverEvent] = []

    def broken(_event: DriverEvent) -> None:
        raise BrokenPipeError

    events = Events("j", Path("/dev/full"), [broken, received.append])
    events.emit(Stopped())
    events.close()
    assert [event.name for event in received] == ["stopped"]


def test_an_event_holds_the_stack_of_the_cause_and_a_log_line_does_not() -> None:
    error = EpochFailed("oops")
    assert Report.of(error).stack == ""
    try:
        raise OSError("x" * 20_000)
    except OSError as cause:
        error.__cause__ = cause
    stack = Report.of(error).stack
    assert stack.startswith("Traceback (most recent call last):")
    assert "raise OSError" in stack
    assert len(stack) < 10_000, "bounded"
    exhausted = RestartsExhausted("again and again")
    exhausted.__cause__ = error
    assert Report.of(exhausted).stack == stack, "not where we wrapped it"
    with structlog.testing.capture_logs() as logged:
        log_event(Failed.of(error))
    assert logged[0]["log_level"] == "error"
    assert "stack" not in logged[0]


@pytest.mark.timeout(30)
def test_causes_that_form_a_circle_end_nowhere() -> None:
    error = EpochFailed("oops")
    error.__cause__ = error
    assert error_fields(error)["what"] == "oops"
    outer = RestartsExhausted("again and again")
    outer.__cause__, error.__cause__ = error, outer
    assert error_fields(outer)["error"] == "restarts-exhausted"


def test_a_failure_of_a_query_has_the_exception_as_its_cause() -> None:
    raised = OSError("no")
    assert _typed(raised).__cause__ is raised
    known = EpochFailed("known")
    assert _typed(known) is known
    assert known.__cause__ is None
