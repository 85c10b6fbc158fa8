"""How many determinants the tasks of an epoch recorded and replayed, counted by Spark accumulators."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator


class DeterminantCount:
    """Accumulators of the driver's Spark context; tasks add, the driver takes the difference."""

    def __init__(self) -> None:
        self._pair: tuple[Accumulator[int], Accumulator[int]] | None = None
        self._context: SparkContext | None = None
        self._seen = (0, 0)

    def attach(self, context: SparkContext) -> None:
        """Make the accumulators, once in a Spark context; before the UDFs are built."""
        if self._context is context:
            return
        self._context = context
        self._pair = (context.accumulator(0), context.accumulator(0))
        self._seen = (0, 0)

    def for_pickling(self) -> Any:
        """What a UDF's closure carries to its tasks."""
        return self._pair

    @staticmethod
    def add(pair: Any, recorded: int, replayed: int) -> None:
        """In a task: add to the counts."""
        if pair is not None:
            pair[0].add(recorded)
            pair[1].add(replayed)

    def take(self) -> tuple[int, int]:
        """In the driver: recorded and replayed since the last call."""
        if self._pair is None:
            return (0, 0)
        total = (self._pair[0].value, self._pair[1].value)
        recorded, replayed = total[0] - self._seen[0], total[1] - self._seen[1]
        self._seen = total
        return recorded, replayed


count = DeterminantCount()
