"""Which moments of an output fit which epochs."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.audit.committed_epochs import CommittedEpoch
from clonos.audit.multiset import Sum
from clonos.audit.output_audit import _fit, _reason
from clonos.audit.visible_output import Earlier, VisibleOutput

# Epochs of different sizes: equal ones have the same distance from each other.
TOTALS = [Sum(), Sum(10, 1000), Sum(25, 2600), Sum(31, 3333)]
EPOCHS = [CommittedEpoch("out", number - 1, total) for number, total in enumerate(TOTALS)]


NOTHING, FIRST, SECOND, THIRD = TOTALS
IN_BETWEEN = Sum(14, 1400)
SECOND_TWICE_3, THIRD_TWICE_3 = Sum(26, 2607), Sum(32, 3340)


@pytest.mark.parametrize(
    ("snapshots", "whole", "epochs", "newest"),
    [
        ([NOTHING, THIRD], True, [-1, 2], True),
        ([NOTHING, FIRST, IN_BETWEEN], True, [-1, 0], False),
        ([FIRST, IN_BETWEEN, SECOND], False, [0, 1], True),
        ([THIRD], False, [], False),
        # A record was repeated: epochs after it fit each other, but not the beginning.
        ([NOTHING, SECOND_TWICE_3, THIRD_TWICE_3], True, [], False),
        ([SECOND_TWICE_3, THIRD_TWICE_3], False, [1, 2], True),
        # A record is repeated during the audit.
        ([FIRST, SECOND, THIRD_TWICE_3], False, [0, 1], False),
        ([NOTHING, SECOND, THIRD_TWICE_3], True, [-1, 1], False),
        # As many records, one of them with other content.
        ([NOTHING, Sum(31, 3334)], True, [], False),
    ],
)
def test_only_the_same_distance_proves_epochs(
    snapshots: list[Sum], whole: bool, epochs: list[int], newest: bool
) -> None:
    fit = _fit(EPOCHS, snapshots, whole=whole)
    proved = [fit.epochs[0].epoch, fit.epochs[-1].epoch] if len(fit.epochs) > 1 else []
    assert (proved, fit.newest) == (epochs, newest)


@pytest.mark.parametrize("snapshots", [[Sum(), Sum(10, 1000)], [Sum(10, 1000)]], ids=["complete", "truncated"])
def test_an_output_that_does_not_change_is_named(snapshots: list[Sum]) -> None:
    log: Any = SimpleNamespace(epochs=EPOCHS[:2])
    assert "Nothing was published during the audit" in _reason(log, ["out"], snapshots, None)


def test_the_transactions_of_an_output_at_rest_lead_to_its_earlier_moments() -> None:
    """Each transaction is the last run of some partitions, in any combination."""
    output = VisibleOutput.__new__(VisibleOutput)
    a, b, c, d = Sum(4, 400), Sum(6, 601), Sum(5, 77), Sum(6, 1055)
    output._runs = {("out", 0): deque([a, c]), ("out", 1): deque([b]), ("out", 2): deque([d])}
    output._sum = a.plus(b).plus(c).plus(d)
    third, second, first = d, b.plus(c), a
    assert output.earlier([third, second, first]) == Earlier([Sum(), a, a.plus(b).plus(c)], fits=True)
    assert output.earlier([third, Sum(11, 679), first]) == Earlier([a.plus(b).plus(c)], fits=False)
    assert output.earlier([third, second, Sum(5, 500)]) == Earlier([a, a.plus(b).plus(c)], fits=True), "deleted"
