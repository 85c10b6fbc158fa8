"""What every sink must guarantee, as tests that any sink runs (`docs/sinks.md`).

Subclass `SinkContract`, say how a sink is made and how its output is read back, and let pytest collect it::

    class TestMySink(SinkContract):
        points = ("lane-begun", "lane-committed")

        @abstractmethod
    def make_sink(self, name):
            return MySink(name, path=self.place)

        @abstractmethod
    def read_back(self):
            return [Seen(row["key"], row["value"]) for row in rows_of(self.place)]

The suite needs two fixtures: ``kafka``, the `KafkaSettings` of a real broker (the causal log is there), and ``spark``,
a session with at least four slots whose Python workers know that broker (`clonos.engine.attached.tell_workers`).
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import ReplayDivergence, Superseded
from clonos.log.claiming import Ownership, claim
from clonos.log.records import Held
from clonos.settings import KafkaSettings
from clonos.sinks import LaneReport, Sink, SinkEpoch

_DEADLINE_S = 60.0


class Seen(NamedTuple):
    """One record as a consumer of the output sees it."""

    key: str | None
    value: str | None


Part = Sequence[tuple[str | None, str | None]]
PUBLISHED_BEFORE = ("audited", "skipped")


class SinkContract(ABC):
    """The contract. Every test publishes to a place of its own.

    Attributes:
        points: The points of `clonos.faults` that a lane of this sink passes, in order, in an epoch that is fresh:
            the tests lose a worker, and hold a zombie, at each of them.
        place: A word that names this test's place: a topic, a table, a folder.
        folder: A scratch folder.
        columns: DDL of the frames that the sink gets; ``key`` and ``value`` must be in it.
    """

    points: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[str] = "key string, value string"

    spark: SparkSession
    kafka: KafkaSettings
    folder: Path
    place: str

    def prepare(self) -> None:  # noqa: B027  # many sinks need nothing
        """Make the place, where the sink does not."""

    @abstractmethod
    def make_sink(self, name: str) -> Sink:
        """A sink that publishes to the test's place."""

    @abstractmethod
    def read_back(self) -> list[Seen]:
        """What a consumer of the place sees now; records of one lane and epoch in their order."""

    @pytest.fixture(autouse=True)
    def _staged(self, spark: SparkSession, kafka: KafkaSettings, tmp_path: Path) -> None:
        self.stage(spark, kafka, tmp_path)

    def stage(self, spark: SparkSession, kafka: KafkaSettings, folder: Path) -> None:
        """Set up one test."""
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
        assert [report.lane for report in reports] == list(range(len(owner.epoch(0, parts).held)))
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
        for ended in (False, True):
            reports = self.owner().write(0, parts, replay=True, ended=ended)
            assert all(report.outcome in PUBLISHED_BEFORE for report in reports), reports
            assert not any(report.diverged for report in reports)
            self.published_exactly(parts)

    def test_a_replay_in_another_order_agrees(self) -> None:
        parts = rows(2, 5)
        self.owner().write(0, parts)
        reports = self.owner().write(0, [list(reversed(part)) for part in parts], replay=True)
        assert not any(report.diverged for report in reports)
        self.published_exactly(parts)

    def test_a_replay_of_what_nobody_published_publishes_it(self) -> None:
        parts = rows(3, 4)
        self.owner()  # it planned the epoch and died
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
        for ended in (False, True):
            self.diverges(parts, ended=ended)
            self.published_exactly(parts)

    def test_divergence_stops_the_rest(self) -> None:
        parts = rows(3, 4)
        done = self.partly_published(parts)
        if done:
            self.diverges(parts, ended=False)
        self.published_exactly([part if index in done else [] for index, part in enumerate(parts)])

    # Owners

    def test_a_superseded_owner_publishes_nothing(self) -> None:
        old = self.owner()
        epoch = old.epoch(0, rows(3, 4))
        self.owner()
        with pytest.raises(Superseded):
            old.sink.write(old.frame(rows(3, 4)), epoch)
        self.published_exactly()

    def test_a_new_lineage_publishes_anew(self) -> None:
        parts = rows(2, 3)
        self.owner().write(5, parts)
        self.owner(new_lineage=True).write(0, parts)
        self.published_exactly(parts, parts)

    # Crashes

    def test_a_worker_lost_between_any_two_steps(self) -> None:
        """At each point in turn: the epoch fails, a new owner replays it, and all is there once."""
        parts = [rows(2, 3, epoch) for epoch in range(len(self.points))]
        lane = len(self.owner().epoch(0, parts[0]).held) - 1
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
        """Held at each point in turn while a new owner replays the epoch: what wakes up publishes nothing more."""
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
                zombie.exception(_DEADLINE_S)  # whether it notices is one thing, what it published another
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
        """A new driver that has just claimed the job."""
        sink = self.make_sink("out")
        sink.check(self.kafka)
        return Owner(self, sink, claim(self.kafka, self._job, new_lineage={} if new_lineage else None))

    def published_exactly(self, *epochs: Sequence[Part]) -> None:
        """Everything of `epochs` is seen once, and nothing else."""
        wanted = Counter(row for parts in epochs for part in parts for row in _seen(part))
        seen = Counter(self.read_back())
        assert seen == wanted, f"lost {list(wanted - seen)[:3]}, more than once or foreign {list(seen - wanted)[:3]}"

    def partly_published(self, parts: Sequence[Part]) -> tuple[int, ...]:
        """An attempt whose last partition fails when the others are published; which lanes that are.

        A sink that makes one lane of the whole epoch must have published nothing.
        """
        owner = self.owner()
        gate = self.folder / f"gate-{secrets.token_hex(2)}"
        others = Counter(row for part in parts[:-1] for row in _seen(part))
        by_partition = len(owner.epoch(0, parts).held) == len(parts)
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(owner.write, 0, parts, failing=gate)
            if by_partition:
                _await(lambda: Counter(self.read_back()) == others or attempt.done(), "the other lanes are published")
            gate.touch()
            with pytest.raises(Exception, match="as the test wants it"):
                attempt.result(_DEADLINE_S)
        self.published_exactly(parts[:-1] if by_partition else [])
        return tuple(range(len(parts) - 1)) if by_partition else ()

    def diverges(self, parts: Sequence[Part], *, ended: bool) -> None:
        """A replay that computes another value for a row of the first partition is told, one way or the other."""
        key, value = parts[0][0]
        other = [[(key, f"not {value}"), *parts[0][1:]], *parts[1:]]
        try:
            reports = self.owner().write(0, other, replay=True, ended=ended)
        except ReplayDivergence:
            return
        assert any(report.diverged for report in reports), reports

    def faults(self, faults: Sequence[str], action: str) -> _Faults:
        """Let workers meet `faults`; gives what was reached so far."""
        return _Faults(self.spark, self.folder / "faults", [f"{fault}:{action}" for fault in faults])


