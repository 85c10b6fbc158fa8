"""Finds calls of functions that are not repeatable in SQL text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clonos.lint import spark

# Quoted text and comments, which are replaced before the search.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_SORTED = re.compile(r"(?:sort_array|array_sort)\s*\(\s*(?:distinct\s*)?$", re.IGNORECASE)
_SETTLED = re.compile(r"\s*(?:filter\s*\([^)]*\)\s*)?(?:(?:ignore|respect)\s+nulls\s*)?(?:over|within\s+group)\b", re.I)
_FLOAT = re.compile(r"\bas\s+(?:double|float|real)\s*\)|::\s*(?:double|float|real)\b|\b(?:double|float)\s*\(", re.I)
_EXACT = re.compile(
    r"^\s*(?:try_)?cast\s*\(.*\bas\s+(?:decimal|numeric|dec|bigint|int|long)\b[^)]*(?:\([^)]*\))?\s*\)\s*$", re.I | re.S
)


@dataclass(frozen=True, slots=True)
class SqlCall:
    """A call in SQL text that violates a rule: its text, and the code of the rule."""

    text: str
    code: str


def calls(text: str, floats: frozenset[str] = frozenset()) -> Iterator[SqlCall]:
    """Yield the calls in an SQL expression or statement that violate a rule; `floats` are floating-point columns."""
    if "(" not in text:
        return
    blank = _QUOTED.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    for match in _CALL.finditer(blank):
        name = match[1].lower()
        if name not in spark.CODES and name not in spark.SUMS:
            continue
        end = _closing(blank, match.end())
        inside = blank[match.end() : end]
        written = " ".join(text[match.start() : end + 1].split())
        if name in spark.SUMS:
            if _EXACT.match(inside):
                continue
            column = inside.strip().rpartition(".")[2].strip("`")
            if _FLOAT.search(inside) or column in floats:
                yield SqlCall(written, "CL105")
            continue
        code = spark.CODES[name]
        if code in {"CL103", "CL104"} and (_SORTED.search(blank[: match.start()]) or _SETTLED.match(blank, end + 1)):
            continue
        if name in spark.SEEDED and _count(inside) > spark.SEEDED[name]:
            code = "CL102"
        yield SqlCall(written, code)


def _closing(text: str, start: int) -> int:
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _count(arguments: str) -> int:
    if not arguments.strip():
        return 0
    depth = 0
    count = 1
    for character in arguments:
        depth += {"(": 1, ")": -1}.get(character, 0)
        count += character == "," and depth == 0
    return count
