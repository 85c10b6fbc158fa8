"""Counts of determinants, told apart by query."""

from __future__ import annotations

from pyspark.accumulators import Accumulator

from clonos.causal.counting import Counts, DeterminantCount, _ByQuery


class Context:
    """Makes accumulators without a JVM."""

    def accumulator(self, value: Counts, param: _ByQuery) -> Accumulator[Counts]:
        return Accumulator(0, value, param)


def test_each_query_has_its_own_counts() -> None:
    count = DeterminantCount()
    assert count.take("words") == (0, 0)
    count.attach(Context())  # type: ignore[arg-type]
    tasks = count.for_pickling()
    count.add(tasks, "words", 3, 0)
    count.add(tasks, "totals", 1, 1)
    count.add(tasks, "words", 2, 4)
    assert count.take("words") == (5, 4)
    assert count.take("words") == (0, 0)
    count.add(tasks, "words", 1, 0)
    assert count.take("totals") == (1, 1)
    assert count.take("words") == (1, 0)


def test_a_task_without_an_accumulator_counts_nothing() -> None:
    DeterminantCount.add(None, "words", 1, 1)
