"""Topics that a job's code names, so that the error about a missing one names the others that are missing too."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from clonos import python_source
from clonos.errors import ClonosError, TopicMissing

# Arguments with the name of a topic, by method; an empty name is the first positional argument.
_ARGUMENTS: Final = {"source": ("", "topics"), "sink": ("topic",), "decode": ("dead_letters",)}


def named_topics(code: Path) -> list[str]:
    """Return the topics that calls like ``ctx.source("orders")`` in a Python file name literally, in order."""
    try:
        tree = python_source.parse(code.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return list(dict.fromkeys(topic for call in calls for topic in _topics_of(call)))


def with_all_missing(error: TopicMissing, code: Path, topics_missing: Callable[[list[str]], list[str]]) -> TopicMissing:
    """Add the other missing topics that the code names to the error about the first one.

    Args:
        error: The error.
        code: The job file.
        topics_missing: Returns the given topics that do not exist.
    """
    others: list[str] = []
    with contextlib.suppress(ClonosError):  # Kafka did not answer again
        others = [topic for topic in topics_missing(named_topics(code)) if repr(topic) not in error.what]
    if not others:
        return error
    verb = "do not exist either" if len(others) > 1 else "does not exist either"
    names = ", ".join(map(repr, others))
    return TopicMissing(
        f"{error.what} {names}, which the code names too, {verb}.",
        kept=error.kept,
        hint=f"{error.hint} The same for {' '.join(others)}.",
    )


def _topics_of(call: ast.Call) -> Iterator[str]:
    assert isinstance(call.func, ast.Attribute)
    names = _ARGUMENTS.get(call.func.attr, ())
    if not names or any(keyword.arg == "connector" for keyword in call.keywords):
        return
    values = [keyword.value for keyword in call.keywords if keyword.arg in names]
    if "" in names:
        values += call.args[:1]
    for value in values:
        elements = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        for element in elements:
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                yield element.value
