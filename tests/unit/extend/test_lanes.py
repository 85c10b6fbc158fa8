"""The lanes of sinks in Python in a replay, the digest, and the size limits of the Kafka sink."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.carried_errors import CarriedError
from clonos.driver.sink_writers import PythonLanes
from clonos.errors import ReplayDivergence, SpecError
from clonos.extend import lanes
from clonos.extend.lanes import LaneTask, MultisetDigest
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.log.records import EpochIdentity, InputSlice, Owner, whole_epoch
from clonos.settings import KafkaSettings
from clonos_sinks.kafka.limits import Limits


def epoch(*, committed: bool = False, lanes: int = 3) -> SinkEpoch:
    identity = EpochIdentity("job", "log", "out", 7, Owner(1, 1, "claim"), replay=True)
    assigned = (SinkLane(lane, lane, InputSlice("hash", "", lane, 0, lanes), lane + 1) for lane in range(lanes))
    return SinkEpoch(identity, KafkaSettings(), tuple(assigned), committed)


class Target:
    """A sink that notes the lanes that it writes; `found` are those that earlier attempts published."""

    def __init__(self, found: set[int], diverged: int | None = None) -> None:
        self.found = found
        self.diverged = diverged
        self.written: list[tuple[int, int]] = []

    def published(self, _epoch: SinkEpoch) -> set[int]:
        return self.found

    def write_lane(self, _epoch: SinkEpoch, lane: SinkLane, batches: Any) -> LaneReport:
        rows = sum(batch.num_rows for batch in batches)
        self.written.append((lane.number, rows))
        outcome = "audited" if lane.number in self.found else "published"
        return LaneReport(lane.number, outcome, rows, b"", diverged=lane.number == self.diverged)  # type: ignore[arg-type]


class Rows:
    """What the tasks of an epoch hand to the driver, as in a session of Spark."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, target: Any, properties: dict[str, str], attempt: int = 0
    ) -> None:
        self._monkeypatch, self._target = monkeypatch, target
        self._properties, self._attempt = properties, attempt

    def values(self, task: int) -> list[bytes]:
        context = SimpleNamespace(
            partitionId=lambda: task, attemptNumber=lambda: self._attempt, getLocalProperty=self._properties.get
        )
        self._monkeypatch.setattr(lanes.TaskContext, "get", lambda: context)
        self._monkeypatch.setattr(lanes, "worker_kafka", KafkaSettings)
        batches = iter([pa.RecordBatch.from_pydict({"n": list(range(task + 1))})])
        return [value for batch in LaneTask(self._target)(batches) for value in batch.column(0).to_pylist()]


def replayed(monkeypatch: pytest.MonkeyPatch, target: Target, *, committed: bool = False) -> list[LaneReport]:
    properties: dict[str, str] = {}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=properties.__setitem__))
    sink: Any = target
    writer, lanes_of_epoch = PythonLanes(sink, spark), epoch(committed=committed)
    assert set(writer.begin(lanes_of_epoch, 3).rows) == {"SEND"}
    rows: Any = Rows(monkeypatch, target, properties)
    return writer.publish(lanes_of_epoch, rows)


@pytest.mark.parametrize(
    ("published", "committed", "written"),
    [
        (set(), False, [0, 1, 2]),
        ({0, 1, 2}, True, [0, 1, 2]),
        ({0, 1, 2}, False, [0, 1, 2]),
        ({1}, False, [1, 0, 2]),
        ({1}, True, [0, 1, 2]),
    ],
)
def test_replay_audits_published_lanes_before_publishing(
    published: set[int], committed: bool, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(published)
    reports = replayed(monkeypatch, target, committed=committed)
    assert target.written == [(lane, lane + 1) for lane in written], "each lane once, with its rows"
    assert [report.lane for report in reports] == [0, 1, 2]


@pytest.mark.parametrize("published", [{1}, {0, 1, 2}])
def test_divergence_stops_before_publishing(published: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(published, diverged=1)
    with pytest.raises(ReplayDivergence, match=r"lanes \[1\]"):
        replayed(monkeypatch, target)
    assert {lane for lane, _ in target.written} == published


def test_a_repeated_task_publishes_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(set())
    with pytest.raises(CarriedError, match="repeated a task"):
        Rows(monkeypatch, target, {}, attempt=1).values(0)
    assert target.written == []


def test_a_sink_that_cannot_be_sent_to_workers_is_named() -> None:
    target, spark = Target(set()), SimpleNamespace(sparkContext=None)
    target.name, target.connection = "out", threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="The sink 'out' cannot be sent to Python workers") as refused:
        PythonLanes(target, spark)  # type: ignore[arg-type]
    assert "write_lane" in refused.value.hint


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
