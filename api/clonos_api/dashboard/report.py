"""``clonos report``: the ``--json`` output of a benchmark or a demo as one self-contained page.

``python -m clonos_api.dashboard.report FILE…``; ``-`` is standard input. Any JSON object is accepted: the page shows
counts of violations, a distribution wherever there are downtime samples, and a table wherever systems are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from clonos.errors import ClonosError, SpecError
from clonos.resources.recovery_descriptions import PHASES
from clonos_api.dashboard.rendering import part

# All of these must be zero.
_WRONG: Final = {
    "duplicates": "published twice",
    "lost": "lost",
    "order_breaks": "out of order within their key",
    "state_breaks": "counted wrong in state",
    "contradictions": "contradicting the causal log",
    "dangling_transactions": "transactions left open",
    "orphans": "processes left behind",
    "left_after_down": "processes left behind by `clonos down`",
}
# Without these, output and input were not compared.
_COMPARED: Final = frozenset({"duplicates", "lost"})
_HINT: Final = "pass the output of `python -m bench.recovery --json` or `clonos demo --json`."
_SYSTEMS: Final = {
    "clonos": "Clonos",
    "clonos_partition": "Clonos, a lane for each partition",
    "spark_default": "Spark, defaults",
    "spark_tuned": "Spark, tuned",
    "flink": "Flink",
    "quix": "Quix Streams",
}
_ORDER: Final = (
    "detect",
    "decide",
    "finish",
    "start",
    "wake",
    "claim",
    "restore",
    "replay",
    "epoch",
    "commit",
    "others",
)


@dataclass(frozen=True)
class Gaps:
    """Downtimes of one kind of failure in a result, in seconds: all samples, their median and their 99th percentile."""

    name: str
    samples: tuple[float, ...]
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Waterfall:
    """Phases of a recovery in a result: name, start and median duration of each, in milliseconds."""

    name: str
    phases: tuple[tuple[str, float, float], ...]
    whole_ms: float  # sum of the durations


@dataclass(frozen=True)
class Comparison:
    """The figures of several systems in one part of a benchmark.

    Attributes:
        name: The part.
        columns: Names of the figures, with their units.
        rows: System → its figures, in the order of `columns`; None where a system has no such figure.
    """

    name: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Result:
    """The result of one benchmark or demo, as read from its JSON file.

    Attributes:
        raw: The JSON object.
        wrong: Kind of violation (lost, duplicates, …) → number, without zeros.
        checked: Whether the run checked its output for violations.
        facts: Further numbers and texts of the object.
        gaps: Downtimes by kind of failure.
        waterfalls: Phases of recoveries.
        comparisons: Figures of several systems beside each other.
    """

    name: str
    raw: Mapping[str, Any]
    wrong: Mapping[str, int]
    checked: bool
    facts: tuple[tuple[str, Any], ...]
    gaps: tuple[Gaps, ...]
    waterfalls: tuple[Waterfall, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def longest_s(self) -> float:
        """The longest downtime among all samples, in seconds; 0 without samples."""
        return max((sample for gaps in self.gaps for sample in gaps.samples), default=0.0)


def main() -> int:
    """Print the HTML page for the files on the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="clonos report", description=__doc__)
    parser.add_argument("files", nargs="+")
    try:
        page = report([read(file) for file in parser.parse_args().files])
    except ClonosError as error:
        sys.stderr.write(f"{error.what}\n{error.hint}\n")
        return error.exit_code
    sys.stdout.write(page)
    return 0


def read(file: str) -> Result:
    """Read the JSON file of a benchmark or demo; ``-`` is standard input."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        raw = json.loads(text)
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}.", hint=_HINT) from error
    if not isinstance(raw, dict):
        raise SpecError(f"{file} holds no JSON object.", hint=_HINT)
    return result("standard input" if file == "-" else Path(file).stem, raw)


def result(name: str, raw: Mapping[str, Any]) -> Result:
    """Extract violations, facts, downtimes and phases from the JSON object of a benchmark or demo."""
    counts = {key: _count(raw[key]) for key in _WRONG if key in raw}
    facts = [(key, value) for key, value in raw.items() if key not in _WRONG and isinstance(value, int | float | str)]
    return Result(
        name=name,
        raw=raw,
        wrong={key: count for key, count in counts.items() if count},
        checked=counts.keys() >= _COMPARED,
        facts=tuple(facts),
        gaps=tuple(_gaps("", raw)),
        waterfalls=tuple(_waterfalls("", raw)),
        comparisons=tuple(_comparisons("", raw)),
    )


def report(results: list[Result]) -> str:
    """The HTML page with all results."""
    static = files("clonos_api.dashboard") / "static"
    style, icon = ((static / name).read_text() for name in ("style.css", "icon.svg"))
    values = {"results": results, "words": _WRONG, "phases": PHASES, "version": version("clonos")}
    # The package's own files, not user input.
    return str(part("report.html", style=style, icon=icon, **values))


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else _number(value)


def _number(value: Any) -> Any:
    """`value`, which must be a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{value!r} is not a number.", hint=_HINT)
    return value


def _gaps(name: str, raw: Mapping[str, Any]) -> Iterator[Gaps]:
    """All objects with samples, named by the path of their keys."""
    samples = raw.get("samples", raw.get("raw_s"))  # benchmarks, the demo
    if isinstance(samples, list) and samples and "p50_s" in raw:
        ranked = sorted(_number(sample) for sample in samples)
        p99_s = ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
        yield Gaps(name or "all", tuple(ranked), statistics.median(ranked), p99_s)
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _gaps(key if name in ("", "gaps") else f"{name} {key}", value)


def _comparisons(name: str, raw: Mapping[str, Any]) -> Iterator[Comparison]:
    """All objects whose keys are systems and whose values are objects with figures."""
    objects = {key: value for key, value in raw.items() if isinstance(value, dict)}
    if len(objects) > 1 and objects.keys() <= _SYSTEMS.keys():
        figures = {
            key: {name: number for name, number in value.items() if isinstance(number, int | float)}
            for key, value in objects.items()
        }
        columns = tuple(dict.fromkeys(column for row in figures.values() for column in row))
        if columns:
            rows = {_SYSTEMS[key]: tuple(row.get(column) for column in columns) for key, row in figures.items()}
            yield Comparison(name, columns, rows)
        return
    for key, value in objects.items():
        yield from _comparisons(f"{name} {key}".strip(), value)


def _waterfalls(name: str, raw: Mapping[str, Any]) -> Iterator[Waterfall]:
    durations = raw.get("phases_ms")
    if isinstance(durations, dict) and durations:
        # A phase that only some recoveries have is not a part of all the others.
        ranked = sorted(durations.items(), key=lambda item: _ORDER.index(item[0]) if item[0] in _ORDER else len(_ORDER))
        phases, after = [], 0.0
        for phase, took in ranked:
            phases.append((phase, after, float(_number(took))))
            after += took
        yield Waterfall(name or "all", tuple(phases), after)
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _waterfalls(f"{name} {key}".strip(), value)


if __name__ == "__main__":
    sys.exit(main())
