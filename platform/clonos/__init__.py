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
"""

from clonos import formats
from clonos.causal.derived import epoch, now, param, random, rng, uuid4
from clonos.causal.service import clock, service
from clonos.causal.udf import udf
from clonos.job import Job, JobContext, job, load_job

__all__ = [
    "Job",
    "JobContext",
    "clock",
    "epoch",
    "formats",
    "job",
    "load_job",
    "now",
    "param",
    "random",
    "rng",
    "service",
    "udf",
    "uuid4",
]
