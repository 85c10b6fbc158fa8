"""The import of a job's file: what goes wrong in it is named with its line; what it leaves behind is forgotten."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyspark
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException, PySparkRuntimeError

from clonos.errors import ClonosError, JobMissing, JobNotImportable, SessionNeeded

_NO_SESSION: Final = "SESSION_OR_CONTEXT_NOT_EXISTS"


def import_file(path: Path) -> ModuleType:
    """The module in a Python file; its functions travel to workers by value, since they need not have the file.

    Raises:
        JobMissing: Not a Python file.
        SessionNeeded: It uses Spark at import, and there is no session.
        JobNotImportable: It raised.
    """
    if path.suffix != ".py":
        raise JobMissing(f"{path} is not a Python file.")
    name = "clonos_job_" + "".join(c if c.isalnum() else "_" for c in path.stem)
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    before = set(sys.modules)
    sys.modules[name] = module
    try:
        with _no_session_of_its_own():
            loader.exec_module(module)
    except BaseException as error:
        _forget(set(sys.modules) - before | {name}, path.parent)
        if isinstance(error, ClonosError | KeyboardInterrupt):
            raise
        kind = SessionNeeded if _wants_session(error) else JobNotImportable
        raise kind(f"{path}{line_in(path, error)} does not import: {_named(error)}") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _forget(names: set[str], folder: Path) -> None:
    """Drop the modules beside a file that did not import: they are imported anew with it."""
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and Path(file).resolve().is_relative_to(folder):
            del sys.modules[name]


@contextlib.contextmanager
def _no_session_of_its_own() -> Iterator[None]:
    """Where there is no session yet, one that a job's file builds would lack what the promise needs."""
    if SparkContext._active_spark_context is not None:
        yield
        return

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PySparkRuntimeError(errorClass=_NO_SESSION, messageParameters={})

    context: Any = SparkContext
    own = SparkContext.__dict__["_ensure_initialized"]
    context._ensure_initialized = refuse
    try:
        yield
    finally:
        context._ensure_initialized = own


def _wants_session(error: BaseException) -> bool:
    if isinstance(error, PySparkException):
        return error.getCondition() == _NO_SESSION
    # Functions of columns assert it without a word.
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and Path(frames[-1].filename).is_relative_to(Path(pyspark.__file__).parent)
    return isinstance(error, AssertionError) and inside and SparkContext._active_spark_context is None


def line_in(path: Path, error: BaseException) -> str:
    """Where in the file an error happened, as part of a sentence; empty if elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno},"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}," if lines else ""


def _named(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
