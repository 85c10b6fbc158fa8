"""What sinks share: the order in which a replay is audited and published, and the digest of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.errors import ReplayDivergence
from clonos.lanes import MultisetDigest, Pass, publish_rest
from clonos.log.records import Held, Owner, whole_epoch
from clonos.settings import KafkaSettings
from clonos.sinks import LaneReport, SinkEpoch
from clonos_sinks.kafka.rows import Row
from clonos_sinks.kafka.targets import Limits, _at_most, batch_bytes


class Frame:
    """Notes whether its rows are kept."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def persist(self, _level: object) -> Frame:
        self.kept.append("persist")
        return self

    def unpersist(self) -> None:
        self.kept.append("unpersist")


def epoch(*, ended: bool = False, lanes: int = 3) -> SinkEpoch:
    held = tuple(Held("hash", "", index, 0, lanes) for index in range(lanes))
    return SinkEpoch(
        KafkaSettings(),
        "job",
        "log",
        Owner(1, 1, "me"),
        "out",
        7,
        held,
        tuple(range(lanes)),
        (1, 2, 3),
        True,
        ended,
        {},
    )


def runner(passes: list[Pass], diverged: int | None = None) -> Callable[[Any, Pass], list[LaneReport]]:
    def run(_frame: Any, what: Pass) -> list[LaneReport]:
        passes.append(what)
        outcome = "audited" if what == "audit" else "published"
        return [LaneReport(lane, outcome, 1, b"", diverged=what == "audit" and lane == diverged) for lane in range(3)]  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("published", "ended", "passes"),
    [
        (set(), False, ["publish"]),
        ({0, 1, 2}, True, ["audit"]),
        ({0, 1, 2}, False, ["audit"]),
        ({1}, False, ["audit", "publish"]),
    ],
)
def test_passes(published: set[int], ended: bool, passes: list[Pass]) -> None:
    ran: list[Pass] = []
    frame: Any = Frame()
    reports = publish_rest(frame, epoch(ended=ended), published, runner(ran))
    assert ran == passes
    assert frame.kept == (["persist", "unpersist"] if len(passes) == 2 else [])
    if len(passes) == 2:
        assert [report.outcome for report in reports] == ["published", "audited", "published"]


@pytest.mark.parametrize(("published", "kept"), [({1}, ["persist", "unpersist"]), ({0, 1, 2}, [])])
def test_a_difference_stops_before_the_rest(published: set[int], kept: list[str]) -> None:
    ran: list[Pass] = []
    frame: Any = Frame()
    with pytest.raises(ReplayDivergence, match=r"lanes \[1\]"):
        publish_rest(frame, epoch(), published, runner(ran, diverged=1))
    assert ran == ["audit"]
    assert frame.kept == kept


def digest(records: list[bytes]) -> bytes:
    made = MultisetDigest()
    for record in records:
        made.add(record)
    assert made.records == len(records)
    return made.value()


@given(st.lists(st.binary(max_size=6), max_size=8), st.binary(max_size=6), st.randoms(use_true_random=False))
def test_digest_of_a_multiset(records: list[bytes], extra: bytes, shuffler: Any) -> None:
    shuffled = list(records)
    shuffler.shuffle(shuffled)
    assert digest(shuffled) == digest(records)
    assert len({digest(records + [extra] * times) for times in range(4)}) == 4


def test_one_lane_of_a_whole_epoch() -> None:
    parts = tuple(Held("range", "in", index, 0, 9) for index in range(3))
    (whole,) = whole_epoch(parts)
    assert str(whole) == "all 3 partitions"
    assert whole not in whole_epoch(parts[:2])
    assert whole_epoch(()) == ()


headers = st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=200)), max_size=80).map(
    tuple
)
optional = st.none() | st.binary(max_size=300)


@given(st.builds(Row, st.just("t"), optional, optional, st.none(), headers, st.none()))
def test_the_quick_bound_is_one(row: Row) -> None:
    """The exact size itself is compared with a broker's in tests/contracts/test_targets.py."""
    assert batch_bytes(row) <= _at_most(row)


def test_batches_follow_the_topic() -> None:
    assert Limits().batch == 1_000_000
    assert Limits(record=20_000).batch == 20_000
    assert Limits(record=20_000, request=9_000).batch < 9_000
