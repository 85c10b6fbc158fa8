"""Counts the determinants that the operators of an epoch recorded and replayed, in a Spark accumulator."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam


class Tally(NamedTuple):
    """How many determinants one operator of a query recorded and replayed, and the recorded bytes."""

    recorded: int = 0  # number of determinants written to the causal log
    replayed: int = 0  # number of determinants read from the causal log
    bytes: int = 0  # size of the recorded determinants in the log, with their owner, epoch and task

    def plus(self, other: Tally) -> Tally:
        """Return the determinants of this tally and of `other` together, with the sum of their bytes."""
        return Tally(*(left + right for left, right in zip(self, other, strict=True)))

    def less(self, other: Tally) -> Tally:
        """Return the determinants, and their bytes, that were counted since `other`, an earlier tally of the same
        operator.
        """
        return Tally(*(left - right for left, right in zip(self, other, strict=True)))


Counts = dict[tuple[str, str], Tally]
"""Query and operator → its tally."""


class _ByOperator(AccumulatorParam[Counts]):
    """The sums of each query's operators: epochs of several queries run at the same time."""

    def zero(self, _value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802  # Spark's name
        # A new dict: the driver may be reading the old one.
        summed = dict(value1)
        for query_operator, tally in value2.items():
            summed[query_operator] = summed.get(query_operator, Tally()).plus(tally)
        return summed


class DeterminantCount:
    """The Spark accumulator for numbers of determinants: tasks add to it, and the driver reads the differences."""

    def __init__(self) -> None:
        self._counts: Accumulator[Counts] | None = None
        self._context: SparkContext | None = None
        self._seen: Counts = {}

    def attach(self, context: SparkContext) -> None:
        """Create the accumulator, once for each Spark context and before the job's UDFs are built."""
        if self._context is context:
            return
        self._context = context
        self._counts = context.accumulator({}, _ByOperator())
        self._seen = {}

    def for_pickling(self) -> Any:
        """Return the accumulator object, which a UDF's closure carries to the tasks."""
        return self._counts

    @staticmethod
    def add(counts: Any, query: str, operator: str, tally: Tally) -> None:
        """In a task: add `tally` of an `operator` of `query` to `counts`, the result of `for_pickling`."""
        if counts is not None and any(tally):
            counts.add({(query, operator): tally})

    def take(self, query: str) -> dict[str, Tally]:
        """In the driver: the tally of each operator of `query` since the previous call; empty tallies are left out."""
        if self._counts is None:
            return {}
        taken = {}
        for (counted_query, operator), now in self._counts.value.items():
            new = now.less(self._seen.get((counted_query, operator), Tally()))
            if counted_query == query and any(new):
                self._seen[counted_query, operator] = now
                taken[operator] = new
        return taken


count = DeterminantCount()
