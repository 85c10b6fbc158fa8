"""The count of dropped poison records."""

from __future__ import annotations

from clonos.formats.poison import DropCount, _attempt, _Sums


class Sums:
    """An accumulator in the driver."""

    def __init__(self) -> None:
        self.value: dict[str, int] = {}

    def add(self, more: dict[str, int]) -> None:
        self.value = _Sums().addInPlace(self.value, more)


def test_drops_of_a_failed_attempt_are_not_counted() -> None:
    count = DropCount()
    sums = Sums()
    count._sums = sums  # type: ignore[assignment]
    sums.add({_attempt("q", 1, "a"): 3})
    sums.add({_attempt("q", 1, "b"): 4})
    sums.add({_attempt("q", 1, "b"): 2, _attempt("other", 1, "b"): 9})
    assert count.take("q", 1, "b") == 6
    assert count.take("q", 2, "b") == 0
    assert sums.value == {_attempt("other", 1, "b"): 9}