class Owner:
    """One driver's claim of the job, and epochs written under it."""

    def __init__(self, contract: SinkContract, sink: Sink, ownership: Ownership) -> None:
        self.sink = sink
        self._contract = contract
        self._own = ownership

    def write(
        self,
        epoch: int,
        parts: Sequence[Part],
        *,
        replay: bool = False,
        ended: bool = False,
        failing: Path | None = None,
    ) -> list[LaneReport]:
        """Write one epoch.

        Args:
            epoch: Its number.
            parts: The rows of each partition.
            replay: The log holds a plan of it.
            ended: The log holds an end of it.
            failing: The last partition waits for this file, then fails.
        """
        return self.sink.write(self.frame(parts, failing), self.epoch(epoch, parts, replay=replay, ended=ended))

    def epoch(self, number: int, parts: Sequence[Part], *, replay: bool = False, ended: bool = False) -> SinkEpoch:
        """The epoch as the engine would hand it over."""
        own = self._own
        held = self.sink.lanes(tuple(Held("range", "in", index, 0, len(part)) for index, part in enumerate(parts)))
        partitions = own.ensure_lanes(self.sink.name, len(held))
        markers = {lane: own.markers.get(partition) for lane, partition in enumerate(partitions)} if replay else {}
        return SinkEpoch(
            kafka=own.kafka,
            job=own.job,
            topic=own.topic,
            owner=own.owner,
            query=self.sink.name,
            epoch=number,
            held=held,
            lanes=tuple(range(len(held))),
            partitions=partitions,
            replay=replay,
            ended=ended,
            markers={
                lane: marker
                for lane, marker in markers.items()
                if marker is not None and marker.owner.lineage == own.owner.lineage
            },
        )

    def frame(self, parts: Sequence[Part], failing: Path | None = None) -> DataFrame:
        """A DataFrame with one partition for each of `parts`."""
        packed = msgspec.msgpack.encode(parts)
        last = len(parts) - 1

        def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    if failing is not None and index == last:
                        _await(failing.exists, "the test opens the gate")
                        raise RuntimeError("this partition fails, as the test wants it")
                    part = msgspec.msgpack.decode(packed)[index]
                    columns = [pa.array([row[column] for row in part], pa.string()) for column in (0, 1)]
                    yield pa.RecordBatch.from_arrays(columns, ["key", "value"])

        spark = self._contract.spark
        if not parts:
            nothing: DataFrame = spark.createDataFrame(spark.sparkContext.emptyRDD(), self._contract.columns)
            return nothing
        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(fill, self._contract.columns)


class _Faults:
    """Faults for Python workers: they are part of a worker's environment, so these are other workers."""

    def __init__(self, spark: SparkSession, log: Path, faults: Sequence[str]) -> None:
        self._environment = spark.sparkContext.environment
        self._log = log
        self._set = {"CLONOS_FAULT": ";".join(faults), "CLONOS_FAULT_LOG": str(log)}

    def __enter__(self) -> Callable[[], list[str]]:
        self._environment.update(self._set)
        return lambda: self._log.read_text().splitlines() if self._log.exists() else []

    def __exit__(self, *_exc: object) -> None:
        for name in self._set:
            self._environment.pop(name, None)
        Path(f"{self._log}.go").touch()  # whoever is still held


def rows(parts: int, count: int, epoch: int = 0) -> list[Part]:
    """`count` different rows for each of `parts` partitions."""
    return [[(f"k{part}", f"{epoch}-{part}-{number}") for number in range(count)] for part in range(parts)]


def _seen(part: Part) -> list[Seen]:
    return [Seen(key, value) for key, value in part]


def _await(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {_DEADLINE_S:.0f} s"
        time.sleep(0.02)
