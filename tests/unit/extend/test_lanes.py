"""The passes over an epoch in a replay, the digest, and the size limits of the Kafka sink."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.carried_errors import CarriedError
from clonos.causal.epoch_scope import COMPUTED
from clonos.errors import ReplayDivergence
from clonos.extend import lanes
from clonos.extend.lanes import MultisetDigest, Pass, publish_rest
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.log.records import EpochIdentity, InputSlice, Owner, whole_epoch
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.limits import Limits


class Frame:
    """Records calls of persist and unpersist, and the local properties of the session's context."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.properties: list[str | None] = []
        self.sparkContext = self.sparkSession = self

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        assert name == COMPUTED
        self.properties.append(value)

    def persist(self, _level: object) -> Frame:
        self.calls.append("persist")
        return self

    def unpersist(self) -> None:
        self.calls.append("unpersist")


def epoch(*, committed: bool = False, lanes: int = 3) -> SinkEpoch:
    identity = EpochIdentity("job", "log", "out", 7, Owner(1, 1, "claim"), replay=True)
    assigned = (SinkLane(lane, lane, InputSlice("hash", "", lane, 0, lanes), lane + 1) for lane in range(lanes))
    return SinkEpoch(identity, KafkaSettings(), tuple(assigned), committed)


def runner(passes: list[Pass], diverged: int | None = None) -> Callable[[Any, Pass], list[LaneReport]]:
    def run(_frame: Any, mode: Pass) -> list[LaneReport]:
        passes.append(mode)
        outcome = "audited" if mode == "audit" else "published"
        return [LaneReport(lane, outcome, 1, b"", diverged=mode == "audit" and lane == diverged) for lane in range(3)]  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    ("published", "committed", "passes"),
    [
        (set(), False, ["publish"]),
        ({0, 1, 2}, True, ["audit"]),
        ({0, 1, 2}, False, ["audit"]),
        ({1}, False, ["audit", "publish"]),
    ],
)
def test_replay_audits_published_lanes_before_publishing(
    published: set[int], committed: bool, passes: list[Pass]
) -> None:
    modes: list[Pass] = []
    frame: Any = Frame()
    reports = publish_rest(frame, epoch(committed=committed), published, runner(modes))
    assert modes == passes
    assert frame.calls == (["persist", "unpersist"] if len(passes) == 2 else [])
    assert frame.properties == (["true", None] if len(passes) == 2 else [])
    if len(passes) == 2:
        assert [report.outcome for report in reports] == ["published", "audited", "published"]


@pytest.mark.parametrize(("published", "calls"), [({1}, ["persist", "unpersist"]), ({0, 1, 2}, [])])
def test_divergence_stops_before_publishing(published: set[int], calls: list[str]) -> None:
    modes: list[Pass] = []
    frame: Any = Frame()
    with pytest.raises(ReplayDivergence, match=r"lanes \[1\]"):
        publish_rest(frame, epoch(), published, runner(modes, diverged=1))
    assert modes == ["audit"]
    assert frame.calls == calls


def test_a_repeated_task_publishes_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SimpleNamespace(attemptNumber=lambda: 1)
    monkeypatch.setattr(lanes.TaskContext, "get", lambda: task)

    def write(*_arguments: object) -> LaneReport:
        raise AssertionError("the lane was written")

    with pytest.raises(CarriedError, match="repeated a task"):
        lanes._run_lane(iter([]), epoch(), write)


def digest(records: list[bytes]) -> bytes:
    digest = MultisetDigest()
    for record in records:
        digest.add(record)
    assert digest.records == len(records)
    return digest.value()


@given(st.lists(st.binary(max_size=6), max_size=8), st.binary(max_size=6), st.randoms(use_true_random=False))
def test_digest_ignores_order_and_counts_duplicates(records: list[bytes], extra: bytes, shuffler: Any) -> None:
    shuffled = list(records)
    shuffler.shuffle(shuffled)
    assert digest(shuffled) == digest(records)
    assert len({digest(records + [extra] * times) for times in range(4)}) == 4


def test_whole_epoch_combines_all_slices() -> None:
    parts = tuple(InputSlice("range", "in", index, 0, 9) for index in range(3))
    (whole,) = whole_epoch(parts)
    assert str(whole) == "all 3 partitions"
    assert whole not in whole_epoch(parts[:2])
    assert whole_epoch(()) == ()


def test_batch_size_follows_the_limits() -> None:
    assert Limits().batch == 1_000_000
    assert Limits(record=20_000).batch == 20_000
    assert Limits(record=20_000, request=9_000).batch < 9_000
