"""``clonos report``: what a benchmark or a demo printed (``--json``), as one page that needs nothing else.

``python -m clonos_api.dashboard.report FILE…``; ``-`` is standard input. Any object is taken: sums of what went wrong,
and wherever there are samples of gaps, their distribution.
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
from clonos.resources.recovery_words import PHASES
from clonos_api.dashboard.rendering import part

# None of these may be anything but zero.
_WRONG: Final = {
    "duplicates": "published twice",
    "lost": "lost",
    "order_breaks": "out of order within their key",
    "state_breaks": "counted wrong in state",
    "contradictions": "contradicting what was recorded",
    "dangling_transactions": "transactions left open",
    "orphans": "processes left behind",
    "left_after_down": "processes left behind by `clonos down`",
}
# Without these nobody compared what came out with what went in.
_COMPARED: Final = frozenset({"duplicates", "lost"})
_HINT: Final = "give it what `python -m bench.recovery --json` or `clonos demo --json` printed."
_ORDER: Final = ("detect", "decide", "finish", "start", "wake", "claim", "restore", "replay", "epoch", "commit")


@dataclass(frozen=True)
class Gaps:
    """How long readers waited, each time; seconds."""

    name: str
    samples: tuple[float, ...]
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Waterfall:
    """Phase → the median of what it took, and where it begins; milliseconds."""

    name: str
    phases: tuple[tuple[str, float, float], ...]
    whole_ms: float


@dataclass(frozen=True)
class Result:
    """What one file says."""

    name: str
    raw: Mapping[str, Any]
    wrong: Mapping[str, int]
    checked: bool
    facts: tuple[tuple[str, Any], ...]
    gaps: tuple[Gaps, ...]
    waterfalls: tuple[Waterfall, ...]

    @property
    def longest_s(self) -> float:
        """Of all samples."""
        return max((sample for one in self.gaps for sample in one.samples), default=0.0)


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(prog="clonos report", description=__doc__)
    parser.add_argument("files", nargs="+")
    try:
        page = report([read(one) for one in parser.parse_args().files])
    except ClonosError as error:
        sys.stderr.write(f"{error.what}\n{error.hint}\n")
        return error.exit_code
    sys.stdout.write(page)
    return 0


def read(file: str) -> Result:
    """What a benchmark wrote.

    Raises:
        SpecError: It is not a JSON object.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        raw = json.loads(text)
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}.", hint=_HINT) from error
    if not isinstance(raw, dict):
        raise SpecError(f"{file} holds no JSON object.", hint=_HINT)
    return result("standard input" if file == "-" else Path(file).stem, raw)


def result(name: str, raw: Mapping[str, Any]) -> Result:
    """What there is to see in it."""
    found = {what: _count(raw[what]) for what in _WRONG if what in raw}
    facts = [(key, value) for key, value in raw.items() if key not in _WRONG and isinstance(value, int | float | str)]
    return Result(
        name=name,
        raw=raw,
        wrong={what: count for what, count in found.items() if count},
        checked=found.keys() >= _COMPARED,
        facts=tuple(facts),
        gaps=tuple(_gaps("", raw)),
        waterfalls=tuple(_waterfalls("", raw)),
    )


def report(results: list[Result]) -> str:
    """The page."""
    static = files("clonos_api.dashboard") / "static"
    style, icon = ((static / name).read_text() for name in ("style.css", "icon.svg"))
    values = {"results": results, "words": _WRONG, "phases": PHASES, "version": version("clonos")}
    # Its own files, not somebody's input.
    return str(part("report.html", style=style, icon=icon, **values))


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else _number(value)


def _number(value: Any) -> Any:
    """As it is.

    Raises:
        SpecError: It is no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{value!r} stands where a number is to be.", hint=_HINT)
    return value


def _gaps(name: str, raw: Mapping[str, Any]) -> Iterator[Gaps]:
    """Wherever there are samples, with a name made of the keys on the way."""
    samples = raw.get("samples", raw.get("raw_s"))  # benchmarks, the demo
    if isinstance(samples, list) and samples and "p50_s" in raw:
        ranked = sorted(_number(one) for one in samples)
        p99_s = ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
        yield Gaps(name or "all", tuple(ranked), statistics.median(ranked), p99_s)
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _gaps(key if name in ("", "gaps") else f"{name} {key}", value)


def _waterfalls(name: str, raw: Mapping[str, Any]) -> Iterator[Waterfall]:
    told = raw.get("phases_ms")
    if isinstance(told, dict) and told:
        # A phase that only some recoveries have is not a part of all the others.
        ranked = sorted(told.items(), key=lambda one: _ORDER.index(one[0]) if one[0] in _ORDER else len(_ORDER))
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
