"""The live view of `clonos run` as text, and its figures."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from clonos.cli.live import FoldedFrames, Picture, ending, span
from clonos.driver.status import JobStatus
from clonos.telemetry.driver_events import Summary, from_fields

T0 = 1_700_000_000.0


def status(*events: dict[str, Any]) -> JobStatus:
    job = JobStatus("wordcount", now=T0)
    for event in events:
        job.take(from_fields({"generation": 3, "at": T0, **event}))
    return job


def state(name: str, at: float = T0) -> dict[str, Any]:
    return {"event": "state", "state": name, "at": at}


def epoch(query: str, number: int, at: float, **fields: Any) -> dict[str, Any]:
    return {
        "event": "epoch",
        "query": query,
        "epoch": number,
        "at": at,
        "duration_ms": 100,
        "records_in": 50,
        "records_out": 450,
        "recorded_determinants": 4,
        "replayed_determinants": 0,
        "skipped_lanes": 0,
        "diverged_lanes": 0,
        **fields,
    }


def running(query: str = "words", epochs: int = 40, **fields: Any) -> list[dict[str, Any]]:
    """Four epochs a second, with durations of 100, 110, … ms."""
    return [epoch(query, n, T0 + 10 + n / 4, duration_ms=100 + 10 * n, **fields) for n in range(epochs)]


def lag(query: str, **topics: int) -> dict[str, Any]:
    return {"event": "lag", "query": query, "topics": topics}


def restart(at: float, **fields: Any) -> dict[str, Any]:
    return {
        "event": "restart",
        "at": at,
        "error": "epoch-failed",
        "what": "A worker was lost.",
        "hint": "see the log of the worker.",
        "attempt": 2,
        "pause_s": 0.2,
        **fields,
    }


def drawn(job: JobStatus, now: float, width: int = 120) -> str:
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True, color_system=None)
    console.print(Picture(job, now=now))
    return console.export_text()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_view_of_a_starting_job() -> None:
    text = drawn(JobStatus("wordcount", now=T0), T0 + 8)
    assert text == "wordcount  STARTING for 8s  generation -  up 8s  starting Spark and loading the job\n"


def test_the_view_of_a_running_job() -> None:
    job = status(state("RUNNING", T0 + 9), *running(), lag("words", lines=1234))
    text = drawn(job, T0 + 20)
    head, titles, row = text.splitlines()
    assert head.startswith("wordcount  RUNNING for 11s  generation 3  up 20s  Ctrl-C")
    assert titles.split() == [
        "query",
        "epoch",
        "in/s",
        "out/s",
        "p50",
        "ms",
        "p99",
        "ms",
        "lag",
        "recorded",
        "replayed",
    ]
    # In ten seconds: 39 epochs after the start of the window, each with 50 records read and 450 published.
    assert row.split() == ["words", "39", "195", "1,755", "300", "490", "lines", "1,234", "160", "0"]


def test_figures_cover_the_last_minute() -> None:
    job = status(state("RUNNING"), epoch("words", 0, T0 + 1, duration_ms=9_000), epoch("words", 1, T0 + 30))
    assert rows(drawn(job, T0 + 40))[2][4:6] == ["9,000", "9,000"]
    assert rows(drawn(job, T0 + 65))[2][4:6] == ["100", "100"]
    assert rows(drawn(job, T0 + 100))[2][1:6] == ["1", "0", "0", "-", "-"]


def test_rare_counters_have_columns_once_they_are_not_zero() -> None:
    job = status(
        state("RUNNING"),
        *running("words"),
        *running(
            "totals",
            2,
            records_in=9,
            records_out=3,
            recorded_determinants=0,
            replayed_determinants=7,
            skipped_lanes=2,
            dead_letters=1,
            dropped=5,
        ),
        lag("totals", a=1, b=7, c=3, d=2, e=0),
    )
    text = drawn(job, T0 + 20, 140)
    titles, totals, words = text.splitlines()[1:]
    assert titles.split()[-5:] == ["recorded", "replayed", "skipped", "dead", "drop"]
    assert totals.split()[0] == "totals"
    assert totals.endswith("0        14        4     2    10")
    assert "b 7, c 3, d 2 +2 topics" in totals
    assert words.split()[0] == "words"
    assert "diverged" not in titles


def test_the_view_of_a_restarting_job_shows_error_and_hint() -> None:
    job = status(state("RUNNING"), *running(), restart(T0 + 20), state("RESTARTING", T0 + 20))
    text = drawn(job, T0 + 21)
    assert "RESTARTING for 1s  generation 3  restarts 1  up 21s  attempt 2, after a pause of 0.2 s" in text
    assert "last error, 1s ago: epoch-failed: A worker was lost.\nWhat to do: see the log of the worker." in text
    job.take(from_fields({**state("RUNNING", T0 + 22), "generation": 4}))
    text = drawn(job, T0 + 30)
    assert "generation 4" in text
    assert "last error, 10s ago: epoch-failed" in text
    assert "What to do" not in text, "the error is resolved"


def test_a_long_error_is_shortened() -> None:
    job = status(restart(T0, what="x" * 5000), state("RESTARTING"))
    assert len(drawn(job, T0)) < 700


def test_the_view_of_a_superseded_job() -> None:
    job = status(
        state("SUPERSEDED", T0 + 5),
        {"event": "superseded", "at": T0 + 5, "error": "superseded", "what": "1.4 owns the job.", "hint": "stop one."},
    )
    text = drawn(job, T0 + 6)
    assert "SUPERSEDED for 1s" in text
    assert "superseded: 1.4 owns the job.\nWhat to do: stop one." in text


@pytest.mark.parametrize("width", [30, 50, 89])
def test_the_narrow_view_fits_the_width(width: int) -> None:
    job = status(state("RUNNING"), *running("words"), *running("totals"), lag("words", lines=1234), restart(T0 + 20))
    text = drawn(job, T0 + 21, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for figure, times in (("lag lines 1,234", 1), ("lag -", 1), ("epoch 39", 2), ("p99 ms 490", 2), ("out/s 1,575", 2)):
        assert text.count(figure) == times, "figures are not split"


def test_the_summary_line() -> None:
    job = status(
        state("RUNNING"), *running("words"), *running("totals", 2, skipped_lanes=1), restart(T0), state("STOPPED")
    )
    assert (
        ending(job, now=T0 + 123).plain
        == "wordcount STOPPED after 2m 03s: 42 epochs, 2,100 records read, 18,900 published, 2 lanes skipped, 1 restart"
    )
    assert ending(status(), now=T0).plain == "wordcount STARTING after 0s: 0 epochs, 0 records read, 0 published"


def test_the_summary_has_all_totals() -> None:
    summary = status(state("FINISHED"), *running("words", 2, dead_letters=3)).summary(now=T0 + 2.25)
    assert summary == Summary(
        state="FINISHED",
        seconds=2.2,
        epochs=2,
        records_in=100,
        records_out=900,
        recorded_determinants=8,
        dead_letters=6,
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (8.9, "8s"), (123, "2m 03s"), (18_432, "5h 07m"), (273_600, "3d 4h")]
)
def test_span_formats_a_duration(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_java_stack_traces_are_shortened() -> None:
    folded = FoldedFrames()
    lines = ["ERROR oops", *[f"\tat a.B.c{n}" for n in range(9)], "Caused by: x", "\tat d", "next", *["\tat e"] * 4]
    shown = [text for line in lines for text in folded.take(line)]
    assert shown == [
        *lines[:4],
        "\t… 6 more frames (--plain shows all)",
        "Caused by: x",
        "\tat d",
        "next",
        *["\tat e"] * 3,
    ]
    assert folded.left() == ["\t… 1 more frames (--plain shows all)"]
    assert folded.left() == []


_ON_A_TERMINAL = """
import os, subprocess, sys
from clonos.cli.live import LiveView
from clonos.telemetry.driver_events import Claimed, State
from clonos.telemetry.logs import configure_logs

