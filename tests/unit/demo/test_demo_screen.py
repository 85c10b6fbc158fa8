"""What the demo shows and prints."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import get_args

import pytest
from checking import published
from rich.console import Console

from clonos_demo.command import Example
from clonos_demo.demo import Report, shares
from clonos_demo.evidence import Sent
from clonos_demo.example import NAMES
from clonos_demo.gaps import RECOVERY_KINDS, Gap
from clonos_demo.latency import Latencies
from clonos_demo.screen import Counters, Outcome, Progress, Screen
from clonos_demo.verdict import Fault, Finding, Verdict

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
# The fourth record was on its way when the driver was killed, and the fifth was sent before the next one published.
TAKEN = ((100.0, 0.01), (101.0, 0.02), (102.0, 0.03), (102.5, 0.6), (103.2, 0.2), (160.0, 0.002))
LATENCIES = Latencies(TAKEN, [(102.7, 103.5)])
GAPS = (Gap("cold", 9.8), Gap("standby", 0.61), Gap("standby", 0.59))
PROGRESS = Progress(
    title="Clonos",
    phase="kill 2 is near",
    records_in=120,
    records_out={"words": 900, "sample": 90},
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
        Outcome(
            "Clonos",
            CLEAN,
            kills=3,
            longest_gap_s=9.87654,
            counters=Counters(4, 2, 70, 9),
            gaps=GAPS,
            latencies=LATENCIES,
        ),
        Outcome("plain Spark", SPOILED, kills=2, longest_gap_s=9.0, counters=None, gaps=(Gap("cold", 8.0),)),
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


def test_both_gaps_are_side_by_side() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=100)) as screen:
        screen.verdict(list(outcomes()))
        screen.gaps(GAPS)
    text = out.getvalue()
    assert re.search(r"gap, cold restart +│ +9\.8 s │ +8\.0 s │", text)
    assert re.search(r"gap, standby takeover +│ +0\.6 s │ +│", text)
    names = (RECOVERY_KINDS["cold"], RECOVERY_KINDS["standby"])
    cold, standby = (next(re.finditer(rf"  {name} +(█+) +(\S+ s)(.*)", text)) for name in names)
    assert RECOVERY_KINDS["executor"] not in text, "no executor was killed"
    assert (cold[2], cold[3].strip()) == ("9.80 s", "")
    assert (standby[2], standby[3].strip()) == ("0.60 s", "(median of 2)")
    assert len(standby[1]) == round(len(cold[1]) * 0.6 / 9.8) == 2
    assert "The takeover was 16.3 times faster." in text


def test_the_latencies_are_drawn_with_the_kills() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=100)) as screen:
        screen.verdict(list(outcomes()))
    text = out.getvalue()
    assert re.search(r"latency, p50 +│ +15 ms │ +│", text)
    assert re.search(r"latency, p99 +│ +30 ms │ +│", text)
    bars = "▃▃▆▅" + " " * 55 + "▁"
    assert f"\n  {bars}\n    ✝\n" in text
    sent = [Sent("in", 0, offset, b"", at=float(offset)) for offset in range(3)]
    copies = [{"source": {"topic": "in", "partition": 0, "offset": offset}} for offset in (0, 1, 1)]
    arrived = [replace(record, arrived=1.5 + n) for n, record in enumerate(published("out", copies))]
    assert Latencies.of(sent, arrived, []).taken == [(0.0, 1.5), (1.0, 1.5)], "the first copy of a published record"


def test_records_that_wait_for_the_start_or_for_a_backlog_are_not_in_the_figures() -> None:
    started = [(0.0, 9.0), (5.0, 4.1), (9.5, 0.01)]
    backlog = [(11.0, 5.0), (15.5, 3.0), (19.0, 0.02), (20.0, 0.03)]
    assert Latencies([*started, *backlog], [(10.0, 15.0)]).as_json() == {"p50": 20.0, "p99": 30.0, "n": 3}
    assert Latencies(backlog[:2], [(10.0, 15.0)]).as_json() == {"p50": None, "p99": None, "n": 0}


def test_without_a_takeover_nothing_is_compared() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=100)) as screen:
        screen.gaps(GAPS[:1])
    assert out.getvalue() == ""


def test_the_json_object_has_the_promised_fields() -> None:
    job, plain = outcomes()
    shown = json.loads(json.dumps(Report(7, {"wordcount": job}, plain).as_json()))
    checked = {"records_in", "expected", "published", "duplicates", "lost", "order_breaks", "contradictions"}
    measured = {"longest_gap_s", "kills", "gaps"}
    counted = {"skipped_lanes", "determinants_recorded", "determinants_replayed"}
    assert shown.keys() == checked | measured | counted | {"seed", "plain", "examples"}
    assert shown["plain"].pop("latency_ms") == {"p50": None, "p99": None, "n": 0}
    assert shown["plain"].keys() == checked | measured
    assert shown["examples"].keys() == {"wordcount"}
    example = shown["examples"]["wordcount"]
    assert example.pop("recoveries") == []
    assert example.pop("latency_ms") == {"p50": 15.0, "p99": 30.0, "n": 4}
    assert example.items() <= shown.items()
    assert example.keys() == checked | measured | counted
    assert (shown["seed"], shown["kills"], shown["longest_gap_s"], shown["skipped_lanes"]) == (7, 3, 9.877, 2)
    assert (shown["gaps"]["cold"]["p50_s"], shown["gaps"]["standby"]["n"]) == (9.8, 2)
    assert shown["plain"]["gaps"]["standby"] is None
    assert Report(7, {"wordcount": job}).as_json()["plain"] is None


def test_the_totals_are_those_of_all_examples() -> None:
    clean, spoiled = outcomes()
    shown = Report(7, {"orders": clean, "enrich": spoiled}).as_json()
    assert (shown["kills"], shown["published"], shown["duplicates"], shown["contradictions"]) == (5, 61, 1, 2)
    assert shown["longest_gap_s"] == 9.877
    assert shown["gaps"]["cold"]["raw_s"] == [9.8, 8.0]
    assert [example["duplicates"] for example in shown["examples"].values()] == [0, 1]


def test_any_clonos_run_decides_the_exit_code_and_plain_spark_never_does() -> None:
    job, plain = outcomes()
    assert Report(7, {"wordcount": job}, plain).clean
    assert not Report(7, {"wordcount": plain}, job).clean
    assert not Report(7, {"wordcount": job, "orders": plain}).clean


def test_kills_are_split_over_the_examples() -> None:
    assert shares(200, 3) == [67, 67, 66]
    assert shares(2, 3) == [1, 1, 0]
    assert shares(3, 1) == [3]


def test_the_command_line_knows_all_examples() -> None:
    assert set(get_args(Example)) == {*NAMES, "all"}
