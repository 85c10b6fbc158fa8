"""Clonos on Spark: exactly-once PySpark from Kafka to Kafka.

What a job author imports, and nothing else::

    import clonos

    @clonos.service(timeout=2)
    def is_banned(word: str) -> bool: ...

    @clonos.udf("boolean")
    def banned(word):
        return is_banned(word)

    @clonos.job(name="clean")
    def clean(ctx):
        words = ctx.source("words")
        ctx.sink(words.where(~banned("value")).select("key", "value"), topic="clean")

Whoever has a PySpark program and a session already takes the sink alone: `exactly_once`, with `source` and
`spark_conf`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clonos import formats
    from clonos.causal.derived import epoch, now, param, random, rng, uuid4
    from clonos.causal.operators import operator
    from clonos.causal.service import clock, service
    from clonos.causal.udf import udf
    from clonos.causal.vectorised import arrow_udf, pandas_udf
    from clonos.engine.attached import spark_conf
    from clonos.job import Job, JobContext, job, load_job
    from clonos.runner.attached import exactly_once, source

__all__ = [
    "Job",
    "JobContext",
    "arrow_udf",
    "clock",
    "epoch",
    "exactly_once",
    "formats",
    "job",
    "load_job",
    "now",
    "operator",
    "pandas_udf",
    "param",
    "random",
    "rng",
    "service",
    "source",
    "spark_conf",
    "udf",
    "uuid4",
]

# Loaded when they are asked for: PySpark takes a second, and the command line, agents and the control plane, which
# import this package as well, need none of it.
_HOMES = {
    "clonos.causal.derived": ("epoch", "now", "param", "random", "rng", "uuid4"),
    "clonos.causal.operators": ("operator",),
    "clonos.causal.service": ("clock", "service"),
    "clonos.causal.udf": ("udf",),
    "clonos.causal.vectorised": ("arrow_udf", "pandas_udf"),
    "clonos.engine.attached": ("spark_conf",),
    "clonos.job": ("Job", "JobContext", "job", "load_job"),
    "clonos.runner.attached": ("exactly_once", "source"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "formats":
        return importlib.import_module("clonos.formats")
    if name not in _HOME:
        raise AttributeError(f"module 'clonos' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    setattr(sys.modules[__name__], name, found)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`clonos.job` is the decorator; the import of the module of that name would put the module there.

    Functions that name the package travel to workers, which import it.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "job" and isinstance(value, ModuleType):
            value = value.job
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
