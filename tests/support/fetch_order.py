"""A fault of Spark: tasks read the map outputs of a shuffle in an order of the test (`PermutedShuffle.java`).

On a cluster, executors fetch blocks over the network, in an order that differs from one attempt to the next. Without
this fault, a local master reads them in the same order each time: no test would detect code that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from clonos.embedded.jars import ensure_jars
from clonos.settings import Settings
from clonos.spark.classes import compile_jar

_SOURCE = Path(__file__).parent / "java_classes" / "PermutedShuffle.java"


def permuted_shuffle(folder: Path) -> dict[str, str]:
    """Spark settings of a session whose tasks read map outputs in random order; its jar is compiled into `folder`."""
    jar = folder / "permuted-shuffle.jar"
    compile_jar(ensure_jars(Settings()), [_SOURCE], jar)
    return {"spark.jars": str(jar), "spark.shuffle.manager": "clonos.tests.PermutedShuffle"}


@contextmanager
def fetching(spark: SparkSession, order: Literal["ascending", "descending"]) -> Iterator[None]:
    """Until the end of the block, tasks read map outputs in this order."""
    jvm = spark._jvm
    assert jvm is not None
    jvm.System.setProperty("clonos.tests.fetch", order)
    try:
        yield
    finally:
        jvm.System.clearProperty("clonos.tests.fetch")
