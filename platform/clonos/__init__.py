"""Clonos on Spark: exactly-once PySpark from Kafka to Kafka, with causal logging, standbys and sub-second failover.

The public API for job authors::

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

A PySpark program with its own session uses the sink alone: `exactly_once`, with `source` and `spark_conf`.

The ideas: a driver records the nondeterministic values of an epoch as determinants in a causal log, so that a replay
computes the same records (Silvestre, Fragkoulis, Spinellis, Katsifodimos, "Clonos: Consistent Causal Recovery for
Highly-Available Streaming Dataflows", SIGMOD 2021, doi 10.1145/3448016.3457320). Each sink partition of an epoch is one
Kafka transaction (KIP-98), and a marker in it proves that it is published.

- Jobs: `job`, `Job`, `JobContext`, `load_job`.
- Derived services, computed from the epoch's plan: `now`, `epoch`, `random`, `rng`, `uuid4`, `param`.
- Recorded services, with a determinant for each answer: `clock`, `service`.
- Operators, inside which services may be called: `udf`, `pandas_udf`, `arrow_udf`, `operator`.
- Several topics from one query: `fan_out`, `Output`. Ids that depend on columns only: `stable_id`.
- Formats: `formats.Json`, `formats.Avro`, `formats.Protobuf`.

Connectors implement `clonos.extend.source.Source` and `clonos.extend.sink.Sink`. All other modules are internal.

The exports load on first access, so `import clonos` imports no PySpark. This module must not import any other module of
the package at import time.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clonos import formats
    from clonos.causal.derived import epoch, now, param, random, rng, uuid4
    from clonos.causal.operators import operator
    from clonos.causal.service import clock, service
    from clonos.causal.stable_id import stable_id
    from clonos.causal.udf import udf
    from clonos.causal.vectorised import arrow_udf, pandas_udf
    from clonos.driver.exactly_once import exactly_once, source
    from clonos.jobs.context import JobContext
    from clonos.jobs.definition import Job, job
    from clonos.jobs.fan_out import Output, fan_out
    from clonos.jobs.loading import load_job
    from clonos.spark.user_session import spark_conf

__all__ = [
    "Job",
    "JobContext",
    "Output",
    "arrow_udf",
    "clock",
    "epoch",
    "exactly_once",
    "fan_out",
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
    "stable_id",
    "udf",
    "uuid4",
]

# Loaded on first access: the import of PySpark takes a second, and the command line, agents and the control plane do
# not need it.
_EXPORTS = {
    "clonos.causal.derived": ("epoch", "now", "param", "random", "rng", "uuid4"),
    "clonos.causal.operators": ("operator",),
    "clonos.causal.service": ("clock", "service"),
    "clonos.causal.stable_id": ("stable_id",),
    "clonos.causal.udf": ("udf",),
    "clonos.causal.vectorised": ("arrow_udf", "pandas_udf"),
    "clonos.spark.user_session": ("spark_conf",),
    "clonos.jobs.context": ("JobContext",),
    "clonos.jobs.definition": ("Job", "job"),
    "clonos.jobs.fan_out": ("Output", "fan_out"),
    "clonos.jobs.loading": ("load_job",),
    "clonos.driver.exactly_once": ("exactly_once", "source"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "formats":
        return importlib.import_module("clonos.formats")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'clonos' has no attribute {name!r}")
    export = getattr(importlib.import_module(_MODULE_OF[name]), name)
    setattr(sys.modules[__name__], name, export)
    return export


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
