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
from typing import TYPE_CHECKING

from clonos import formats
from clonos.causal.derived import epoch, now, param, random, rng, uuid4
from clonos.causal.operators import operator
from clonos.causal.service import clock, service
from clonos.causal.udf import udf
from clonos.causal.vectorised import arrow_udf, pandas_udf
from clonos.job import Job, JobContext, job, load_job

if TYPE_CHECKING:
    from clonos.engine.attached import spark_conf
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

# Only drivers need these and what they import; every Python worker imports this package.
_DRIVERS = {
    "exactly_once": "clonos.runner.attached",
    "source": "clonos.runner.attached",
    "spark_conf": "clonos.engine.attached",
}


def __getattr__(name: str) -> object:
    if name not in _DRIVERS:
        raise AttributeError(f"module 'clonos' has no attribute {name!r}")
    return getattr(importlib.import_module(_DRIVERS[name]), name)
