"""What the tasks of an epoch do with their rows, if each partition has a lane."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from clonos.errors import ReplayDivergence
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.log.records import EpochIdentity, InputSlice, Marker, Owner, Resolution
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, LaneRows, TaskOutcome
from clonos_sinks.kafka import partitioned
from clonos_sinks.kafka.clients import NewestProducer
from clonos_sinks.kafka.lane import Lane, LaneSettings
from clonos_sinks.kafka.partitioned import PartitionedLanes

OWNER = Owner(1, 3, "claim")
TASK_OF = {0: 2, 1: 0, 2: 1}  # lane → Spark's partition index


def epoch(published: set[int], **more: Any) -> SinkEpoch:
    """An epoch of three lanes, of which some have a marker with one record."""
    lanes = []
    for number, task in TASK_OF.items():
        part = InputSlice("hash", "", number, 0, 3)
        marker = Marker(Owner(1, 2, "before"), "out", 7, number, part, 1, b"same")
        found = marker if number in published else None
        lanes.append(SinkLane(number, task, part, number + 1, tail_offset=-1, log_end=9, marker=found))
    identity = EpochIdentity("job", "log", "out", 7, OWNER, replay=True)
    return SinkEpoch(identity, KafkaSettings(), tuple(lanes), **more)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> PartitionedLanes:
    spark: Any = None
    monkeypatch.setattr(partitioned, "require_job", lambda _epoch: None)
    lanes = PartitionedLanes(spark, KafkaSettings(), LaneSettings("out", timeout_ms=1, longest_timeout_ms=2))
    ahead = SimpleNamespace(
        producers=lambda _spark, _connection, offsets: {name: NewestProducer(5, 1) for name in offsets},
        version=lambda *_: 2,
        begin=lambda *_: None,
    )
    monkeypatch.setattr(lanes, "_ahead", ahead)
    return lanes


DEAD_LETTERS = Resolution(OWNER, "out", 7, "dead-letter", "code", topic="letters")


@pytest.mark.parametrize(
    ("planned", "rows"),
    [
        (epoch(set()), ("PUBLISH", "PUBLISH", "PUBLISH")),
        (epoch({1}), ("COUNT", "SEND", "SEND")),
        (epoch({0, 2}), ("SEND", "COUNT", "COUNT")),
        (epoch({0, 1, 2}), ("COUNT", "COUNT", "COUNT")),
        (epoch(set(), committed=True), ("COUNT", "COUNT", "COUNT")),
        (epoch(set(), resolution=DEAD_LETTERS), ("SEND", "SEND", "SEND")),
    ],
)
def test_only_a_replay_that_is_published_in_part_sends_rows_to_the_driver(
    writer: PartitionedLanes, planned: SinkEpoch, rows: tuple[str, ...]
) -> None:
    assert writer.begin(planned, 3).rows == rows


def test_a_rehearsal_has_the_plan_of_a_fresh_epoch(writer: PartitionedLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = msgspec.to_builtins(writer.begin(epoch(set()), 3))
    monkeypatch.setattr(writer, "_ahead", None)  # it asks Kafka nothing
    rehearsed = msgspec.to_builtins(writer.rehearse(epoch(set()), 3))
    for plan in (fresh, rehearsed):
        for lane in plan["pass"]["lanes"]:
            del lane["producerId"], lane["producerEpoch"]
        del plan["pass"]["kept"], plan["pass"]["rehearsed"]
    assert rehearsed == fresh
    assert [lane["logPartition"] for lane in fresh["pass"]["lanes"]] == [2, 3, 1], "by task"


class Rows(EpochRows):
    """The rows of tasks that have computed one record each."""

    def __init__(self, digests: dict[int, bytes]) -> None:
        self._digests = digests

    @property
    def outcomes(self) -> tuple[TaskOutcome, ...]:  # type: ignore[override]
        return tuple(TaskOutcome(task, 1, self._digests.get(task, b"same"), 0, 0, -1) for task in range(3))

    def of(self, task: int) -> LaneRows:
        return LaneRows(None, task, 1, 5, 0, b"same")


@pytest.mark.parametrize("equal", [True, False])
def test_the_rest_is_published_after_all_published_lanes_were_compared(
    writer: PartitionedLanes, monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    published: list[int] = []

    class Driver:
        def __init__(self, *_arguments: object) -> None: ...

        def submit(self, lane: Lane, _rows: LaneRows) -> Future[LaneReport]:
            published.append(lane.number)
            report: Future[LaneReport] = Future()
            report.set_result(LaneReport(lane.number, "published", 1, b"same", marker_offset=11))
            return report

        def close(self) -> None: ...

    monkeypatch.setattr(partitioned, "SpooledLane", Driver)
    replay = epoch({1})
    writer.begin(replay, 3)
    rows = Rows({} if equal else {TASK_OF[1]: b"other"})
    if not equal:
        with pytest.raises(ReplayDivergence, match=r"lanes \[1\]"):
            writer.publish(replay, rows)
        assert published == []
        return
    reports = writer.publish(replay, rows)
    assert [(report.lane, report.outcome) for report in reports] == [(0, "published"), (1, "audited"), (2, "published")]
    assert published == [0, 2]
