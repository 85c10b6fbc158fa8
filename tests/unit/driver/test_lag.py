"""Lag by partition, and topics that may soon delete unread records."""

from __future__ import annotations

import pytest

from clonos.driver.lag import close_to_retention, furthest_behind


@pytest.mark.parametrize(
    ("read", "begin", "end", "expected"),
    [
        (150, 100, 1000, {"t": 94}),
        (50, 100, 1000, {"t": 100}),  # some records are deleted already: all others are unread
        (280, 100, 1000, {"t": 80}),
        (281, 100, 1000, {}),
        (1000, 100, 1000, {}),
        (0, 0, 1000, {}),  # it never deleted anything
        (0, 1, 100, {}),  # too few records for a report
        (5, 5, 5, {}),
    ],
)
def test_one_partition(read: int, begin: int, end: int, expected: dict[str, int]) -> None:
    assert close_to_retention({"t": {0: read}}, {("t", 0): begin}, {("t", 0): end}) == expected


def test_worst_partition_counts_and_unknown_partitions_do_not() -> None:
    progress = {"a": {0: 990, 1: 150, 2: 120}, "b": {0: 3}}
    begins = {("a", 0): 100, ("a", 1): 100, ("a", 2): 100}
    ends = dict.fromkeys(begins, 1000)
    assert close_to_retention(progress, begins, ends) == {"a": 97}


def test_the_partitions_that_are_furthest_behind() -> None:
    lag = {"a": {0: 5, 1: 0, 2: 7}, "b": {0: 6}, "c": {0: 0}}
    assert furthest_behind(lag) == {"a": {0: 5, 2: 7}, "b": {0: 6}}
    assert furthest_behind(lag, limit=2) == {"a": {2: 7}, "b": {0: 6}}
