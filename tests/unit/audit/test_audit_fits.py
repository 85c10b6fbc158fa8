"""Which moments of an output fit which epochs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.audit.committed_epochs import CommittedEpoch
from clonos.audit.multiset import Sum
from clonos.audit.output_audit import _fit, _reason

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
