"""A standby's live query is started before the claim: until then it writes and fences nothing, then it continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clonos import faults
from clonos.driver import live_epochs
from clonos.driver.driver import Driver
from clonos.driver.live_epochs import LiveRunner, epochs_because
from clonos.driver.options import RunOptions
from clonos.driver.parked import Parked
from clonos.errors import Superseded
from clonos.formats import Json
from clonos.jobs.context import JobContext
from clonos.jobs.spec import Trigger
from clonos.kafka import java_options
from clonos.log.control import ControlState, known_control, lane_id
from clonos.log.prepared import Prepared
from clonos.settings import KafkaSettings
from clonos.standby.rehearsal import Rehearsal
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.kafka.clients import newest_producers
from support.copy_job import Copy
from support.driver_thread import DriverThread

MakeTopic = Callable[..., str]


class Job:
    """A live job that copies a topic, its drivers, and one that has parked its query and waits for its promotion."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, path: Path) -> None:
        self.copy = Copy(kafka, make_topic)
        self.path = path
        self._spark, self._kafka, self._name = spark, kafka, name
        self._threads: list[DriverThread] = []
        self._ready, self._promoted = threading.Event(), threading.Event()
        self._rehearses = False
        self.interrupted: Callable[[], bool] = lambda: False

    def start(self, mode: str = "live") -> DriverThread:
        return self._start(self._spark, mode, lambda _driver: None)

    def published(self, thread: DriverThread) -> None:
        """Send some records, and wait until all are published."""
        self.copy.send_numbers(30)
        thread.await_(self.copy.is_published, "all is published")

    def standby(self, *, rehearses: bool = False) -> tuple[DriverThread, Parked | None]:
        """Start a driver, which waits for `promote`, and return its query, which it has parked."""
        self._rehearses = rehearses
        standby = self._start(self._spark.newSession(), "live", self._wait)  # it could not share the names of queries
        standby.await_(self._ready.is_set, "it waits")
        return standby, standby.driver.parking.parked("out")

    def refresh(self, driver: Driver) -> None:
        driver.parking.refresh(driver.live_queries(), self.state(), self.path, self.interrupted)
        driver.parking.connect()

    def promote(self) -> None:
        self._promoted.set()

    def _wait(self, driver: Driver) -> Prepared:
        if self._rehearses:
            rehearsal = Rehearsal(driver._spark, self._kafka, self._name, self.path)
            rehearsal.run_live(driver.rehearsed()[0], lambda: False)
        driver.define()
        self.refresh(driver)
        prepared = Prepared(self._kafka, self._name)
        prepared.refresh()
        self._ready.set()
        assert self._promoted.wait(120)
        return prepared

    def _start(self, spark: SparkSession, mode: str, before_run: Callable[[Driver], Prepared | None]) -> DriverThread:
        options = RunOptions(checkpoint=str(self.path / "checkpoint"))
        trigger = {"mode": mode}
        function = self.copy.function
        thread = DriverThread(spark, self._kafka, function, self._name, options, trigger=trigger, before_run=before_run)
        self._threads.append(thread)
        return thread

    def stop(self) -> None:
        while self._threads:
            thread = self._threads.pop()
            thread.driver.stop()
            thread.join(60)

    def state(self) -> ControlState:
        state = known_control(self._kafka, self._name)
        assert state is not None
        return state

    def owned(self) -> tuple[object, ...]:
        """What nobody but the owner changes: the files of the checkpoint, lanes' producers, owner, newest plan."""
        folder, state = self.path / "checkpoint", self.state()
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        lanes = [lane_id(self._name, sink, lane) for sink, lane in state.lanes]
        return files, newest_producers(self._spark, java_options(self._kafka), lanes), state.owner, state.plans.keys()


@pytest.fixture
def job(spark: SparkSession, kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path) -> Iterator[Job]:
    job = Job(spark, kafka, name, make_topic, tmp_path)
    yield job
    job.promote()
    job.stop()


def troubles(thread: DriverThread) -> list[str]:
    return [event["event"] for event in thread.events if event["event"] in ("restart", "failed", "not-rehearsed")]


