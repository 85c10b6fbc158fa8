"""Whether the epoch in progress of a query makes progress, however long it takes."""

from __future__ import annotations

from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.spark.internals import jvm_of


class TaskProgress:
    """Compares how far the tasks of queries are.

    Args:
        spark: The session.
        run_of: Returns the run id of a query (``StreamingQuery.runId``); None: the query does not run.
    """

    def __init__(self, spark: SparkSession, run_of: Callable[[str], str | None]) -> None:
        self._spark = spark
        self._run_of = run_of
        self._seen: dict[str, str] = {}

    def moved(self, query: str) -> bool:
        """Whether a task of the query has ended, or rows were read or published, since the previous call.

        Executors report the rows of running tasks every 10 s (``spark.executor.heartbeatInterval``).
        """
        run = self._run_of(query)
        if run is None:
            return False
        try:
            seen = str(jvm_of(self._spark).clonos.TaskProgress.of(self._spark.sparkContext._jsc.sc(), run))
        except Py4JError:  # the JVM ends
            return False
        before, self._seen[query] = self._seen.get(query), seen
        return seen != before
