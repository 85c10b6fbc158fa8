"""How many determinants the operators of an epoch recorded and replayed, counted by a Spark accumulator."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam


class Tally(NamedTuple):
    """What an operator did.

    Attributes:
        recorded: Determinants that it had written to the causal log.
        replayed: Determinants that it had from there.
        bytes: What the recorded ones took in the log, with their owner, epoch and task.
    """

    recorded: int = 0
    replayed: int = 0
    bytes: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(one + another for one, another in zip(self, other, strict=True)))

    def less(self, other: Tally) -> Tally:
        """What came after `other`."""
        return Tally(*(one - another for one, another in zip(self, other, strict=True)))


Counts = dict[tuple[str, str], Tally]
"""Query and operator → its tally."""


class _ByOperator(AccumulatorParam[Counts]):
    """The sums of each query's operators: epochs of several queries run at the same time."""

    def zero(self, _value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802  # Spark's name
        # A new dict: the driver may be reading the old one.
        summed = dict(value1)
        for who, tally in value2.items():
            summed[who] = summed.get(who, Tally()).plus(tally)
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
        self._counts = context.accumulator({}, _ByOperator())
        self._seen = {}

    def for_pickling(self) -> Any:
        """What a UDF's closure carries to its tasks."""
        return self._counts

    @staticmethod
    def add(counts: Any, query: str, operator: str, tally: Tally) -> None:
        """In a task: add to the counts of an `operator` of `query`."""
        if counts is not None and any(tally):
            counts.add({(query, operator): tally})

    def take(self, query: str) -> dict[str, Tally]:
        """In the driver: what each operator of `query` did since the last call for it; not those that did nothing."""
        if self._counts is None:
            return {}
        took = {}
        for who, now in self._counts.value.items():
            new = now.less(self._seen.get(who, Tally()))
            if who[0] == query and any(new):
                self._seen[who] = now
                took[who[1]] = new
        return took


count = DeterminantCount()
