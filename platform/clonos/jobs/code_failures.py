"""Describes failures of the user's code in one sentence: the error first, then the user's own frames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

_LONGEST: Final = 2_000
_FRAMES: Final = 4
_TRACEBACK: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
# Code of Clonos, PySpark and other libraries, on any host.
_LIBRARY: Final = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3|/clonos/(?:causal|formats|extend|spark)/|/pyspark/|^<"
)
# What ends a worker's traceback in the text of Spark: the JVM's stack, or the state.
_JVM: Final = re.compile(r"\s*(?:at \S+\(|SQLSTATE)")
_REFUSED: Final = re.compile(r"\[[A-Z0-9_.]+\]\s*(?P<text>.*?)\s*(?:SQLSTATE: \w+|;\n|\Z)", re.DOTALL)


class _Frame(NamedTuple):
    file: str
    line: str
    function: str
    code: str

    def __str__(self) -> str:
        code = f": {self.code}" if self.code else ""
        return f"{self.function} ({PurePath(self.file).name}, line {self.line}{code})"


def has_traceback(text: str) -> bool:
    """Whether `text` contains the traceback of a Python process."""
    return _TRACEBACK in text


def python_failure(text: str) -> str:
    """Describe the last traceback in the text of Spark's exception, which usually has the JVM's stack after it.

    Returns:
        For example ``ZeroDivisionError: division by zero, in ratio (job.py, line 5: return 1 / n), called by score
        (job.py, line 9: return ratio(card))``.
    """
    lines = _traceback(text)
    frames, error = _frames(lines), error_line(text)
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)][-_FRAMES:]
    if not own:
        return error[:_LONGEST]
    *callers, inner = own
    places = f"{error}, in {inner}"
    for frame in reversed(callers):
        places += f", called by {frame}"
    return places[:_LONGEST]


def error_line(text: str) -> str:
    """Return the error at the end of the last traceback in `text`, such as ``ValueError: no card``."""
    lines = _traceback(text)
    last = max((number for number, line in enumerate(lines) if _FRAME.match(line)), default=-1)
    # The source line of a frame and its carets are indented.
    error = [line.strip() for line in lines[last + 1 :] if line.strip() and (last < 0 or not line.startswith(" "))]
    return " ".join(error)


def refused_query(text: str) -> str:
    """Return the sentence in which Spark refuses a query, without class, state and plan."""
    match = _REFUSED.search(text)
    sentence = " ".join((match["text"] if match is not None else text.partition("\n")[0]).split())
    return sentence.replace(" Did you mean one of the following?", " Did you mean")[:_LONGEST]


def _traceback(text: str) -> list[str]:
    """Return the lines of the last traceback in `text`, without the JVM's stack after it."""
    lines = text.rpartition(_TRACEBACK)[2].splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if _JVM.match(line)), len(lines))
    return lines[:end]


def _frames(lines: Sequence[str]) -> list[_Frame]:
    frames = []
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is not None:
            after = lines[number + 1] if number + 1 < len(lines) else ""
            code = after.strip() if after.startswith("    ") else ""  # the source may be missing on this host
            frames.append(_Frame(match["file"], match["line"], match["function"], code))
    return frames
