"""What a driver tells, and that telling never fails the job."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from clonos.errors import EpochFailed, RestartsExhausted
from clonos.runner.events import Event, Events, log_event, trouble
from clonos.runner.running import _typed


def test_everybody_is_told(tmp_path: Path) -> None:
    told: list[Event] = []
    events = Events("j", tmp_path / "events", [told.append])
    events.emit("state", state="CLAIMING")
    events.generation = 3
    events.emit("restart", **trouble(EpochFailed("oops", kept="all", hint="wait")), attempt=1)
    events.close()
    assert [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()] == told
    first, second = told
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


def test_a_closed_pipe_fails_nobody() -> None:
    told: list[Event] = []

    def broken(_event: Event) -> None:
        raise BrokenPipeError

    events = Events("j", Path("/dev/full"), [broken, told.append])
    events.emit("stopped")
    events.close()
    assert [event["event"] for event in told] == ["stopped"]


def test_what_was_raised_behind_an_error_is_told_but_in_no_log_line() -> None:
    error = EpochFailed("oops")
    assert "stack" not in trouble(error)
    try:
        raise OSError("x" * 20_000)
    except OSError as cause:
        error.__cause__ = cause
    stack = trouble(error)["stack"]
    assert stack.startswith("Traceback (most recent call last):")
    assert "raise OSError" in stack
    assert len(stack) < 10_000, "bounded"
    exhausted = RestartsExhausted("again and again")
    exhausted.__cause__ = error
    assert trouble(exhausted)["stack"] == stack, "not where we wrapped it"
    with structlog.testing.capture_logs() as logged:
        log_event({"event": "failed", "at": 1.0, **trouble(error)})
    assert "stack" not in logged[0]


def test_a_querys_failure_knows_what_was_raised() -> None:
    raised = OSError("no")
    assert _typed(raised).__cause__ is raised
    known = EpochFailed("known")
    assert _typed(known) is known
    assert known.__cause__ is None
