"""The demo's output for the user: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clonos.resources.jobs import Recovery
from clonos_demo.gaps import RECOVERY_KINDS, Gap, RecoveryKind, median_s, times_shorter
from clonos_demo.latency import Latencies
from clonos_demo.verdict import Verdict

SECONDS_SHOWN = 60
_LINE_EVERY_S = 5.0
_BARS = " ▁▂▃▄▅▆▇█"
_WIDE = 40
_STYLES: dict[RecoveryKind, str] = {"cold": "red", "standby": "green", "executor": "yellow"}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that the job itself reports. They are displayed only; no verdict depends on them."""

    generation: int = 0  # the newest generation
    skipped_lanes: int = 0  # lanes that replays skipped, because they were published before
    determinants_recorded: int = 0
    determinants_replayed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run at one moment, as the screen displays it."""

    title: str  # name of the job on the screen
    phase: str  # what the demo does now, as text
    records_in: int  # number of input records that Kafka acknowledged
    records_out: Mapping[str, int]  # number of published records, by the job parameter that names their topic
    repeats: int  # number of results that were published again
    kills: int  # number of kills so far
    kills_planned: int
    silent_s: float  # seconds since the newest record arrived
    counters: Counters
    per_second: list[int] = field(default_factory=list)  # arrivals in each of the last seconds, oldest first
    kill_ages_s: tuple[float, ...] = ()  # seconds since each kill


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run: the verdict, the kills, and the time that readers waited."""

    title: str  # name of the job on the screen
    verdict: Verdict
    kills: int  # number of kills
    longest_gap_s: float  # longest time without a new record while input flowed
    counters: Counters | None  # the job's own counters; None for plain Spark
    gaps: tuple[Gap, ...] = ()  # waiting time of readers after each kill
    latencies: Latencies = field(default_factory=Latencies)  # of the records from the producer to the reader
    recoveries: tuple[Recovery, ...] = ()  # as the control plane recorded them, oldest first


class Screen:
    """Displays the milestones, the progress and the verdicts of a demo."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        """Take the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print one line; the live view continues below it."""
        stamp = time.strftime("%H:%M:%S")
        self._console.print(Text.assemble((f"{stamp} ", "dim"), (text, style)), soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Display the progress of a run; without a terminal, only every few seconds."""
        if self._live is not None:
            self._live.update(_picture(progress))
        elif time.monotonic() - self._shown_at >= _LINE_EVERY_S:
            self._shown_at = time.monotonic()
            self.say(
                f"{progress.title}: {progress.phase}; {progress.records_in} records in, {_counts(progress)} out "
                f"({progress.repeats} repeated), {progress.kills}/{progress.kills_planned} kills"
            )

    def clear(self) -> None:
        """Remove the live view from the terminal."""
        if self._live is not None:
            self._live.update(Text(""))

    def verdict(self, outcomes: list[Outcome]) -> None:
        """Print the results of all runs side by side, then the first faults of each run."""
        self.clear()
        self._console.print(_table(outcomes))
        for outcome in outcomes:
            for finding in outcome.verdict.findings[:5]:
                self._console.print(Text(f"  {outcome.title}: {finding}", style="dim"), soft_wrap=True)
            self._print_latencies(outcome)
            self._console.print(_sentence(outcome), soft_wrap=True)

    def _print_latencies(self, outcome: Outcome) -> None:
        bars, kills = outcome.latencies.drawn(SECONDS_SHOWN)
        if not bars:
            return
        scale = "▁ up to 3 ms, ▃ 30 ms, ▅ 300 ms, ▇ 3 s; ✝ a kill"
        self._console.print(Text(f"{outcome.title}: longest latency over the run ({scale}):"), soft_wrap=True)
        self._console.print(Text(f"  {bars}", "green"))
        self._console.print(Text(f"  {kills}", "bold red"))

    def gaps(self, gaps: Sequence[Gap]) -> None:
        """Print the waiting times of the kinds of recoveries side by side; nothing unless there are two kinds."""
        medians = {kind: median_s(gaps, kind) for kind in RECOVERY_KINDS}
        seconds = {kind: median for kind, median in medians.items() if median is not None}
        if len(seconds) < 2:
            return
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column()
        table.add_column(justify="right", style="bold")
        for kind, median in seconds.items():
            bar = "█" * max(1, round(_WIDE * median / max(seconds.values())))
            name = f"  {RECOVERY_KINDS[kind]}"
            table.add_row(name, Text(bar, style=_STYLES[kind]), f"{median:.2f} s", _note(gaps, kind))
        self._console.print(Text("From kill -9 to the next record that a read_committed reader got:"), soft_wrap=True)
        self._console.print(table)
        shorter = times_shorter(gaps)
        if shorter is not None:
            self._console.print(Text(f"The takeover was {shorter:.1f} times faster.", style="bold"), soft_wrap=True)


