"""Contract tests that every sink must pass (`docs/sinks.md`).

Subclass `SinkContract`, implement the creation of a sink and the reading of its output, and let pytest collect it::

    class TestMySink(SinkContract):
        points = ("lane-begun", "lane-committed")

        def make_sink(self, name):
            return MySink(name, path=self.place)

        def read_back(self):
            return [Seen(row["key"], row["value"]) for row in rows_of(self.place)]

The suite needs two fixtures: ``kafka``, the `KafkaSettings` of a real broker (the causal log is there), and ``spark``,
a session with at least four slots whose Python workers can reach that broker
(`clonos.spark.user_session.configure_workers`).
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import ReplayDivergence, Superseded
from clonos.extend.sink import LaneReport, Sink, SinkEpoch, SinkLane
from clonos.faults import injecting
from clonos.log.claiming import Ownership, claim
from clonos.log.records import EpochIdentity, InputSlice
from clonos.settings import KafkaSettings
from clonos.testing.epoch_writes import EpochWrites
from clonos.testing.harness.waiting import eventually

_DEADLINE_S = 60.0


class Seen(NamedTuple):
    """Key and value of one record that a consumer of the output sees."""

    key: str | None
    value: str | None


# The rows of one partition: key and value of each.
Part = Sequence[tuple[str | None, str | None]]
PUBLISHED_BEFORE = ("audited", "skipped")


class SinkContract(ABC):
    """The contract tests of a sink. Every test publishes to its own topic, table or folder (the *place*)."""

    points: ClassVar[tuple[str, ...]] = ()
    """The points of `clonos.faults` that a lane of this sink passes in a fresh epoch, in order. The tests kill or pause
    a worker at each of them.
    """
    in_doubt: ClassVar[tuple[InputSlice, ...]] = ()
    """The lanes that a sink of the JVM must have; empty: those that it chooses."""
    columns: ClassVar[str] = "key string, value string"
    """Schema (DDL) of the DataFrames that the tests publish, with at least ``key`` and ``value``."""

    spark: SparkSession
    kafka: KafkaSettings
    folder: Path
    """An empty folder for the test."""
    place: str
    """Unique name of this test's topic, table or folder."""

    def prepare(self) -> None:  # noqa: B027  # many sinks need nothing
        """Create `place`, if the sink does not create it."""

    @abstractmethod
    def make_sink(self, name: str) -> Sink:
        """Create the sink to test. It must publish to `self.place`.

        Args:
            name: The sink's stable name (`Sink.name`).
        """

    @abstractmethod
    def read_back(self) -> list[Seen]:
        """Return the records that a consumer of `place` sees now, in order within a lane and epoch."""

    @pytest.fixture(autouse=True)
    def _staged(self, spark: SparkSession, kafka: KafkaSettings, tmp_path: Path) -> None:
        self.stage(spark, kafka, tmp_path)

    def stage(self, spark: SparkSession, kafka: KafkaSettings, folder: Path) -> None:
        """Prepare one test: a new `place` and a new job. A pytest fixture calls this before each test."""
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.place = f"contract-{secrets.token_hex(4)}"
        self._job = f"contract-{secrets.token_hex(4)}"
        self.prepare()

    # Freshness and replays

    def test_a_fresh_epoch_is_published_once(self) -> None:
        owner = self.owner()
        parts = rows(3, 4)
        reports = owner.write(0, parts)
        self.published_exactly(parts)
        assert [report.lane for report in reports] == list(range(len(owner.epoch(0, parts).lanes)))
        assert sum(report.records for report in reports) == 12
        assert {report.outcome for report in reports} == {"published"}

    def test_epochs_follow_each_other(self) -> None:
        owner = self.owner()
        parts = [rows(3, 2, epoch) for epoch in range(3)]
        for epoch, part in enumerate(parts):
            owner.write(epoch, part)
        self.published_exactly(*parts)

    def test_a_replay_of_what_is_published_publishes_nothing_and_agrees(self) -> None:
        parts = rows(3, 4)
        self.owner().write(0, parts)
        for committed in (False, True):
            reports = self.owner().write(0, parts, replay=True, committed=committed)
            assert all(report.outcome in PUBLISHED_BEFORE for report in reports), reports
            assert not any(report.diverged for report in reports)
            self.published_exactly(parts)

    def test_a_replay_in_another_order_agrees(self) -> None:
        parts = rows(2, 5)
        self.owner().write(0, parts)
        reports = self.owner().write(0, [list(reversed(part)) for part in parts], replay=True)
        assert not any(report.diverged for report in reports)
        self.published_exactly(parts)

    def test_a_replay_of_an_unpublished_epoch_publishes_it(self) -> None:
        parts = rows(3, 4)
        self.owner()  # it planned the epoch and crashed
        reports = self.owner().write(0, parts, replay=True)
        assert {report.outcome for report in reports} == {"published"}
        self.published_exactly(parts)

    def test_a_partial_replay_publishes_only_the_rest(self) -> None:
        parts = rows(3, 4)
        done = self.partly_published(parts)
        reports = self.owner().write(0, parts, replay=True)
        self.published_exactly(parts)
        assert not any(report.diverged for report in reports)
        assert {report.lane for report in reports if report.outcome in PUBLISHED_BEFORE} == set(done)

    def test_divergence_of_a_published_epoch_is_found(self) -> None:
        parts = rows(2, 4)
        self.owner().write(0, parts)
        for committed in (False, True):
            self.diverges(parts, committed=committed)
            self.published_exactly(parts)

    def test_divergence_stops_the_rest(self) -> None:
        parts = rows(3, 4)
        done = self.partly_published(parts)
        if done:
            self.diverges(parts, committed=False)
        self.published_exactly([part if index in done else [] for index, part in enumerate(parts)])

    # Owners

    def test_a_superseded_owner_publishes_nothing(self) -> None:
        old = self.owner()
        epoch = old.epoch(0, rows(3, 4))
        self.owner()
        with pytest.raises(Superseded):
            old.writes.write(old.frame(rows(3, 4)), epoch)
        self.published_exactly()

    def test_a_new_lineage_publishes_again(self) -> None:
        parts = rows(2, 3)
        self.owner().write(5, parts)
        self.owner(new_lineage=True).write(0, parts)
        self.published_exactly(parts, parts)

    # Crashes

    def test_a_worker_lost_between_any_two_steps(self) -> None:
        """A worker is killed at each point in turn: the epoch fails, a new owner replays it, and every record is
        published once.
        """
        parts = [rows(2, 3, epoch) for epoch in range(len(self.points))]
        lane = len(self.owner().epoch(0, parts[0]).lanes) - 1
        faults = [f"{point},epoch={epoch},lane={lane},replay=False" for epoch, point in enumerate(self.points)]
        with self.faults(faults, "lose") as reached:
            for epoch, fault in enumerate(faults):
                with pytest.raises(Exception, match=r"worker|Worker"):
                    self.owner().write(epoch, parts[epoch])
                assert fault in reached(), f"the sink does not pass {fault}"
                reports = self.owner().write(epoch, parts[epoch], replay=True)
                assert not any(report.diverged for report in reports)
                self.published_exactly(*parts[: epoch + 1])

    def test_a_zombie_between_any_two_steps(self) -> None:
        """A worker is paused at each point in turn while a new owner replays the epoch: when it resumes, it publishes
        nothing.
        """
        parts = [rows(1, 3, epoch) for epoch in range(len(self.points))]
        faults = [f"{point},epoch={epoch},replay=False" for epoch, point in enumerate(self.points)]
        with ThreadPoolExecutor(1) as pool, self.faults(faults, "hold") as reached:
            for epoch, fault in enumerate(faults):
                zombie: Future[Any] = pool.submit(self.owner().write, epoch, parts[epoch])
                while fault not in reached() and not zombie.done():
                    time.sleep(0.02)
                assert fault in reached(), f"the sink does not pass {fault}: {zombie.exception()}"
                self.owner().write(epoch, parts[epoch], replay=True)
                self.published_exactly(*parts[: epoch + 1])
                (self.folder / f"faults.{fault}.go").touch()
                zombie.exception(_DEADLINE_S)  # the zombie may raise or not; only its output counts
                self.published_exactly(*parts[: epoch + 1])

    # What is in a lane

    def test_empty_lanes(self) -> None:
        parts = [[], [("k", "only")], []]
        reports = self.owner().write(0, parts)
        assert [report.outcome for report in reports if report.outcome != "empty"] == ["published"]
        self.published_exactly(parts)
        self.owner().write(0, parts, replay=True)
        self.published_exactly(parts)

    def test_an_epoch_without_rows(self) -> None:
        assert {report.outcome for report in self.owner().write(0, [[], []])} == {"empty"}
        assert self.owner().write(1, []) == []
        self.published_exactly()

    def test_order_within_a_lane(self) -> None:
        parts = rows(3, 700)
        self.owner().write(0, parts)
        seen = self.read_back()
        for part in parts:
            ours = set(_seen(part))
            assert [row for row in seen if row in ours] == _seen(part)

    def test_equal_rows_are_all_published(self) -> None:
        self.owner().write(0, [[("k", "same")] * 3, [("k", "same")] * 2])
        self.owner().write(0, [[("k", "same")] * 3, [("k", "same")] * 2], replay=True)
        assert self.read_back() == [Seen("k", "same")] * 5

    def test_nulls(self) -> None:
        parts: list[Part] = [[(None, "no key"), ("k", None), (None, None), ("", "")]]
        self.owner().write(0, parts)
        self.owner().write(0, parts, replay=True)
        assert self.read_back() == _seen(parts[0])

    # The stage

    def owner(self, *, new_lineage: bool = False) -> Owner:
        """Claim the job as a new driver does, with a new sink; `new_lineage` begins a new lineage."""
        sink = self.make_sink("out")
        sink.check(self.kafka)
        own = claim(self.kafka, self._job, new_lineage={} if new_lineage else None)
        return Owner(self, sink, EpochWrites(self.spark, sink, own, self.in_doubt), own)

    def published_exactly(self, *epochs: Sequence[Part]) -> None:
        """Assert that a consumer sees every record of `epochs` once, and no other record."""
        wanted = Counter(row for parts in epochs for part in parts for row in _seen(part))
        seen = Counter(self.read_back())
        assert seen == wanted, f"lost {list(wanted - seen)[:3]}, more than once or foreign {list(seen - wanted)[:3]}"

    def partly_published(self, parts: Sequence[Part]) -> tuple[int, ...]:
        """Publish an epoch whose last partition fails after all others are published; return their lane numbers.

        A sink with one lane for the whole epoch must not publish anything.
        """
        owner = self.owner()
        gate = self.folder / f"gate-{secrets.token_hex(2)}"
        others = Counter(row for part in parts[:-1] for row in _seen(part))
        by_partition = len(owner.epoch(0, parts).lanes) == len(parts)
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(owner.write, 0, parts, failing=gate)
            if by_partition:
                eventually(
                    lambda: Counter(self.read_back()) == others or attempt.done(),
                    "the other lanes are published",
                    timeout_s=_DEADLINE_S,
                )
            gate.touch()
            with pytest.raises(Exception, match="as the test wants it"):
                attempt.result(_DEADLINE_S)
        self.published_exactly(parts[:-1] if by_partition else [])
        return tuple(range(len(parts) - 1)) if by_partition else ()

    def diverges(self, parts: Sequence[Part], *, committed: bool) -> None:
        """Assert that the sink detects a replay of `parts` in which one row has another value: it raises
        `ReplayDivergence` or reports the lane. `committed`: whether the causal log holds the epoch's commit.
        """
        key, value = parts[0][0]
        other = [[(key, f"not {value}"), *parts[0][1:]], *parts[1:]]
        try:
            reports = self.owner().write(0, other, replay=True, committed=committed)
        except ReplayDivergence:
            return
        assert any(report.diverged for report in reports), reports

    @contextmanager
    def faults(self, faults: Sequence[str], action: str) -> Iterator[Callable[[], list[str]]]:
        """Inject `faults` with `action` into this process and the Python workers inside the context (`clonos.faults`).

        It yields a function that returns the faults that were triggered so far. Each fault is a point with values:
        ``lane-begun,epoch=3``. Spark starts new workers, because faults are environment variables of workers.
        """
        log, environment = self.folder / "faults", self.spark.sparkContext.environment
        text = ";".join(f"{fault}:{action}" for fault in faults)
        settings = {"CLONOS_FAULT": text, "CLONOS_FAULT_LOG": str(log)}
        environment.update(settings)
        try:
            with injecting(text, log):
                yield lambda: log.read_text().splitlines() if log.exists() else []
        finally:
            for name in settings:
                environment.pop(name, None)
            Path(f"{log}.go").touch()  # releases processes that still wait


