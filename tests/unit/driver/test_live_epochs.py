"""Where a live epoch ends that its driver has not ended: at the greatest marker of its steps."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from clonos.driver.checkpoint import progress_of
from clonos.driver.live_epochs import end_live_epochs
from clonos.extend.source import Progress
from clonos.log.control import ControlState
from clonos.log.records import Claim, EpochCommitted, InputSlice, Marker, Owner, Plan

BEFORE, OWNER = Owner(1, 1, "a"), Owner(1, 2, "b")
START = "v1\n{}\n" + json.dumps({"in": {"0": 10, "1": 10}})


def step(number: int, zero: int, one: int, **other: Any) -> Marker:
    """The marker of a step; each step publishes one record."""
    marker = Marker(BEFORE, "out", 4, (number - 1) % 3, InputSlice("live"), 1, b"", number, number)
    return replace(marker, next_offsets={"in": {0: zero, 1: one}}, **other)


class Log:
    """A claimed log in which epoch 4 is planned; it notes what the driver commits."""

    def __init__(self, *markers: Marker) -> None:
        plan = Plan(BEFORE, "out", 4, (), (), (1, 2, 3), {}, 0, "code", START, 0, live=True)
        self.owner = OWNER
        self.state = ControlState(claim=Claim(OWNER, 0), plans={("out", 4): (9, plan)}, committed={"out": 3})
        self.markers = {1 + marker.lane: marker for marker in markers}
        self.control = SimpleNamespace(append=self._append)
        self.appended: list[EpochCommitted] = []
        self.entries = {3: START}

    def _append(self, record: EpochCommitted) -> int:
        self.appended.append(record)
        return 20

    def end(self) -> tuple[Progress, int]:
        """Where the epoch ends: the next offsets, and the number of its records."""
        checkpoint = SimpleNamespace(
            commits=lambda: sorted(self.entries),
            read_offsets=self.entries.get,
            write_offsets=self.entries.__setitem__,
            add_epoch=lambda epoch, offsets, commit: self.entries.update({epoch: offsets}),
        )
        assert list(end_live_epochs(cast(Any, self), "out", cast(Any, checkpoint))) == [4]
        (ended,) = self.appended
        assert self.entries[4] == ended.offsets
        return progress_of(ended.offsets), ended.records


@pytest.mark.parametrize("newest", [7, 8, 9])
def test_an_epoch_ends_at_the_greatest_marker_of_any_lane(newest: int) -> None:
    """Not at that of the last lane: the lanes have the steps in turn."""
    log = Log(*(step(number, zero=10 + number, one=10 + number // 2) for number in range(newest - 2, newest + 1)))
    assert log.end() == ({"in": {0: 10 + newest, 1: 10 + newest // 2}}, newest)


def test_each_partition_ends_at_the_greatest_offset_of_any_marker() -> None:
    """Also of a partition that a later marker does not name."""
    log = Log(step(1, 12, 10), replace(step(2, 0, 0), next_offsets={"in": {1: 15}}))
    assert log.end() == ({"in": {0: 12, 1: 15}}, 2)


@pytest.mark.parametrize(
    "other",
    [{"epoch": 3}, {"query": "other"}, {"owner": Owner(2, 1, "c")}, {"step": 0}],
    ids=["another epoch", "another query", "another lineage", "no step"],
)
def test_a_marker_of_something_else_does_not_count(other: dict[str, Any]) -> None:
    assert Log(step(1, 11, 11), replace(step(2, 99, 99), **other)).end() == ({"in": {0: 11, 1: 11}}, 1)


def test_an_epoch_without_a_step_ends_where_it_began() -> None:
    assert Log().end() == ({"in": {0: 10, 1: 10}}, 0)