def _note(gaps: Sequence[Gap], kind: RecoveryKind) -> str:
    count = sum(gap.kind == kind for gap in gaps)
    return f"(median of {count})" if count > 1 else ""


def _sentence(outcome: Outcome) -> Text:
    if outcome.verdict.clean:
        return Text(f"{outcome.title}: every result was published exactly once.", style="bold green")
    return Text(f"{outcome.title}: not exactly once.", style="bold red")


def _picture(progress: Progress) -> RenderableType:
    counters = progress.counters
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("input", "bold"), f"{progress.records_in} records")
    table.add_row(Text("output", "bold"), _counts(progress))
    repeated_style = "bold red" if progress.repeats else "green"
    table.add_row(Text("published twice", "bold"), Text(str(progress.repeats), style=repeated_style))
    table.add_row(Text("kill -9", "bold"), f"{progress.kills} of {progress.kills_planned}")
    table.add_row(Text("silent for", "bold"), f"{progress.silent_s:.1f} s")
    if counters.generation:
        table.add_row(Text("generation", "bold"), str(counters.generation))
        table.add_row(Text("lanes skipped on replay", "bold"), str(counters.skipped_lanes))
        table.add_row(
            Text("determinants", "bold"),
            f"{counters.determinants_recorded} recorded, {counters.determinants_replayed} replayed",
        )
    return Group(
        Text(f"{progress.title}: {progress.phase}", style="bold cyan"),
        table,
        Text(f"{next(iter(progress.records_out))} a second, last minute", style="dim"),
        _bars(progress.per_second),
        _kill_marks(progress.kill_ages_s),
    )


def _counts(progress: Progress) -> str:
    return ", ".join(f"{count} {name}" for name, count in progress.records_out.items())


def _bars(counts: list[int]) -> Text:
    top = max(counts, default=0) or 1
    return Text("".join(_BARS[-(-count * (len(_BARS) - 1) // top)] for count in counts), style="green")


def _kill_marks(ages_s: tuple[float, ...]) -> Text:
    marks = [" "] * SECONDS_SHOWN
    for age in ages_s:
        if age < SECONDS_SHOWN:
            marks[SECONDS_SHOWN - 1 - int(age)] = "✝"
    return Text("".join(marks), style="bold red")


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(title="Verdict, from outside the job")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.title, justify="right")

    def row(name: str, values: list[int], *, fault: bool = False) -> None:
        styles = [("bold red" if value else "bold green") if fault else "" for value in values]
        table.add_row(name, *(Text(str(value), style=style) for value, style in zip(values, styles, strict=True)))

    verdicts = [outcome.verdict for outcome in outcomes]
    row("kill -9", [outcome.kills for outcome in outcomes])
    row("records in", [verdict.records_in for verdict in verdicts])
    row("records expected", [verdict.expected for verdict in verdicts])
    row("records published", [verdict.published for verdict in verdicts])
    row("duplicates", [verdict.duplicates for verdict in verdicts], fault=True)
    row("lost", [verdict.lost for verdict in verdicts], fault=True)
    row("out of order", [verdict.order_breaks for verdict in verdicts], fault=True)
    row("contradictions", [verdict.contradictions for verdict in verdicts], fault=True)
    table.add_section()
    for kind, label in RECOVERY_KINDS.items():
        medians = [median_s(outcome.gaps, kind) for outcome in outcomes]
        if any(medians):
            table.add_row(f"gap, {label}", *("" if median is None else f"{median:.1f} s" for median in medians))
    for share in ("p50", "p99"):
        figures = [outcome.latencies.as_json()[share] for outcome in outcomes]
        if any(figures):
            table.add_row(f"latency, {share}", *("" if figure is None else f"{figure:.0f} ms" for figure in figures))
    for name, attribute in (
        ("lanes skipped on replay", "skipped_lanes"),
        ("determinants recorded", "determinants_recorded"),
        ("determinants replayed", "determinants_replayed"),
    ):
        table.add_row(
            name,
            *("" if o.counters is None else str(getattr(o.counters, attribute)) for o in outcomes),
        )
    return table