def test_a_parked_query_writes_and_fences_nothing_before_its_promotion(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver before it runs until then. Its epochs follow the job's, in the log and in the job's checkpoint."""
    before = job.start()
    job.published(before)
    owned = job.owned()
    standby, parked = job.standby(rehearses=True)
    assert parked is not None
    assert job.owned() == owned
    job.published(before)

    monkeypatch.setattr(LiveRunner, "epoch_s", 1)
    monkeypatch.setattr(live_epochs, "RETAINED_EPOCHS", 2)
    job.copy.send_numbers(300)
    job.promote()

    def is_fenced() -> bool:
        job.copy.send_numbers(3)  # a driver notices the claim at its next step
        return before.failure is not None

    eventually(is_fenced, "the former driver notices the claim", poll_s=0.2)
    assert isinstance(before.failure, Superseded)
    standby.await_(job.copy.is_published, "all is published")
    assert standby.driver.run_id("out") == parked.run_id
    job.published(standby)
    standby.await_(lambda: job.state().committed["out"] >= 3, "epochs end")
    job.published(standby)
    job.stop()
    ended = job.state().committed["out"]
    files = job.owned()[0]
    assert isinstance(files, dict)
    assert {f"out/offsets/{ended}", f"out/commits/{ended}"} <= files.keys()
    assert "out/offsets/1" not in files
    assert not list(job.path.glob("parked-*")), "the scratch checkpoint is removed"
    assert not troubles(standby)

    job.published(job.start("epochs"))
    assert job.copy.faults() == {}


@pytest.mark.turn
@pytest.mark.parametrize("known", [True, False])
def test_a_source_with_a_new_partition(job: Job, known: bool) -> None:
    """A query that is parked with the partition (`known`) does not fit the log's offsets: the driver starts another.

    A query that is parked without it reads it from its second epoch on.
    """

    job.published(job.start())
    job.stop()
    if known:
        job.copy.add_partitions()
    standby, parked = job.standby()
    if not known:
        job.copy.add_partitions()
    job.refresh(standby.driver)
    assert standby.driver.parking.parked("out") is parked is not None, "it stays"
    job.promote()
    job.published(standby)
    assert parked is not None
    assert (standby.driver.run_id("out") == parked.run_id) is not known
    assert job.copy.faults() == {}
    assert not troubles(standby)


@pytest.mark.parametrize("starting", [False, True])
def test_a_standby_that_is_stopped_ends_its_parked_query(job: Job, starting: bool) -> None:
    """Also one that is just `starting` it: a promotion comes before its driver is warm."""
    job.published(job.start())
    job.stop()
    owned = job.owned()
    if starting:
        polls = iter((False, False))
        job.interrupted = lambda: next(polls, True)
    standby, parked = job.standby()
    assert (parked is None) is starting
    standby.driver.parking.close()
    assert parked is None or not parked.is_parked
    assert not list(job.path.glob("parked-*"))
    assert job.owned() == owned
    job.promote()
    job.published(standby)
    assert job.copy.faults() == {}
    assert not troubles(standby)


@pytest.mark.turn
def test_a_backlog_ends_the_first_epoch_so_that_the_next_one_has_more_tasks(
    job: Job, kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """The epochs have the job's numbers, also in dead letters: Spark has others."""
    dead = make_topic(1, "dead")

    def function(ctx: JobContext) -> None:
        value = F.col("value").cast("string")
        json = F.when(value == "x", "{").otherwise(F.to_json(F.struct(value.alias("value"))))
        rows = ctx.source(job.copy.source).withColumn("json", json.cast("binary"))
        poison = {"on_poison": "dead-letter", "dead_letters": dead}
        rows = ctx.decode(rows, Json(), schema="value string", column="json", into="record", **poison)
        ctx.sink(rows.select("key", "record.value", "poison"), topic=job.copy.out, name="out")

    job.copy.function = function
    job.published(job.start())
    job.stop()
    standby, _ = job.standby()
    ended = job.state().committed["out"]
    job.copy.send_numbers(30_000)
    job.promote()
    standby.await_(job.copy.is_published, "all is published")
    assert job.copy.faults() == {}
    assert job.state().committed["out"] == ended + 1, "the first epoch ended at once"
    job.copy.send("x")
    standby.await_(lambda: bool(read_committed(kafka, dead)), "the dead letter is published")
    assert dict(read_committed(kafka, dead)[0].headers() or [])["clonos.error.epoch"] == str(ended + 2).encode()


@pytest.mark.turn
def test_an_epoch_in_doubt_is_replayed_before_the_query_runs_live(
    job: Job, kafka: KafkaSettings, tmp_path: Path
) -> None:
    """A parked query cannot replay it, so the driver starts another one."""
    job.published(job.start("epochs"))
    job.stop()
    job.copy.send_numbers(15)
    with faults.injecting("lane-marked:raise", tmp_path / "faults"):
        in_epochs = job.start("epochs")
        eventually(lambda: (tmp_path / "faults").exists(), "an epoch fails")
        job.stop()
    state = job.state()
    assert state.newest_plan("out") > state.committed["out"], "it is in doubt"
    assert in_epochs.driver.queries
    assert not in_epochs.driver.live_queries()
    standby, parked = job.standby()
    assert parked is not None
    (query,) = standby.driver.queries
    assert "fewer task slots" in epochs_because(query, Trigger(), kafka, queries=1_000)
    job.promote()
    job.published(standby)
    standby.await_(lambda: any(event["event"] == "mode" and event["live"] for event in standby.events), "it runs live")
    assert job.copy.faults() == {}
