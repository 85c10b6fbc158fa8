"""What the demo shows and prints."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from clonos.demo.checker import Fault, Finding, Verdict
from clonos.demo.screen import Counters, Outcome, Progress, Screen
from clonos.demo.story import Report

CLEAN = Verdict(
    records_in=10, expected=30, published=30, duplicates=0, lost=0, order_breaks=0, contradictions=0, pending=0
)
SPOILED = Verdict(
    records_in=10,
    expected=30,
    published=31,
    duplicates=1,
    lost=0,
    order_breaks=1,
    contradictions=2,
    pending=0,
    findings=(Finding(Fault.DUPLICATE, "words record of ('lines', 0, 0, 0)"),),
)
PROGRESS = Progress(
    title="Clonos",
    phase="kill 2 is near",
    lines_in=120,
    words=900,
    samples=90,
    totals=400,
    repeats=0,
    kills=1,
    kills_planned=3,
    silent_s=0.2,
    counters=Counters(2, 1, 50, 20),
    per_second=[0] * 50 + list(range(10)),
    kill_ages_s=(12.5, 100.0),
)


def outcomes() -> tuple[Outcome, Outcome]:
    return (
        Outcome("Clonos", CLEAN, kills=3, longest_gap_s=9.87654, counters=Counters(4, 2, 70, 9)),
        Outcome("plain Spark", SPOILED, kills=2, longest_gap_s=9.0, counters=None),
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_and_verdict_are_shown(terminal: bool) -> None:
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=terminal, width=100)) as screen:
        screen.say("kill -9 number 1 of 3")
        screen.show(PROGRESS)
        screen.verdict(list(outcomes()))
    text = out.getvalue()
    assert "kill -9 number 1 of 3" in text
    assert "kill 2 is near" in text or terminal
    assert "Clonos: every result was published exactly once." in text
    assert "plain Spark: not exactly once." in text
    assert "duplicate: words record of ('lines', 0, 0, 0)" in text
    assert ("\x1b[" in text) == terminal


def test_the_json_object_has_the_promised_fields() -> None:
    job, plain = outcomes()
    shown = json.loads(json.dumps(Report(7, job, plain).as_json()))
    checked = {"records_in", "expected", "published", "duplicates", "lost", "order_breaks", "contradictions"}
    measured = {"longest_gap_s", "kills"}
    own = {"skipped_lanes", "determinants_recorded", "determinants_replayed", "seed", "plain"}
    assert shown.keys() == checked | measured | own
    assert shown["plain"].keys() == checked | measured
    assert (shown["seed"], shown["kills"], shown["longest_gap_s"], shown["skipped_lanes"]) == (7, 3, 9.877, 2)
    assert Report(7, job, None).as_json()["plain"] is None


def test_only_the_clonos_run_decides_the_exit_code() -> None:
    job, plain = outcomes()
    assert Report(7, job, plain).clean
    assert not Report(7, plain, job).clean
