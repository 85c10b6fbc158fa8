"""One started query: Spark's stream around an `EpochRunner`, how it ends, and what Spark is told of a failure."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from clonos.causal.shape import never_rests
from clonos.engine.attached import promised_settings
from clonos.engine.epochs import EpochRunner, NotStarted
from clonos.errors import ClonosError
from clonos.job import Job, Query
from clonos.runner.recovery import classify

_log = logging.getLogger("clonos")
# What Spark takes for an interruption, so that a query that is being stopped ends quietly.
INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling the epoch: java.lang.InterruptedException"
_STOP_S = 30.0
_SETTLE_S = 5.0
_SETTLE_POLL_S = 0.01
_TOLD = 500  # characters


def _typed(failure: BaseException) -> ClonosError:
    """The typed error, which knows what was raised."""
    error = classify(failure)
    if error is not failure:
        error.__cause__ = failure
    return error


class Running:
    """One started query.

    Args:
        query: What it publishes, and to which sink.
        location: Its checkpoint.
        runner: Runs its epochs.
        settings: Spark settings of this query alone.
    """

    def __init__(self, query: Query, location: str, runner: EpochRunner, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.query = query
        self.location = location
        self.runner = runner
        self.stream: StreamingQuery | None = None
        self._parked = threading.Event()
        self._finished = False

    def start(self, job: Job, wake: threading.Event) -> None:
        """Start it; `wake` is set when an epoch fails.

        Raises:
            ClonosError: Spark refuses to start it.
        """
        runner = self.runner

        def on_epoch(frame: Any, epoch: int) -> None:
            try:
                runner(frame, epoch)
            except BaseException as failure:
                wake.set()
                if runner.stopping:
                    self._await_stop()
                elif not isinstance(failure, ClonosError | Py4JError):
                    _log.error("an epoch failed unexpectedly", exc_info=failure)
                raise EpochEnded(_for_spark(failure, stopping=runner.stopping)) from None

        writer = (
            self.query.frame.writeStream.queryName(f"{job.spec.name}.{self.query.name}")
            .outputMode(self.query.sink.output_mode)
            .option("checkpointLocation", self.location)
            .foreachBatch(on_epoch)
        )
        trigger = job.spec.spec.trigger
        if trigger.available_now:
            writer = writer.trigger(availableNow=True)
        elif trigger.interval_ms:
            writer = writer.trigger(processingTime=f"{trigger.interval_ms} milliseconds")
        try:
            with promised_settings(self.query.frame.sparkSession, self._settings):
                self.stream = writer.start()
        except Exception as failure:
            raise classify(failure) from failure

    def finish_if_idle(self) -> None:
        """End a query that has worked through its input, if Spark would go on for the sake of timers."""
        if self.done or not self.runner.idle or self._failed() or not never_rests(self.query.frame):
            return
        self.end(gracefully=True)
        self._finished = not self._failed()  # the next epoch may have begun meanwhile

    def _failed(self) -> bool:
        return self.runner.failure is not None and not isinstance(self.runner.failure, NotStarted)

    @property
    def done(self) -> bool:
        """Whether it ended, in whatever way."""
        return self._finished or (self.stream is not None and not self.stream.isActive)

    def raise_failure(self) -> None:
        """Raise the typed error of a query that failed."""
        if self._finished:
            return
        if self.runner.failure is not None:
            raise _typed(self.runner.failure)
        if self.stream is not None and not self.stream.isActive:
            failure = self.stream.exception()
            if self.runner.failure is not None:
                raise _typed(self.runner.failure)
            if failure is not None:
                raise _typed(failure)

    def end(self, *, gracefully: bool = False) -> None:
        """Stop it; `gracefully`: once the epoch that runs is finished and committed."""
        if self.stream is None or not self.stream.isActive:
            return
        # Spark interrupts whatever runs. That is safe (the epoch would be replayed), but costs a replay.
        self.runner.stopping = True
        if gracefully and self.runner.busy.acquire(timeout=_STOP_S):
            self.runner.busy.release()
            self._settle(self.stream)
        with contextlib.suppress(Exception):  # it may fail on its own meanwhile: it ends either way
            self.stream.stop()

    def _settle(self, stream: StreamingQuery) -> None:
        """Wait until Spark has committed the epoch: it waits for input, or came back with the next epoch."""
        deadline = time.monotonic() + _SETTLE_S
        while not self._parked.wait(_SETTLE_POLL_S) and time.monotonic() < deadline:
            if not stream.isActive or not stream.status["isTriggerActive"]:
                return

    def _await_stop(self) -> None:
        """Hold Spark's thread in an epoch that is not to start, so that the stop interrupts nothing else."""
        self._parked.set()
        deadline = time.monotonic() + _STOP_S
        while self.stream is not None and self.stream.isActive and time.monotonic() < deadline:
            time.sleep(_SETTLE_POLL_S)


class EpochEnded(Exception):
    """What Spark gets to know of a failed epoch: that it ended. `EpochRunner.failure` has the whole story."""


def _is_news(record: logging.LogRecord) -> bool:
    """Py4j tells of every exception on its way to the JVM; ours was told already."""
    return not (record.exc_info and isinstance(record.exc_info[1], EpochEnded))


logging.getLogger("py4j.clientserver").addFilter(_is_news)


def _for_spark(failure: BaseException, *, stopping: bool) -> str:
    """A short text: Spark looks through it with a pattern that overflows its stack on long ones.

    While a query is being stopped it is `INTERRUPTED`.
    """
    if stopping:
        return INTERRUPTED
    lines = str(failure).splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0][:_TOLD]}"
