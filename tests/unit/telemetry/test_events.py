"""Events of a driver; a failure to write them never fails the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from clonos.driver.running import _typed
from clonos.errors import EpochFailed, RestartsExhausted
from clonos.telemetry.events import Event, Events, error_fields, log_event


def test_file_and_receivers_get_the_same_events(tmp_path: Path) -> None:
    received: list[Event] = []
    events = Events("j", tmp_path / "events", [received.append])
    events.emit("state", state="CLAIMING")
    events.generation = 3
    events.emit("restart", **error_fields(EpochFailed("oops", kept="all", hint="wait")), attempt=1)
    events.close()
    assert [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()] == received
    first, second = received
    assert first.items() >= {"event": "state", "job": "j", "generation": 0, "state": "CLAIMING"}.items()
    assert (
        second.items()
        >= {
            "generation": 3,
            "error": "epoch-failed",
            "what": "oops",
            "kept": "all",
            "hint": "wait",
            "attempt": 1,
        }.items()
    )


def test_a_closed_pipe_does_not_stop_other_receivers() -> None:
    received: list[Event] = []

    def broken(_event: Event) -> None:
        raise BrokenPipeError

    events = Events("j", Path("/dev/full"), [broken, received.append])
    events.emit("stopped")
    events.close()
    assert [event["event"] for event in received] == ["stopped"]


def test_an_event_holds_the_stack_of_the_cause_and_a_log_line_does_not() -> None:
    error = EpochFailed("oops")
    assert "stack" not in error_fields(error)
    try:
        raise OSError("x" * 20_000)
    except OSError as cause:
        error.__cause__ = cause
    stack = error_fields(error)["stack"]
    assert stack.startswith("Traceback (most recent call last):")
    assert "raise OSError" in stack
    assert len(stack) < 10_000, "bounded"
    exhausted = RestartsExhausted("again and again")
    exhausted.__cause__ = error
    assert error_fields(exhausted)["stack"] == stack, "not where we wrapped it"
    with structlog.testing.capture_logs() as logged:
        log_event({"event": "failed", "at": 1.0, **error_fields(error)})
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