configure_logs("console", "info")
with LiveView("wordcount") as view:
    view.report(State("RUNNING", generation=1))
    view.report(Claimed(1, generation=7))
    subprocess.run(["sh", "-c", "echo a line of the JVM >&2"])
    print("printed by the job")
    os.write(2, b"written to stderr\\n")
os.write(2, b"after it\\n")
"""


def on_a_terminal(program: str, **environment: str) -> str:
    """The output of `program` on a terminal."""
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=far,
        stdout=far,
        stderr=far,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(far)
    shown = b""
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if select.select([near], [], [], 0.5)[0]:
                shown += os.read(near, 65536)
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(near)
    assert process.wait(60) == 0
    return shown.decode()


def test_a_terminal_shows_all_lines_and_the_view() -> None:
    shown = on_a_terminal(_ON_A_TERMINAL)
    for line in ("a line of the JVM", "printed by the job", "written to stderr", "claimed", "generation 7"):
        assert line in shown
    assert "\x1b[" in shown
    assert "\x1b[1m" in shown
    assert shown.rstrip().endswith("after it")
    assert shown.index("wordcount\x1b[0m \x1b[1;32mRUNNING\x1b[0m after 0s:") < shown.index("after it")
    assert "\x1b[?25h" in shown, "the cursor is visible again"


def test_no_color_disables_colours() -> None:
    shown = on_a_terminal(_ON_A_TERMINAL, NO_COLOR="1")
    assert "wordcount" in shown
    assert "\x1b[32" not in shown
    assert "\x1b[1;32" not in shown
