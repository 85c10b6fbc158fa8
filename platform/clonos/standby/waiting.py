"""A standby's life until it is told to take over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from clonos.causal.scope import worker_kafka
from clonos.engine.checkpoint import progress_of
from clonos.errors import ClonosError
from clonos.log.prepared import Prepared
from clonos.log.reading import shared_reader
from clonos.log.topic import CONTROL
from clonos.runner.driver import Driver
from clonos.runner.events import Emit, trouble
from clonos.runner.lag import LagMeter
from clonos.runner.process import First
from clonos.settings import KafkaSettings
from clonos.standby.orders import Orders
from clonos.standby.rehearsal import Rehearsal
from clonos.standby.states import TRANSITIONS, StandbyState
from clonos.standby.warming import Warming

_LOOK_S: Final = 0.1
_REFRESH_S: Final = 5.0
_FOLLOW_S: Final = 1.0
_TELL_S: Final = 2.0
# Spark ends Python workers that were idle for a minute.
_WORKERS_S: Final = 40.0


def at_pipe(pipe: Path, job: str, alone_after_s: float = 0.0) -> First:
    """What a driver does first that is to wait until `pipe` says to take over.

    Args:
        pipe: Where to listen.
        job: The job's name.
        alone_after_s: Tell when the job's driver makes no progress for so long although input waits; 0: never.
    """
    orders = Orders(pipe)  # before the session is there: who is told meanwhile takes over as soon as it can

    def wait(driver: Driver, spark: SparkSession, kafka: KafkaSettings, emit: Emit, scratch: Path) -> Prepared | None:
        return Standby(driver, spark, kafka, job, orders, emit, scratch, alone_after_s).wait()

    return wait


class Standby:
    """Warms a driver up and waits.

    Args:
        driver: What takes over; nothing of it has run yet.
        spark: Its session.
        kafka: The cluster.
        job: The job's name.
        orders: Tells when to take over.
        emit: Where to tell its states.
        scratch: A folder to rehearse in.
        alone_after_s: As `at_pipe`.
    """

    def __init__(
        self,
        driver: Driver,
        spark: SparkSession,
        kafka: KafkaSettings,
        job: str,
        orders: Orders,
        emit: Emit,
        scratch: Path,
        alone_after_s: float = 0.0,
    ) -> None:
        self._driver = driver
        self._spark = spark
        self._kafka = kafka
        self._job = job
        self._emit = emit
        self._scratch = scratch
        self._orders = orders
        self._prepared = Prepared(kafka, job)
        self._state = StandbyState.STARTING
        self._warming: Warming | None = None
        self._warmed = self._looked = self._followed = self._told_at = time.monotonic()
        self._told: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        every_s = min(1.0, alone_after_s / 4) or 1.0
        self._meter = LagMeter(kafka, _unheard, stalled=self._stalled, stalled_s=alone_after_s, every_s=every_s)
        if alone_after_s:
            self._meter.start()

    def wait(self) -> Prepared | None:
        """Until it is told to take over: what the claim finds ready; None: it was asked to stop.

        Raises:
            ClonosError: The job cannot be defined.
        """
        try:
            self._to(StandbyState.WARMING)
            self._warm()
            while not self._orders.promoted(_LOOK_S):
                if self._driver.asked_to_stop:
                    self._prepared.close()
                    return None
                self._keep_warm()
            self._to(StandbyState.PROMOTING)
            if self._orders.accept_new_code:
                self._driver.accept_new_code()
            return self._prepared
        finally:
            if self._warming is not None:
                self._warming.end(wait=self._driver.asked_to_stop)
            self._meter.stop()
            self._orders.close()

    def _stalled(self, query: str, seconds: float) -> None:
        """As far as the log shows; whoever hears it knows whether the control plane has an eye on that driver."""
        self._emit("primary-stalled", query=query, seconds=round(seconds, 1))

    def _warm(self) -> None:
        """Rehearse, and be READY; or stop half way if it is to take over."""
        rehearsed = self._driver.rehearsed()
        self._driver.define()
        self._driver.check()
        rehearsal = Rehearsal(self._spark, self._kafka, self._job, self._scratch)
        queries, own = self._driver.queries, self._driver.local_checkpoints()
        self._warming = Warming(rehearsal, rehearsed, queries, own, self._emit)
        self._warming.first(self._interrupted)
        if not self._interrupted():
            self._refresh()
            self._warm_workers()
            self._to(StandbyState.READY)
            self._warming.go_on()

    def _interrupted(self) -> bool:
        return self._driver.asked_to_stop or self._orders.promoted(0.0)

    def _keep_warm(self) -> None:
        now = time.monotonic()
        if now > self._warmed + _WORKERS_S:
            self._warm_workers()
        if now > self._looked + _REFRESH_S:
            self._refresh()
        elif self._state is StandbyState.READY and now > self._followed + _FOLLOW_S:
            self._follow()
        self._note_progress()
        if self._prepared.state.ended != self._told and now > self._told_at + _TELL_S:
            self._told, self._told_at = dict(self._prepared.state.ended), now
            self._emit("following", epochs=self._told)

    def _note_progress(self) -> None:
        """What the job's driver has read up to is in the plan of its newest epoch."""
        state = self._prepared.state
        for query, epoch in state.ended.items():
            plan = state.plan(query, epoch)
            if plan is not None and self._seen.get(query) != epoch:
                self._seen[query] = epoch
                self._meter.note(query, progress_of(plan.offsets))

    def _follow(self) -> None:
        """Have what the log says in memory: a takeover reads what came after it."""
        try:
            self._prepared.follow()
        except ClonosError as error:
            self._stale(error)
        self._followed = time.monotonic()

    def _stale(self, error: ClonosError) -> None:
        if self._state is StandbyState.READY:
            self._emit("standby-trouble", **trouble(error))
            self._to(StandbyState.STALE)

    def _refresh(self) -> None:
        """Look that it could take over, and follow the log; what is in the way now may not be there then."""
        try:
            self._driver.check()
            self._prepared.refresh()
        except ClonosError as error:
            self._stale(error)
        else:
            if self._state is StandbyState.STALE:
                self._to(StandbyState.READY)
        self._looked = self._followed = time.monotonic()

    def _warm_workers(self) -> None:
        """Have two Python workers for each task slot: those of lanes that a replay skips are not used again."""
        slots = self._spark.sparkContext.defaultParallelism
        # Kept, as the rows of a replay are of which some lanes are published: no rehearsal has a row to keep.
        rows = self._spark.range(0, slots, 1, slots).persist(StorageLevel.MEMORY_AND_DISK)
        nothing = partial(_nothing, self._prepared.topic)
        try:
            rows.mapInArrow(nothing, "id long").mapInArrow(nothing, "id long").collect()
        finally:
            rows.unpersist()
        self._warmed = time.monotonic()

    def _to(self, state: StandbyState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise AssertionError(f"{self._state} → {state}")
        self._state = state
        self._emit("standby", state=state)


def _unheard(event: str, **fields: object) -> None:
    """The lag of the job is its driver's to tell."""


def _nothing(topic: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Have this worker connected to the log; long enough that no worker takes two tasks."""
    if topic:
        shared_reader(worker_kafka(), topic).bounds(CONTROL)
    time.sleep(0.05)
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
