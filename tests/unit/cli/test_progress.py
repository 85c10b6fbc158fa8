"""The progress of a wait: when it is shown, what it says, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from clonos.cli.progress import Progress, _step
from clonos.resources.jobs import Job
from clonos.resources.service import Operation
from support.clock import Clock


def test_a_short_wait_shows_nothing_and_asks_for_no_estimate() -> None:
    out, clock = io.StringIO(), Clock()

    def usual_s() -> float:
        pytest.fail("an estimate of a short wait")

    with Progress("start of words", usual_s=usual_s, console=Console(file=out), clock=clock) as progress:
        for _ in range(4):
            progress.show("STARTING")
            clock.now += 0.5
        assert not progress.due
    assert out.getvalue() == ""


def test_a_pipe_gets_a_line_for_each_phase() -> None:
    out, clock = io.StringIO(), Clock()
    asked: list[None] = []

    def usual_s() -> float:
        asked.append(None)
        return 25.0

    with Progress("start of words", usual_s=usual_s, console=Console(file=out, width=200), clock=clock) as progress:
        for phase in ("CREATED", "STARTING", "STARTING", "STARTING on [fd00::1]"):
            progress.show(phase)
            clock.now += 3
        clock.now += 60
        progress.show("RECOVERING")
    assert out.getvalue().splitlines() == [
        "start of words: STARTING, 3 s, about 22 s left",
        "start of words: STARTING on [fd00::1], 9 s, about 16 s left",
        "start of words: RECOVERING, 1 min 12 s, longer than the usual 25 s",
    ]
    assert len(asked) == 1


def test_a_terminal_has_one_line_that_is_cleared() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=True, width=60)
    with Progress("audit of words", console=console, clock=clock) as progress:
        clock.now += 4
        progress.show("reading the output", detail="1,000 of 3,000 records", left_s=8)
        progress.show("reading the output", detail="2,000 of 3,000 records", left_s=4)
    text = out.getvalue()
    assert "audit of words: reading the output, 1,000 of 3,000 records" in text
    assert text.count("\x1b[2K") >= 2, "the line is erased before the next one, and at the end"
    assert "\n" not in text.split("2,000 of 3,000")[0], "it is rewritten in place"


def test_a_phase_without_an_estimate_has_its_elapsed_time() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("savepoint of words", console=Console(file=out), clock=clock) as progress:
        clock.now += 5
        progress.show("RUNNING")
    assert out.getvalue() == "savepoint of words: RUNNING, 5 s\n"


@pytest.mark.parametrize(
    ("kind", "state", "observed", "text"),
    [
        ("upgrade", "RUNNING", 4, ", while a standby of version 5 warms up"),
        ("upgrade", "RUNNING", 5, ", waits for the queries of version 5, at most a minute"),
        ("upgrade", "RECOVERING", 4, ""),
        ("move", "RUNNING", 5, ""),
    ],
)
def test_an_upgrade_names_what_it_waits_for(kind: str, state: str, observed: int, text: str) -> None:
    operation = Operation.model_construct(kind=kind)
    assert _step(operation, Job.model_construct(state=state, version=5, observed_version=observed)) == text


def test_quiet() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("start of words", shown=False, console=Console(file=out), clock=clock) as progress:
        clock.now += 50
        progress.show("STARTING")
    assert out.getvalue() == ""
