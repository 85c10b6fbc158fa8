"""One started query: it runs Spark's streaming query with an `EpochRunner`, stops it, and converts its error."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from clonos.carried_errors import CarriedError
from clonos.causal.logical_plan import logical_plan
from clonos.causal.shape import runs_without_input
from clonos.driver.epochs import EpochRunner, NotStarted
from clonos.driver.repeatable import streaming_scans
from clonos.driver.restart_budget import UncomputableValue, WrongColumnType, classify
from clonos.errors import ClonosError
from clonos.extend.source import Progress
from clonos.jobs.context import Query
from clonos.jobs.definition import Job
from clonos.spark.lane_sink import FORMAT, EpochRows, EpochWriter, TaskPlan, writing
from clonos.spark.live import LiveWriter, run_live
from clonos.spark.source_streams import deleted_topics, first_bound, live_tasks, set_bound, stop_waiting
from clonos.spark.user_session import promised_settings

_log = logging.getLogger("clonos")
# Spark treats this text as an interruption, so that a query that is being stopped logs no failure.
INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling the epoch: java.lang.InterruptedException"
_INITIALIZING = "Initializing"  # Spark's message until a query asks its sources
_PARKED_S = 30.0
_SETTLE_S = 5.0
_SETTLE_POLL_S = 0.01
_MESSAGE_CHARACTERS = 500


def _typed(failure: BaseException) -> ClonosError:
    """Return the typed error, with `failure` as its cause."""
    error = classify(failure)
    if error is not failure:
        error.__cause__ = failure
    return error


def _arrow_columns(frame: DataFrame, kind: str) -> list[str]:
    """Return the columns of this type that operators of a query return as Arrow data, with the operator.

    Args:
        frame: The query.
        kind: The type, as in the names of the methods of Spark's ``ArrowColumnVector``, such as ``Int``.
    """
    typed = {"Int": "integer", "UTF8String": "string"}.get(kind, kind.lower())
    return [
        f"{field['name']} ({typed}) of {function}"
        for node in logical_plan(frame).all()
        if "InArrow" in node.kind
        for function, result in node.results()
        for field in result.get("fields", ())
        if str(field["type"]).startswith(typed)
    ]


def partitions_of(progress: Progress) -> set[tuple[str, int]]:
    """Return the partitions in a progress: topic, number."""
    return {(topic, partition) for topic, partitions in progress.items() for partition in partitions}


def stream_writer(
    query: Query, writer: EpochWriter, job: str, location: str, options: Mapping[str, str]
) -> DataStreamWriter:
    """Return Spark's writer of a query; it has a trigger if the query runs live.

    Args:
        query: The query.
        writer: Brings the epochs to the sink.
        job: The job's name, for the query's name in Spark; empty: it has none, as several of a rehearsal may run.
        location: Location of the checkpoint.
        options: Those of `writing`.
    """
    stream = writer.frame(query.frame).writeStream.outputMode(query.sink.output_mode)
    if job:
        stream = stream.queryName(f"{job}.{query.name}")
    stream = stream.option("checkpointLocation", location).format(FORMAT).options(**options)
    return run_live(query.frame.sparkSession, stream) if isinstance(writer, LiveWriter) else stream


def stop_in_epoch(stream: StreamingQuery, stopped: threading.Event) -> None:
    """Stop a query whose epoch waits for `stopped`: Spark would log an epoch that raises earlier as a failure."""

    def release() -> None:
        with contextlib.suppress(Exception):
            while stream.isActive:
                time.sleep(_SETTLE_POLL_S)
        stopped.set()

    with contextlib.suppress(Exception):
        threading.Thread(target=release, daemon=True).start()
        stream.stop()


class Running:
    """One query of a job that runs as a Spark streaming query.

    Args:
        query: The query's frame and sink.
        location: Location of the query's checkpoint.
        runner: Runs the query's epochs.
        settings: Spark settings for this query only.
        writer: Brings the epochs to the sink.
        finished_topics: Deleted topics that the query has read to their end.
        begin_offsets: Source offsets at which the query starts.
    """

    def __init__(
        self,
        query: Query,
        location: str,
        runner: EpochRunner,
        settings: Mapping[str, str],
        writer: EpochWriter,
        finished_topics: Collection[str] = (),
        begin_offsets: Progress | None = None,
    ) -> None:
        # Lets a parked query continue as this one; returns what ends it, and Spark's query. None: there is none.
        self.hand_over: Callable[[Running], tuple[contextlib.ExitStack, StreamingQuery]] | None = None
        self._settings = settings
        self._finished_topics = finished_topics
        self._writer = writer
        self._writing = contextlib.ExitStack()
        self._wake = threading.Event()
        self.query = query
        self.location = location
        self.runner = runner
        self.begin_offsets = begin_offsets or {}
        self.stream: StreamingQuery | None = None
        self._parked = threading.Event()
        self._finished = False
        self._published = False
        self._ready = False

    def start(self, job: Job, wake: threading.Event) -> None:
        """Start the Spark query; `wake` is set when it has published its first epoch, and when an epoch fails."""
        self._wake = wake
        if self.hand_over is not None:
            self._writing, self.stream = self.hand_over(self)
            return
        spark = self.query.frame.sparkSession
        options = writing(spark, self, job=job.spec.name, topic=self._writer.topic, checks=self._writer.checks)
        try:
            writer = stream_writer(
                self.query, self._writer, job.spec.name, self.location, self._writing.enter_context(options)
            )
            if job.spec.spec.trigger.available_now:
                writer = writer.trigger(availableNow=True)
            elif self.query.interval_ms:
                writer = writer.trigger(processingTime=f"{self.query.interval_ms} milliseconds")
            self.runner.on_bound = self._set_bound
            with (
                promised_settings(spark, self._settings),
                first_bound(spark, self.runner.bound),
                deleted_topics(spark, self._finished_topics),
                live_tasks(spark, self.runner.count_tasks()),
            ):
                self.stream = writer.start()
            # A wait at the broker would delay records of another source, or the next epoch of a slow trigger.
            if self.query.interval_ms or len(streaming_scans(self.query.frame)) > 1:
                self._stop_waiting(self.stream)
        except ClonosError:
            raise
        except Exception as failure:
            raise classify(failure) from failure

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """`EpochRunner.begin`, for Spark's thread."""
        with self._ending():
            return self.runner.begin(epoch, partitions)

    def commit(self, epoch: int, rows: EpochRows) -> None:
        """`EpochRunner.commit`, for Spark's thread."""
        with self._ending():
            self.runner.commit(epoch, rows)

    def abort(self, epoch: int) -> None:
        """`EpochRunner.abort`, for Spark's thread."""
        self.runner.abort(epoch)
        self._wake.set()

    def reach(self, point: str, task: int) -> None:
        """`EpochRunner.reach`, for the threads of tasks."""
        self.runner.reach(point, task)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Convert the failure of an epoch to the short text that Spark receives."""
        try:
            yield
            if self.runner.published and not self._published:
                self._published = True
                self._wake.set()
        except BaseException as failure:
            self._wake.set()
            if self.runner.stopping:
                self._await_stop()
            elif not isinstance(failure, ClonosError | Py4JError):
                _log.error("an epoch failed unexpectedly", exc_info=failure)
            raise EpochEnded(_for_spark(failure, stopping=self.runner.stopping)) from None

    def finish_if_idle(self) -> None:
        """Stop the query if its input is bounded and completely processed; otherwise do nothing.

        Without this, Spark would run further epochs for the timers of stateful processors.
        """
        if self.done or not self.runner.idle or self._failed() or not runs_without_input(self.query.frame):
            return
        self.stop_gracefully()
        self._finished = not self._failed()  # the next epoch may have started in the meantime

    def finish_after_last(self) -> None:
        """Stop the query if it has finished the last epoch that it may run; otherwise do nothing."""
        if self.done or self.runner.last_epoch is None or not self.runner.stopping or self._failed():
            return
        self.stop_gracefully()
        self._finished = not self._failed()

    def _failed(self) -> bool:
        return self.runner.failure is not None and not isinstance(self.runner.failure, NotStarted)

    def becomes_ready(self) -> bool:
        """Whether the query has loaded its state and asks its sources for input; True once for each start."""
        if self._ready or self.stream is None or not self.stream.isActive:
            return False
        self._ready = not str(self.stream.status["message"]).startswith(_INITIALIZING)
        return self._ready

    @property
    def is_ready(self) -> bool:
        """Whether `becomes_ready` has returned True, or the query has ended."""
        return self._ready or self.done

    @property
    def done(self) -> bool:
        """Whether the query has finished, was stopped or failed."""
        return self._finished or (self.stream is not None and not self.stream.isActive)

    def raise_failure(self) -> None:
        """Raise the typed error if the query failed; otherwise do nothing."""
        if self._finished:
            return
        if self.runner.failure is not None:
            raise self._typed(self.runner.failure)
        if self.stream is not None and not self.stream.isActive:
            failure = self.stream.exception()
            if self.runner.failure is not None:
                raise self._typed(self.runner.failure)
            if failure is not None:
                raise self.runner.explain(self._typed(failure))

    def _typed(self, failure: BaseException) -> ClonosError:
        """Return the typed error of the query's failure, with what only its plans show."""
        error = _typed(failure)
        if isinstance(error, WrongColumnType) and (columns := _arrow_columns(self.query.frame, error.type)):
            error.what = f"{error.what} Columns of this type: {', '.join(columns)}."
        if isinstance(error, UncomputableValue) and self.runner.reads:
            error.what = f"{error.what} Epoch {self.runner.reads}."
        return error

    def stop(self) -> None:
        """Stop the query at once. An epoch in progress is in doubt: the next start replays it."""
        self._stop(0.0)

    def stop_gracefully(self, timeout_s: float | None = None) -> bool:
        """Stop the query after the epoch in progress is finished and committed.

        Args:
            timeout_s: Seconds to wait for the epoch; None: as long as it takes. Then the query stops anyway.

        Returns:
            Whether no epoch was interrupted.
        """
        return self._stop(timeout_s)

    def _stop(self, timeout_s: float | None) -> bool:
        try:
            return self._stop_stream(timeout_s)
        finally:
            self._writing.close()
            self._writer.close()

    def _stop_stream(self, timeout_s: float | None) -> bool:
        if self.stream is None or not self.stream.isActive:
            return True
        # Spark interrupts the epoch in progress. That is safe (the epoch would be replayed), but costs a replay.
        self.runner.stopping = True
        self.runner.cut()
        finished = timeout_s != 0.0 and self.runner.busy.acquire(timeout=-1 if timeout_s is None else timeout_s)
        if finished:
            self.runner.busy.release()
            self._stop_waiting(self.stream)
            self._settle(self.stream)
        with contextlib.suppress(Exception):  # the query may fail at the same moment: it stops either way
            self.stream.stop()
        return finished

    def _set_bound(self, records: int) -> None:
        if self.stream is not None:
            set_bound(self.query.frame.sparkSession, str(self.stream.runId), records)

    def _stop_waiting(self, stream: StreamingQuery) -> None:
        stop_waiting(self.query.frame.sparkSession, str(stream.runId))

    def _settle(self, stream: StreamingQuery) -> None:
        """Wait until Spark has committed the epoch: then it waits for input, or starts the next epoch."""
        deadline = time.monotonic() + _SETTLE_S
        while not self._parked.wait(_SETTLE_POLL_S) and time.monotonic() < deadline:
            if not stream.isActive or not stream.status["isTriggerActive"]:
                return

    def _await_stop(self) -> None:
        """Block Spark's thread in an epoch that must not start, so that the stop interrupts nothing else."""
        self._parked.set()
        deadline = time.monotonic() + _PARKED_S
        while self.stream is not None and self.stream.isActive and time.monotonic() < deadline:
            time.sleep(_SETTLE_POLL_S)


class EpochEnded(Exception):
    """The error that Spark receives for a failed epoch, with a short text. `EpochRunner.failure` is the real error."""


def _not_logged_yet(record: logging.LogRecord) -> bool:
    """Filter for Py4J's log of exceptions on their way to the JVM: an `EpochEnded` was already reported, and a
    `CarriedError` will be.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], EpochEnded | CarriedError))


logging.getLogger("py4j.clientserver").addFilter(_not_logged_yet)


def _for_spark(failure: BaseException, *, stopping: bool) -> str:
    """Return a short text, because Spark matches it with a pattern that overflows its stack on long ones.

    While a query is being stopped, the text is `INTERRUPTED`.
    """
    if stopping:
        return INTERRUPTED
    lines = str(failure).splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0][:_MESSAGE_CHARACTERS]}"