@dataclass(frozen=True)
class Owner:
    """A driver's claim of the test's job. Tests write epochs to the sink under this claim."""

    contract: SinkContract
    sink: Sink
    writes: EpochWrites
    own: Ownership  # the claim in the causal log

    def write(
        self,
        epoch: int,
        parts: Sequence[Part],
        *,
        replay: bool = False,
        committed: bool = False,
        failing: Path | None = None,
    ) -> list[LaneReport]:
        """Write one epoch to the sink.

        Args:
            epoch: Number of the epoch.
            parts: The rows of each partition; a row is a key and a value.
            replay: Whether this is a replay: the causal log holds a plan of the epoch.
            committed: Whether the causal log holds the epoch's commit.
            failing: The last partition waits until this file exists, then fails.
        """
        lanes = self.epoch(epoch, parts, replay=replay, committed=committed)
        return self.writes.write(self.frame(parts, failing), lanes)

    def epoch(self, number: int, parts: Sequence[Part], *, replay: bool = False, committed: bool = False) -> SinkEpoch:
        """Return the epoch as the driver passes it to the sink; `Owner.write` describes the other arguments."""
        own = self.own
        slices = self.writes.writer.lanes(
            tuple(InputSlice("range", "in", index, 0, len(part)) for index, part in enumerate(parts))
        )
        partitions = own.ensure_lanes(self.sink.name, len(slices))
        lanes = []
        for lane, (part, partition) in enumerate(zip(slices, partitions, strict=True)):
            marker = own.markers.get(partition) if replay else None
            if marker is not None and marker.owner.lineage != own.owner.lineage:
                marker = None
            lanes.append(SinkLane(lane, lane, part, partition, marker=marker))
        identity = EpochIdentity(own.job, own.topic, self.sink.name, number, own.owner, replay)
        return SinkEpoch(identity, own.kafka, tuple(lanes), committed)

    def frame(self, parts: Sequence[Part], failing: Path | None = None) -> DataFrame:
        """Return a DataFrame with a partition for each of `parts`; the last fails once `failing` exists."""
        packed = msgspec.msgpack.encode(parts)
        last = len(parts) - 1

        def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    if failing is not None and index == last:
                        eventually(failing.exists, "the test opens the gate", timeout_s=_DEADLINE_S)
                        raise RuntimeError("this partition fails, as the test wants it")
                    part = msgspec.msgpack.decode(packed)[index]
                    columns = [pa.array([row[column] for row in part], pa.string()) for column in (0, 1)]
                    yield pa.RecordBatch.from_arrays(columns, ["key", "value"])

        spark = self.contract.spark
        if not parts:
            nothing: DataFrame = spark.createDataFrame(spark.sparkContext.emptyRDD(), self.contract.columns)
            return nothing
        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(fill, self.contract.columns)


def rows(parts: int, count: int, epoch: int = 0) -> list[Part]:
    """Test data: `count` different rows for each of `parts` partitions; the values name the `epoch`."""
    return [[(f"k{part}", f"{epoch}-{part}-{number}") for number in range(count)] for part in range(parts)]


def _seen(part: Part) -> list[Seen]:
    return [Seen(key, value) for key, value in part]
