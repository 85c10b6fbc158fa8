"""How many determinants the tasks of an epoch recorded and replayed, counted by a Spark accumulator."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

Counts = dict[str, tuple[int, int]]
"""Query → recorded, replayed."""


class _ByQuery(AccumulatorParam[Counts]):
    """The sums of each query: epochs of several queries run at the same time."""

    def zero(self, _value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802  # Spark's name
        # A new dict: the driver may be reading the old one.
        summed = dict(value1)
        for query, (recorded, replayed) in value2.items():
            before = summed.get(query, (0, 0))
            summed[query] = (before[0] + recorded, before[1] + replayed)
        return summed


class DeterminantCount:
    """An accumulator of the driver's Spark context; tasks add, the driver takes the difference."""

    def __init__(self) -> None:
        self._counts: Accumulator[Counts] | None = None
        self._context: SparkContext | None = None
        self._seen: Counts = {}

    def attach(self, context: SparkContext) -> None:
        """Make the accumulator, once in a Spark context; before the job's UDFs are built."""
        if self._context is context:
            return
        self._context = context
        self._counts = context.accumulator({}, _ByQuery())
        self._seen = {}

    def for_pickling(self) -> Any:
        """What a UDF's closure carries to its tasks."""
        return self._counts

    @staticmethod
    def add(counts: Any, query: str, recorded: int, replayed: int) -> None:
        """In a task: add to the counts of `query`."""
        if counts is not None and (recorded or replayed):
            counts.add({query: (recorded, replayed)})

    def take(self, query: str) -> tuple[int, int]:
        """In the driver: recorded and replayed by `query` since the last call for it."""
        if self._counts is None:
            return (0, 0)
        now, seen = self._counts.value.get(query, (0, 0)), self._seen.get(query, (0, 0))
        self._seen[query] = now
        return now[0] - seen[0], now[1] - seen[1]


count = DeterminantCount()
