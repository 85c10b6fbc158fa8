"""Stand-ins for services in tests: functions that answer instead of the external system.

`clonos.testing.script` uses them.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext, TaskContext, cloudpickle

Answerer = Callable[..., Any]
# A Spark local property: the path of a file with the stand-ins for the tasks of a local session.
_PROPERTY: Final = "clonos.standins"

_named: dict[str, Answerer] = {}
_for_all: list[Callable[[str], Answerer]] = []


def answerer_of(name: str, function: Answerer) -> Answerer:
    """Return the function that answers calls of the service `name`: the stand-in that a test set, else the service's
    own `function`.
    """
    if name in _named:
        return _named[name]
    if _for_all:
        return _for_all[-1](name)
    context = TaskContext.get()
    file = context.getLocalProperty(_PROPERTY) if context is not None else None
    return _shipped(file).get(name, function) if file else function


@functools.lru_cache(maxsize=1)
def _shipped(file: str) -> dict[str, Answerer]:
    standins: dict[str, Answerer] = cloudpickle.loads(Path(file).read_bytes())
    return standins


def replaced(name: str) -> bool:
    """Whether the service `name` has a stand-in in this process."""
    return name in _named


@contextlib.contextmanager
def replace(name: str, answerer: Answerer) -> Iterator[None]:
    """Let `answerer` answer the calls of the service `name` inside the context, in this process and in the tasks
    of its session.
    """
    before = _named.get(name)
    _named[name] = answerer
    try:
        with _ship():
            yield
    finally:
        if before is None:
            del _named[name]
        else:
            _named[name] = before


@contextlib.contextmanager
def replace_all(answerer_of: Callable[[str], Answerer]) -> Iterator[None]:
    """Inside the context, let the function `answerer_of(name)` answer the calls of each service, in this process.

    A service that `replace` replaces keeps that stand-in.
    """
    _for_all.append(answerer_of)
    try:
        yield
    finally:
        _for_all.pop()


@contextlib.contextmanager
def _ship() -> Iterator[None]:
    """Send the stand-ins to the tasks, and the tasks of queries, that start inside the block."""
    spark = SparkContext._active_spark_context
    if spark is None:
        yield
        return
    before = spark.getLocalProperty(_PROPERTY)
    with tempfile.NamedTemporaryFile(prefix="clonos-standins-") as file:
        file.write(cloudpickle.dumps(_named))  # type: ignore[no-untyped-call]
        file.flush()
        spark.setLocalProperty(_PROPERTY, file.name)
        try:
            yield
        finally:
            spark.setLocalProperty(_PROPERTY, before)  # type: ignore[arg-type]  # None removes it
