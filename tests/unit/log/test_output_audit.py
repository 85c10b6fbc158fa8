"""Which moments of an output fit which epochs."""

from __future__ import annotations

import pytest

from clonos.log.output_audit import CommittedEpoch, Snapshot, Sum, _fit

EPOCHS = [CommittedEpoch("", -1, Sum())] + [
    CommittedEpoch("out", number, Sum(10 * (number + 1), 1000 * (number + 1))) for number in range(3)
]


def snapshot(records: int, digest: int) -> Snapshot:
    """Of one topic, with the same sum for each variant."""
    return ((Sum(records, digest),) * 4,)


NOTHING, FIRST, SECOND, THIRD = (snapshot(epoch.total.records, epoch.total.digest) for epoch in EPOCHS)
IN_BETWEEN = snapshot(14, 1400)
SECOND_TWICE_3, THIRD_TWICE_3 = snapshot(21, 2007), snapshot(31, 3007)


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
        ([NOTHING, snapshot(30, 3001)], True, [], False),
    ],
)
def test_only_the_same_distance_proves_epochs(
    snapshots: list[Snapshot], whole: bool, epochs: list[int], newest: bool
) -> None:
    fit = _fit(EPOCHS, snapshots, whole=whole)
    proved = [fit.epochs[0].epoch, fit.epochs[-1].epoch] if len(fit.epochs) > 1 else []
    assert (proved, fit.newest) == (epochs, newest)
