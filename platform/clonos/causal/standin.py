"""Who answers a service in place of the world outside; only tests name somebody (`clonos.testing`)."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext, TaskContext, cloudpickle

Answerer = Callable[..., Any]
# A Spark local property: a file with the stand-ins that the tasks of a local session take along.
_PROPERTY: Final = "clonos.standins"

_named: dict[str, Answerer] = {}
_for_all: list[Callable[[str], Answerer]] = []


def outside(name: str, function: Answerer) -> Answerer:
    """What the service `name` calls: `function`, unless a test has put somebody in its place."""
    if name in _named:
        return _named[name]
    if _for_all:
        return _for_all[-1](name)
    context = TaskContext.get()
    file = context.getLocalProperty(_PROPERTY) if context is not None else None
    return _shipped(file).get(name, function) if file else function


@functools.lru_cache(maxsize=1)
def _shipped(file: str) -> dict[str, Answerer]:
    found: dict[str, Answerer] = cloudpickle.loads(Path(file).read_bytes())
    return found


def replaced(name: str) -> bool:
    """Whether a test has put somebody in place of the service `name`, in this process."""
    return name in _named


@contextlib.contextmanager
def replace(name: str, answerer: Answerer) -> Iterator[None]:
    """Put `answerer` in place of what the service `name` calls, in this process and in tasks of its session."""
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
    """Put somebody in place of what every service calls that `replace` does not name, in this process."""
    _for_all.append(answerer_of)
    try:
        yield
    finally:
        _for_all.pop()


@contextlib.contextmanager
def _ship() -> Iterator[None]:
    """Let tasks started from here on find what is replaced; also those of queries started from here on."""
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
