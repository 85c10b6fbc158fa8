"""Parked queries: live queries that a standby starts before its promotion, up to their first epoch.

Spark plans a parked query on a scratch checkpoint and asks for the plan of its first epoch. The answer waits for the
promotion. Until then no task has started: no record is read, no row is published, and the job's checkpoint is not
touched. Consumers and producers are connected, but a producer that is not initialised fences nobody.

After the claim the epoch begins at the greatest marker, with the next number of the job's epochs. Spark continues on
the scratch checkpoint, and the driver writes the entries of the job's own (`clonos.driver.live_epochs.LiveRunner`). A
query that is not parked, or not on the partitions that the log names, starts as after a crash.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from clonos.deadline import Deadline
from clonos.driver.checkpoint import progress_of
from clonos.driver.running import INTERRUPTED, EpochEnded, Running, partitions_of, stop_in_epoch, stream_writer
from clonos.errors import EpochFailed
from clonos.extend.source import Progress
from clonos.jobs.context import Query
from clonos.log.control import ControlState
from clonos.log.reading import shared_reader
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.spark.lane_sink import EpochRows, TaskPlan, writing
from clonos.spark.live import LiveSink
from clonos.spark.source_streams import connect_live, first_offsets
from clonos.spark.user_session import promised_settings
from clonos.telemetry.driver_events import NotRehearsed
from clonos.telemetry.events import Emit

_log = logging.getLogger("clonos")
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02


class Parked:
    """One live query, started and parked; a `clonos.spark.lane_sink.Committer`.

    Args:
        query: The query.
        job: The job's name.
        kafka: The Kafka cluster.
        folder: The scratch checkpoint, which does not exist yet.
    """

    def __init__(self, query: Query, job: str, kafka: KafkaSettings, folder: Path) -> None:
        assert isinstance(query.sink, LiveSink)
        self.query = query
        self.offsets: Progress = {}  # as Spark planned them; their partitions are those of the first epoch
        self.writer = query.sink.live_writer(query.frame.sparkSession, kafka)
        self._spark = query.frame.sparkSession
        self._job = job
        self._kafka = kafka
        self._folder = folder
        self._ending = contextlib.ExitStack()
        self._first_epoch = 0  # its number; Spark begins with batch 0
        self._running: Running | None = None
        self._planned, self._decided, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._stream: StreamingQuery | None = None

    def start(self, interrupted: Callable[[], bool]) -> None:
        """Start the query, and wait until it is parked.

        Raises:
            EpochFailed: It failed, took too long, or was `interrupted`.
        """
        spark = self._spark
        self._ending.callback(shutil.rmtree, self._folder, ignore_errors=True)
        registered = writing(spark, self, job=self._job, topic=self.writer.topic, checks=self.writer.checks)
        options = self._ending.enter_context(registered)
        with promised_settings(spark, {}):
            self._stream = stream_writer(self.query, self.writer, self._job, f"file://{self._folder}", options).start()
        deadline = Deadline(_TIMEOUT_S)
        while self._stream.isActive and not (interrupted() or deadline.passed()):
            if self._planned.wait(_POLL_S):
                self.offsets = first_offsets(spark, self.run_id)
                return
        raise EpochFailed(f"{self.query.name} planned no epoch: {self._stream.exception()}")

    @property
    def run_id(self) -> str:
        """``StreamingQuery.runId``."""
        return str(self._stream.runId) if self._stream is not None else ""

    @property
    def is_parked(self) -> bool:
        """Whether the query waits for its first epoch."""
        active = self._stream is not None and self._stream.isActive
        return active and bool(self.offsets) and not self._decided.is_set()

    def connect(self) -> None:
        """Connect the consumers and the producers, or keep them connected. A takeover works without them."""
        try:
            if self.is_parked:
                connect_live(self._spark, self.run_id)
                self.writer.connect(self._job, self.query.name)
        except Exception as failure:  # the checks of the standby report that Kafka is away
            _log.info("%s is parked, and not connected: %s", self.query.name, failure)

    def hand_over(self, first_epoch: int, running: Running) -> tuple[contextlib.ExitStack, StreamingQuery]:
        """Let the first epoch begin, as this one of `running`; returns what ends the query, and the query."""
        assert self._stream is not None
        self._first_epoch, self._running = first_epoch, running
        self._decided.set()
        return self._ending, self._stream

    def close(self) -> None:
        """End the query, unless it was handed over."""
        if self._running is not None:
            return
        self._decided.set()
        if self._stream is not None:
            stop_in_epoch(self._stream, self._stopped)
        self._ending.close()
        self.writer.close()

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """Wait for the promotion, then begin the first epoch; begin the later ones at once."""
        if not self._planned.is_set():
            shared_reader(self._kafka, log_topic(self._job))  # of this thread, which later checks the lanes' owner
            self._planned.set()
            self._decided.wait()
        if self._running is None:
            self._stopped.wait(_TIMEOUT_S)
            raise EpochEnded(INTERRUPTED)
        plan = self._running.begin(self._first_epoch + epoch, partitions)
        return msgspec.structs.replace(plan, ahead=self._first_epoch)

    def commit(self, epoch: int, rows: EpochRows) -> None:
        """Commit an epoch of the query that took over."""
        assert self._running is not None
        self._running.commit(self._first_epoch + epoch, rows)

    def abort(self, epoch: int) -> None:
        """End a failed epoch of the query that took over."""
        if self._running is not None:
            self._running.abort(self._first_epoch + epoch)

    def reach(self, point: str, task: int) -> None:
        """Trigger the injected faults of the query that took over, in tests."""
        if self._running is not None:
            self._running.reach(point, task)


class Parking:
    """The parked queries of a standby.

    Args:
        job: The job's name.
        kafka: The Kafka cluster.
        emit: Receives the event ``not-rehearsed`` for a query that cannot be parked, once.
    """

    def __init__(self, job: str, kafka: KafkaSettings, emit: Emit) -> None:
        self._job = job
        self._kafka = kafka
        self._emit = emit
        self._numbers = itertools.count()
        self._parked: dict[str, Parked] = {}
        self._reported: set[str] = set()

    def refresh(
        self, queries: Iterable[Query], state: ControlState, scratch: Path, interrupted: Callable[[], bool]
    ) -> None:
        """Park the queries that are not parked, or without partitions of their newest epoch.

        Args:
            queries: Those that run live.
            state: The control partition of the job's log. A query without an epoch is not parked.
            scratch: A directory that is removed with the session.
            interrupted: Returns whether to stop early.
        """
        for query in queries:
            plan, parked = state.plan(query.name, state.newest_plan(query.name)), self._parked.get(query.name)
            if plan is None or interrupted():
                continue
            if parked is not None:
                if parked.is_parked and partitions_of(progress_of(plan.offsets)) <= partitions_of(parked.offsets):
                    continue
                parked.close()
            folder = scratch / f"parked-{query.name}-{next(self._numbers)}"
            self._parked[query.name] = parked = Parked(query, self._job, self._kafka, folder)
            try:
                parked.start(interrupted)
                parked.connect()
                _log.info("%s is parked before its first epoch", query.name)
            except Exception as failure:  # a later call tries again
                parked.close()
                if not interrupted() and query.name not in self._reported:
                    self._reported.add(query.name)
                    self._emit(NotRehearsed(f"{query.name} is not parked: {failure}"))

    def connect(self) -> None:
        """Keep the parked queries connected. Any thread may call this."""
        for parked in list(self._parked.values()):
            parked.connect()

    def open(self) -> None:
        """Initialise the producers of the parked queries in the background, once the job is claimed."""
        for parked in self._parked.values():
            if parked.is_parked:
                parked.writer.open()

    def parked(self, query: str) -> Parked | None:
        """Return the query if it waits for its first epoch."""
        parked = self._parked.get(query)
        return parked if parked is not None and parked.is_parked else None

    def close(self) -> None:
        """End the queries that were not handed over."""
        for parked in self._parked.values():
            parked.close()
