"""Whether the epoch in progress of a query makes progress, however long it takes."""

from __future__ import annotations

from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.log.control import lane_id
from clonos.spark.internals import jvm_of


class TaskProgress:
    """Compares how far the tasks of queries are.

    Args:
        spark: The session.
        job: The job's name.
        run_of: Returns the run id of a query (``StreamingQuery.runId``); None: the query does not run.
    """

    def __init__(self, spark: SparkSession, job: str, run_of: Callable[[str], str | None]) -> None:
        self._spark = spark
        self._job = job
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
            context, lane = self._spark.sparkContext._jsc.sc(), lane_id(self._job, query, 0)
            seen = str(jvm_of(self._spark).clonos.TaskProgress.of(context, run, lane))
        except Py4JError:  # the JVM ends
            return False
        before, self._seen[query] = self._seen.get(query), seen
        return seen != before
