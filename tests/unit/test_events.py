"""What a driver tells, and that telling never fails the job."""

from __future__ import annotations

import json
from pathlib import Path

from clonos.errors import EpochFailed
from clonos.runner.events import Event, Events, trouble


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
