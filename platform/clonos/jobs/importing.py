"""Imports a job's Python file. Errors name the line, and a failed import leaves no modules behind."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyspark
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException, PySparkRuntimeError

from clonos.errors import ClonosError, JobFileInvalid, JobNotImportable, SessionRequired

_NO_SESSION: Final = "SESSION_OR_CONTEXT_NOT_EXISTS"


def import_file(path: Path) -> ModuleType:
    """Import a Python file. Its functions are pickled by value, because workers may not have the file.

    Raises:
        JobFileInvalid: `path` is not a Python file.
        SessionRequired: The file uses Spark at import, and there is no session.
        JobNotImportable: The file raised another error.
    """
    if path.suffix != ".py":
        raise JobFileInvalid(f"{path} is not a Python file.")
    name = "clonos_job_" + "".join(c if c.isalnum() else "_" for c in path.stem)
    loader = SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    before = set(sys.modules)
    sys.modules[name] = module
    try:
        with _no_new_session():
            loader.exec_module(module)
    except BaseException as error:
        _forget(set(sys.modules) - before | {name}, path.parent)
        if isinstance(error, ClonosError | KeyboardInterrupt):
            raise
        kind = SessionRequired if _needs_session(error) else JobNotImportable
        raise kind(f"{path}{line_in(path, error)} does not import: {_described(error)}") from error
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def check_names(folder: Path) -> None:
    """Refuse a Python file or package of a job that Python workers would import instead of a module of their own.

    Workers search the job's folder first. A file with the name of a module that they do not import harms nobody.

    Raises:
        JobFileInvalid: There is such a file; the error names it.
    """
    rest = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]
    own = {
        path.name.partition(".")[0]: path
        for path in folder.iterdir()
        if (path.name.isidentifier() and (path / "__init__.py").is_file())
        or (path.suffix == ".py" and path.stem.isidentifier() and path.is_file())
    }
    doubtful = [name for name in own if name in sys.stdlib_module_names or PathFinder.find_spec(name, rest) is not None]
    for name in sorted(set(doubtful) & _modules_of_workers() if doubtful else ()):
        raise JobFileInvalid(
            f"{own[name]} has the name of the module {name}, which Python workers import: they would get this file.",
            hint=f"rename {own[name].name} and run the job again.",
        )


@functools.cache
def _modules_of_workers() -> frozenset[str]:
    """Return the modules that a worker imports from files before any code of a job."""
    listing = (
        "import sys, clonos.spark.daemon\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if '.' not in name and getattr(getattr(module, '__spec__', None), 'has_location', False): print(name)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", listing], capture_output=True, text=True, check=False)
    return frozenset(done.stdout.split())


def _forget(names: set[str], folder: Path) -> None:
    """Drop the modules of `folder` after a failed import: the next import loads them again."""
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and Path(file).resolve().is_relative_to(folder):
            del sys.modules[name]


@contextlib.contextmanager
def _no_new_session() -> Iterator[None]:
    """Refuse a session that a job file creates: it would lack the configuration for exactly-once."""
    if SparkContext._active_spark_context is not None:
        yield
        return

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PySparkRuntimeError(errorClass=_NO_SESSION, messageParameters={})

    context: Any = SparkContext
    original = SparkContext.__dict__["_ensure_initialized"]
    context._ensure_initialized = refuse
    try:
        yield
    finally:
        context._ensure_initialized = original


def _needs_session(error: BaseException) -> bool:
    if isinstance(error, PySparkException):
        return error.getCondition() == _NO_SESSION
    # PySpark's column functions assert a session without a message.
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and Path(frames[-1].filename).is_relative_to(Path(pyspark.__file__).parent)
    return isinstance(error, AssertionError) and inside and SparkContext._active_spark_context is None


def line_in(path: Path, error: BaseException) -> str:
    """Return the line of `path` in which `error` was raised, as ``, line 3,``; empty if it was raised elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno},"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}," if lines else ""


def _described(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
