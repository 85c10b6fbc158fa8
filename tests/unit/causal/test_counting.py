"""Counts of determinants by query and operator."""

from __future__ import annotations

from pyspark.accumulators import Accumulator

from clonos.causal.counting import Counts, DeterminantCount, Tally, _ByOperator


class Context:
    """Creates accumulators without a JVM."""

    def accumulator(self, value: Counts, param: _ByOperator) -> Accumulator[Counts]:
        return Accumulator(0, value, param)


def test_each_operator_of_each_query_has_its_own_counts() -> None:
    count = DeterminantCount()
    assert count.take("words") == {}
    count.attach(Context())  # type: ignore[arg-type]
    tasks = count.for_pickling()
    count.add(tasks, "words", "judge", Tally(3, 0, 300))
    count.add(tasks, "words", "price", Tally(0, 7))
    count.add(tasks, "totals", "judge", Tally(1, 1, 90))
    count.add(tasks, "words", "judge", Tally(2, 4, 200))
    assert count.take("words") == {"judge": Tally(5, 4, 500), "price": Tally(0, 7)}
    assert count.take("words") == {}
    count.add(tasks, "words", "judge", Tally(1, 0, 100))
    assert count.take("totals") == {"judge": Tally(1, 1, 90)}
    assert count.take("words") == {"judge": Tally(1, 0, 100)}
    count.add(tasks, "words", "judge", Tally(0, 0, 80))
    assert count.take("words") == {"judge": Tally(0, 0, 80)}, (
        "bytes that are written after the determinants were counted"
    )


def test_a_task_without_an_accumulator_counts_nothing() -> None:
    DeterminantCount.add(None, "words", "judge", Tally(1, 1))
