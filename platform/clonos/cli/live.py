"""``clonos run`` on a terminal: a live view of the job, with log lines above it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clonos.driver.status import JobStatus, QueryStatus, Trouble
from clonos.telemetry.driver_events import DriverEvent, Epoch, Lag, State, Summary
from clonos.telemetry.events import log_event
from clonos.telemetry.printable import console

_REFRESH_PER_S: Final = 2.0
_NARROW: Final = 90
_TOPICS: Final = 3
_WORDS: Final = 400
_WORDS_OVER: Final = 80
_FRAMES: Final = 3
# Events that the view shows; all others become log lines.
_PICTURED: Final = (State, Epoch, Lag, Summary)
_STYLES: Final = {
    "RUNNING": "bold green",
    "FINISHED": "bold green",
    "STOPPED": "bold green",
    "RESTARTING": "bold yellow",
    "WAITING": "bold yellow",
    "STOPPING": "bold yellow",
    "SUPERSEDED": "bold red",
    "FAILED": "bold red",
}
_DESCRIPTIONS: Final = {
    "STARTING": "starting Spark and loading the job",
    "CLAIMING": "taking over the causal log",
    "RECONCILING": "comparing the checkpoint with the log",
    "WAITING": "the job continues when what it waits for answers",
    "RUNNING": "Ctrl-C stops it after the current epoch",
    "STOPPING": "finishing the current epoch",
    "SUPERSEDED": "a newer process owns the job",
}


class LiveView:
    """A live view of a job on the terminal while the job runs.

    Everything that this process and its children write to stderr (Spark's warnings, lines of Python workers) passes
    through a pipe and appears above the view, so that the two never mix.
    """

    def __init__(self, job: str) -> None:
        self._status = JobStatus(job)
        self._terminal = -1
        self._console: Console | None = None
        self._live: Live | None = None
        self._pump: threading.Thread | None = None

    def report(self, event: DriverEvent) -> None:
        """Update the view from one event of the job; an event that the view does not show is logged as a line."""
        self._status.take(event)
        if not isinstance(event, _PICTURED):
            log_event(event)

    def __enter__(self) -> Self:
        """Redirect stderr and start to draw."""
        sys.stderr.flush()
        self._terminal = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._console = console(file=os.fdopen(self._terminal, "w", buffering=1, closefd=False))
        self._live = Live(
            console=self._console,
            get_renderable=lambda: Picture(self._status),
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=False,
        )
        self._live.start()
        self._pump = threading.Thread(target=self._show_lines, args=(reading,), daemon=True, name="clonos-lines")
        self._pump.start()
        return self

    def _show_lines(self, reading: int) -> None:
        folded = FoldedFrames()
        rest = b""
        while chunk := os.read(reading, 1 << 16):
            # All available lines at once: each print redraws the view, and the writers would have to wait.
            *lines, rest = (rest + chunk).split(b"\n")
            self._print([shown for line in lines for shown in folded.take(line.decode(errors="replace"))])
        self._print([*folded.take(rest.decode(errors="replace")), *folded.left()] if rest else folded.left())
        os.close(reading)

    def _print(self, lines: list[str]) -> None:
        if self._console is not None and lines:
            # Without soft_wrap, which would also apply to the view below.
            self._console.print(Text("\n").join(map(Text.from_ansi, lines)), overflow="fold")

    def __exit__(self, *_exc: object) -> None:
        """Restore stderr and print the summary line."""
        sys.stderr.flush()
        os.dup2(self._terminal, 2)
        if self._pump is not None:
            # The pipe ends with the last process that holds it; a lingering process may still write.
            self._pump.join(1.0)
        if self._live is not None:
            self._live.stop()
        if self._console is not None:
            self._console.print(ending(self._status), soft_wrap=True)


class FoldedFrames:
    """Shortens Java stack traces in the log: shows the first frames of each, and counts the others."""

    def __init__(self) -> None:
        self._frames = 0

    def take(self, line: str) -> list[str]:
        """Return the lines to show for the next line of the log: none for a frame after the third of a stack trace.

        The line after such a trace follows a line with the number of hidden frames.
        """
        if line.startswith(("\tat ", "        at ")):
            self._frames += 1
            return [line] if self._frames <= _FRAMES else []
        return [*self.left(), line]

    def left(self) -> list[str]:
        """End the stack trace: return a line with the number of its hidden frames; empty without hidden frames."""
        more, self._frames = self._frames - _FRAMES, 0
        return [f"\t… {more} more frames (--plain shows all)"] if more > 0 else []


class Picture:
    """The view of a job for Rich, drawn from `status` at each rendering; `now` fixes the time (seconds since 1970)."""

    def __init__(self, status: JobStatus, *, now: float | None = None) -> None:
        self._status = status
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw, narrow or wide."""
        now = time.time() if self._now is None else self._now
        with self._status.lock:
            yield _picture(self._status, now, options.max_width)


def _picture(status: JobStatus, now: float, width: int) -> RenderableType:
    for query in status.queries.values():
        query.forget(now)
    parts: list[RenderableType] = [_head(status, now)]
    if status.queries:
        parts.append(_stacked(status, now, width) if width < _NARROW else _table(status, now))
    if status.trouble is not None:
        parts += _trouble(status.trouble, now, over=status.state == "RUNNING")
    return Group(*parts)


def _head(status: JobStatus, now: float) -> Text:
    description = _DESCRIPTIONS.get(status.state, "")
    if status.state == "RESTARTING" and status.attempt:
        description = f"attempt {status.attempt}, after a pause of {status.pause_s:g} s"
    owner = f"generation {status.generation or '-'}" + (f"  restarts {status.restarts}" if status.restarts else "")
    return Text.assemble(
        (status.job, "bold"),
        "  ",
        (status.state, _STYLES.get(status.state, "bold cyan")),
        f" for {span(now - status.since)}  {owner}  up {span(now - status.started)}",
        (f"  {description}" if description else "", "dim"),
    )


_Cells = dict[str, Callable[[str, QueryStatus], str | Text]]


def _columns(status: JobStatus, now: float) -> _Cells:
    """Return the cell of each column; counters that are usually zero appear once they are not."""

    def count(key: str) -> Callable[[str, QueryStatus], Text]:
        return lambda _, query: Text(f"{query.sums[key]:,}", "yellow" if query.sums[key] else "")

    def ms(share: float) -> Callable[[str, QueryStatus], str]:
        return lambda _, query: "-" if (took := query.duration_ms(share)) is None else f"{took:,.0f}"

    rare = {"skipped": "skipped_lanes", "diverged": "diverged_lanes", "dead": "dead_letters"}
    rare |= {"drop": "dropped", "late": "late_rows"}
    return {
        "query": lambda name, _: Text(name, "bold"),
        "epoch": lambda _, query: str(query.epoch) if query.epoch >= 0 else "-",
        "in/s": lambda _, query: f"{query.rates(now, status.started)[0]:,.0f}",
        "out/s": lambda _, query: f"{query.rates(now, status.started)[1]:,.0f}",
        "p50 ms": ms(0.5),
        "p99 ms": ms(0.99),
        "lag": lambda _, query: _lag(query),
        "recorded": lambda _, query: f"{query.sums['recorded_determinants']:,}",
        "replayed": count("replayed_determinants"),
        **{title: count(key) for title, key in rare.items() if any(row.sums[key] for row in status.queries.values())},
    }


def _lag(query: QueryStatus) -> str:
    """Return the lag per topic, largest first."""
    largest = sorted(query.lag.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{topic} {records:,}" for topic, records in largest[:_TOPICS])
    more = f" +{len(largest) - _TOPICS} topics" if len(largest) > _TOPICS else ""
    return shown + more if shown else "-"


def _table(status: JobStatus, now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = _columns(status, now)
    for title in columns:
        table.add_column(title, justify="left" if title in ("query", "lag") else "right", no_wrap=title != "lag")
    for name, query in sorted(status.queries.items()):
        table.add_row(*(cell(name, query) for cell in columns.values()))
    return table


def _stacked(status: JobStatus, now: float, width: int) -> Group:
    """Lay out each query as several short lines."""
    lines: list[Text] = []
    for name, query in sorted(status.queries.items()):
        lines += [Text(name, "bold"), Text()]
        for title, cell in list(_columns(status, now).items())[1:]:
            shown = Text.assemble("  ", (f"{title} ", "dim"), cell(name, query))
            if lines[-1] and lines[-1].cell_len + shown.cell_len > width:
                lines.append(Text())
            lines[-1].append_text(shown)
    return Group(*lines)


def _trouble(trouble: Trouble, now: float, *, over: bool) -> list[Text]:
    what = f"{trouble.error}: {_shortened(trouble.what, _WORDS_OVER if over else _WORDS)}"
    title = f"last error, {span(now - trouble.at)} ago: "
    line = Text.assemble((title, "dim" if over else "bold red"), (what, "dim" if over else ""))
    return [line, *([Text(f"What to do: {trouble.hint}")] if trouble.hint and not over else [])]


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def ending(status: JobStatus, *, now: float | None = None) -> Text:
    """Return the line after the run: state, duration up to `now` (seconds since 1970; default: now) and counts."""
    summary = status.summary(now=now)
    figures = [
        f"{summary.epochs:,} epochs",
        f"{summary.records_in:,} records read",
        f"{summary.records_out:,} published",
    ]
    rare = {"dead_letters": "dead letters", "dropped": "dropped", "late_rows": "late rows dropped"}
    for key, label in (*rare.items(), ("skipped_lanes", "lanes skipped")):
        if count := getattr(summary, key):
            figures.append(f"{count:,} {label}")
    if summary.restarts:
        figures.append(f"{summary.restarts} restart{'s' if summary.restarts > 1 else ''}")
    return Text.assemble(
        (status.job, "bold"),
        " ",
        (status.state, _STYLES.get(status.state, "bold yellow")),
        f" after {span(summary.seconds)}: {', '.join(figures)}",
    )


def span(seconds: float) -> str:
    """Format a duration: ``8s``, ``2m 03s``, ``5h 07m``, ``3d 4h``."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    if minutes:
        return f"{minutes}m {whole % 60:02d}s"
    return f"{whole}s"
