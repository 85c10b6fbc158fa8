"""A standby driver from its start to its promotion: it warms up, follows the causal log and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from clonos.carried_errors import carrying, uncarry_failure
from clonos.causal.determinants import connect_producer
from clonos.causal.epoch_scope import worker_kafka
from clonos.causal.shape import has_operators, python_workers
from clonos.driver.background import BackgroundWorker
from clonos.driver.checkpoint import progress_of
from clonos.driver.driver import Driver, jvm_exited
from clonos.driver.lag import LagMeter
from clonos.driver.process import BeforeRun
from clonos.errors import CheckpointUnavailable, ClonosError, EpochFailed
from clonos.jobs.context import Query
from clonos.jobs.spec import Standbys
from clonos.log.prepared import Prepared
from clonos.log.reading import shared_reader
from clonos.log.topic import CONTROL
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.spark.clusters import is_loopback
from clonos.spark.executors import hold_executors, request_executors
from clonos.spark.internals import hadoop_configuration, jvm_of
from clonos.spark.lane_sink import writes_in_jvm
from clonos.spark.session import alive, is_local
from clonos.spark.stored_files import StoredFolder
from clonos.standby.mirror import Mirror
from clonos.standby.promotion import PromotionMailbox
from clonos.standby.rehearsal import Rehearsal
from clonos.standby.states import TRANSITIONS, StandbyState
from clonos.standby.warming import Warming
from clonos.telemetry import driver_events as report
from clonos.telemetry.driver_events import DriverEvent
from clonos.telemetry.events import Emit

_POLL_S: Final = 0.1
_REFRESH_INTERVAL_S: Final = 5.0
_FOLLOW_INTERVAL_S: Final = 1.0
_REPORT_INTERVAL_S: Final = 2.0
# Spark stops Python workers that were idle for a minute.
_WARM_WORKERS_INTERVAL_S: Final = 40.0
_WORKERS_RETRY_S: Final = 10.0
# A file system or a broker that delays the check for longer would delay a takeover too.
_LONG_CHECK_S: Final = 10.0


def wait_for_promotion(pipe: Path, job: str, standbys: Standbys) -> BeforeRun:
    """Return the function that a driver process calls before its run if it starts as a standby: it warms up and waits
    for the promotion.

    Args:
        pipe: Path of the named pipe through which the promotion arrives.
        job: The job's name.
        standbys: The specification of the job's standbys. With `self_promote_after_s` the standby emits
            ``primary-stalled`` when the job's driver makes no progress for this time although input waits; the agent
            may then promote the standby by itself.
    """
    mailbox = PromotionMailbox(pipe)  # before the session starts: a promotion that arrives earlier is not lost

    def wait(driver: Driver, spark: SparkSession, kafka: KafkaSettings, emit: Emit, scratch: Path) -> Prepared | None:
        return Standby(driver, spark, kafka, job, mailbox, emit, scratch, standbys).wait()

    return wait


class Standby:
    """Warms a driver up, follows the causal log and waits for the promotion.

    Args:
        driver: The driver that takes over; it has not run yet.
        spark: The driver's session.
        kafka: The Kafka cluster.
        job: The job's name.
        mailbox: Receives the promotion.
        emit: Receives the events of the standby and of its rehearsals.
        scratch: A directory for rehearsals.
        standbys: As in `wait_for_promotion`.
    """

    def __init__(
        self,
        driver: Driver,
        spark: SparkSession,
        kafka: KafkaSettings,
        job: str,
        mailbox: PromotionMailbox,
        emit: Emit,
        scratch: Path,
        standbys: Standbys,
    ) -> None:
        self._driver = driver
        self._spark = spark
        self._kafka = kafka
        self._job = job
        self._emit = emit
        self._scratch = scratch
        self._mailbox = mailbox
        self._prepared = Prepared(kafka, job)
        self._state = StandbyState.STARTING
        self._workers_failed = False
        self._failed_check: ClonosError | None = None  # of the newest check of the log
        self._checks = BackgroundWorker("clonos-checks")  # a promotion does not wait for a store that is slow
        self._check: Future[None] | None = None
        self._check_began = 0.0
        self._warming: Warming | None = None
        self._live: list[Query] = []  # the queries that run live
        self._workers_warmed_at = self._refreshed_at = self._followed_at = self._reported_at = time.monotonic()
        self._reported_epochs: dict[str, int] | None = None
        self._metered_epochs: dict[str, int] = {}
        self._executors = standbys.executors
        stalled_s, every_s = standbys.self_promote_after_s, min(1.0, standbys.self_promote_after_s / 4) or 1.0
        self._meter = LagMeter(
            OffsetClient(kafka), _discard, stalled=self._report_stall, stalled_s=stalled_s, every_s=every_s
        )
        if stalled_s:
            self._meter.start()

    def wait(self) -> Prepared | None:
        """Wait for the promotion.

        Returns:
            Open Kafka connections for the claim; None if the process was asked to stop.

        Raises:
            ClonosError: The job cannot be defined, the check before its warm-up failed, or the JVM exited.
        """
        try:
            self._transition(StandbyState.WARMING)
            hold_executors(self._spark, self._executors)
            self._warm()
            while not self._mailbox.promoted(_POLL_S):
                if self._driver.asked_to_stop:
                    self._prepared.close()
                    return None
                self._keep_warm()
            self._transition(StandbyState.PROMOTING)
            request_executors(self._spark)
            if self._mailbox.accept_new_code:
                self._driver.accept_new_code()
            return self._prepared
        except ClonosError:
            raise
        except Exception as failure:
            if alive(self._spark):
                raise
            raise jvm_exited(failure) from failure
        finally:
            if self._warming is not None:
                self._warming.stop(wait=self._driver.asked_to_stop)
            if self._state is not StandbyState.PROMOTING:
                self._driver.parking.close()
            self._meter.stop()
            self._mailbox.close()

    def _report_stall(self, query: str, seconds: float) -> None:
        """Report that the job's driver makes no progress; the agent decides about a self-promotion."""
        self._emit(report.PrimaryStalled(query, round(seconds, 1)))

    def _warm(self) -> None:
        """Rehearse until READY; a promotion interrupts."""
        rehearsed = self._driver.rehearsed()
        self._driver.define()
        self._driver.check()
        self._live = self._driver.live_queries()
        live = {query.name for query in self._live}
        rehearsal = Rehearsal(self._spark, self._kafka, self._job, self._scratch)
        self._warming = Warming(rehearsal, rehearsed, self._driver.queries, self._checkpoints(), self._emit, live)
        self._warming.run_first(self._interrupted)
        if not self._interrupted():
            self._refresh(self._driver.check)
            self._warm_workers()
            for query in self._driver.queries:
                if writes_in_jvm(query.sink):
                    query.sink.connect(self._spark, self._kafka)
            self._park()
            self._transition(StandbyState.READY)
            if self._failed_check is not None:
                self._become_stale(self._failed_check)
            self._warming.start()

    def _park(self) -> None:
        self._driver.parking.refresh(self._live, self._prepared.state, self._scratch, self._interrupted)

    def _checkpoints(self) -> dict[str, Path | Mirror]:
        """Return the checkpoint of each query, or a copy of it in a folder of this host.

        Executors on other hosts cannot read a copy, so there is none.
        """
        master = self._spark.sparkContext.master or ""
        may_copy = is_local(master) or is_loopback(master)
        jvm, conf = jvm_of(self._spark), hadoop_configuration(self._spark)
        paths: dict[str, Path | Mirror] = {}
        for name, checkpoint in self._driver.checkpoints().items():
            if checkpoint.local is not None:
                paths[name] = checkpoint.local
            elif may_copy:
                folder = StoredFolder(jvm, conf, checkpoint.location)
                paths[name] = Mirror(folder, self._scratch / f"checkpoint-{name}")
        return paths

    def _interrupted(self) -> bool:
        return self._driver.asked_to_stop or self._mailbox.promoted(0.0)

    def _keep_warm(self) -> None:
        now = time.monotonic()
        if now > self._workers_warmed_at + _WARM_WORKERS_INTERVAL_S:
            self._keep_workers()
        if self._check is None and now > self._refreshed_at + _REFRESH_INTERVAL_S:
            self._check, self._check_began = self._checks.submit(self._check_takeover), now
        if self._check is not None and self._check.done():
            check, self._check = self._check, None
            self._refresh(check.result)
            if self._failed_check is None:
                self._park()
        elif self._check is not None and now > self._check_began + _LONG_CHECK_S:
            seconds = round(now - self._check_began)
            self._become_stale(
                CheckpointUnavailable(f"The check of the checkpoint and the sources has taken {seconds} s.")
            )
        elif self._state is StandbyState.READY and now > self._followed_at + _FOLLOW_INTERVAL_S:
            self._follow()
        self._meter_progress()
        if self._prepared.state.committed != self._reported_epochs and now > self._reported_at + _REPORT_INTERVAL_S:
            self._reported_epochs, self._reported_at = dict(self._prepared.state.committed), now
            # With the state: an agent that restarts reads only the newest events.
            self._emit(report.Following(self._reported_epochs, self._state))

    def _meter_progress(self) -> None:
        """Pass the progress of the job's driver to the lag meter: the plan of the newest epoch holds it."""
        state = self._prepared.state
        for query, epoch in state.committed.items():
            newest = state.newest_plan(query)
            running = state.plan(query, newest) if newest > epoch else None
            is_live = running is not None and running.live  # its steps are not in control: no stall can be seen
            plan = running if is_live else state.plan(query, epoch)
            if plan is not None and self._metered_epochs.get(query) != plan.epoch:
                self._metered_epochs[query] = plan.epoch
                self._meter.note(query, {} if is_live else progress_of(plan.offsets))

    def _check_takeover(self) -> None:
        self._driver.check()
        self._driver.parking.connect()

    def _follow(self) -> None:
        """Read the new control records, so that a takeover reads only later ones."""
        try:
            self._prepared.follow()
        except ClonosError as error:
            self._become_stale(error)
        self._followed_at = time.monotonic()

    def _become_stale(self, error: ClonosError) -> None:
        if self._state is StandbyState.READY:
            self._emit(report.StandbyTrouble.of(error))
            self._transition(StandbyState.STALE)

    def _refresh(self, check: Callable[[], None]) -> None:
        """Check that a takeover would work, and follow the log.

        A READY standby is STALE after a failed check, until a check passes and its workers run.
        """
        try:
            check()
            self._prepared.refresh()
        except ClonosError as error:
            self._failed_check = error
            self._become_stale(error)
        else:
            self._failed_check = None
            if self._state is StandbyState.STALE and not self._workers_failed:
                self._transition(StandbyState.READY)
        self._refreshed_at = self._followed_at = time.monotonic()

    def _keep_workers(self) -> None:
        """Start the workers that exited.

        A failure does not end the standby: it would take over without them, and tries again soon.
        """
        try:
            self._warm_workers()
        except Exception as failure:
            if not alive(self._spark):
                raise
            self._workers_warmed_at = time.monotonic() - _WARM_WORKERS_INTERVAL_S + _WORKERS_RETRY_S
            typed = failure if isinstance(failure, ClonosError) else None
            error = typed or EpochFailed(f"The standby's Python workers cannot be started: {failure}.")
            if self._state is StandbyState.STALE and not self._workers_failed:
                self._emit(report.StandbyTrouble.of(error))
            self._workers_failed = True
            self._become_stale(error)
        else:
            self._workers_failed = False

    def _warm_workers(self) -> None:
        """Start the Python workers that a takeover needs; those that run already stay.

        Raises:
            BrokerUnavailable: The workers cannot connect to the log.
        """
        slots = self._spark.sparkContext.defaultParallelism
        rows = self._spark.range(0, slots, 1, slots)
        connect = partial(_connect_worker, self._prepared.topic, self._recording_depth)
        try:
            chain = rows
            for _ in range(self._workers_of_slot):
                chain = chain.mapInArrow(connect, "id long")
            chain.collect()
        except Exception as failure:
            if (typed := uncarry_failure(failure)) is not None:
                raise typed from failure
            raise
        self._workers_warmed_at = time.monotonic()

    @cached_property
    def _workers_of_slot(self) -> int:
        """The number of Python workers that a task slot uses at the same time; a lane in Python uses another one."""
        return max(python_workers(query.frame) + (not writes_in_jvm(query.sink)) for query in self._driver.queries)

    @cached_property
    def _recording_depth(self) -> str:
        """The sharing depth of the determinants that the job's functions record; empty: none is recorded."""
        depth = str(self._driver.sharing_depth)
        records = depth != "0" and any(has_operators(query.frame) for query in self._driver.queries)
        return depth if records else ""

    def _transition(self, state: StandbyState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise AssertionError(f"{self._state} → {state}")
        self._state = state
        self._emit(report.Standby(state))


def _discard(event: DriverEvent) -> None:
    """Drop an event: the job's driver reports its own lag."""


def _connect_worker(topic: str, depth: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Connect this worker to the log, also for determinants unless `depth` is empty.

    The pause makes sure that no worker takes two tasks.
    """
    with carrying():
        if topic:
            kafka = worker_kafka()
            shared_reader(kafka, topic).bounds(CONTROL)
            if depth:
                connect_producer(kafka, depth, topic)
    time.sleep(0.05)
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
