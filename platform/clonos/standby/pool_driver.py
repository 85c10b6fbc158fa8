"""A pool driver: a warm driver process without a job, for recoveries, standbys and jobs with ``standby: {mode: pool}``.

A pool driver has a JVM and a session with Python workers, and has run a stateful query over generated rows. It has not
rehearsed a job's own queries, as a standby has. In return it can become the driver or a standby of any job.

1. Its agent starts it with a directory of its own. Once warm, it opens a mailbox there (`clonos.standby.mailbox`).
2. The agent sends a `LaunchRequest`. It can open the pipe for writing only while the pool driver reads it.
3. The pool driver adopts the environment, directory and log of the run, and continues as ``clonos run``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from clonos.embedded.reachable import reachable_kafka
from clonos.errors import ClonosError, EnvironmentFault
from clonos.faults import DRIVER_GROUP
from clonos.jobs.loading import job_file
from clonos.jobs.spec import Spec, read_spec
from clonos.settings import Settings
from clonos.spark.lane_sink import FORMAT, EpochRows, TaskPlan, writing
from clonos.spark.session import Session, build_session
from clonos.spark.user_session import configure_workers
from clonos.standby.launch_request import LOG, MAILBOX, LaunchRequest
from clonos.standby.mailbox import Mailbox
from clonos.telemetry import logs, openlineage, tracing
from clonos.telemetry.events import HEARTBEAT_S

_WARM_UP_QUERIES: Final = 3
_POLL_S: Final = 0.5
_COPY_POLL_S: Final = 0.2
_TRUNCATE_BYTES: Final = 1 << 20


class PoolDriver:
    """This process as a pool driver.

    Args:
        folder: Directory of the pool driver.
        agent: Process id of the agent; the pool driver exits when the agent does.
    """

    def __init__(self, folder: Path, agent: int) -> None:
        self._folder = folder
        self._modules = folder / "modules"
        self._agent = agent

    @contextlib.contextmanager
    def warm(self) -> Iterator[Session]:
        """Provide a Spark session, inside the context, in which every step that needs no job has run once."""
        settings = Settings()
        logs.configure_logs(settings.log_format, settings.log_level)
        # On the path of Python workers; empty until there is a job, whose modules are linked into it.
        self._modules.mkdir(exist_ok=True)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(self._modules), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        )
        os.environ[DRIVER_GROUP] = str(os.getpgrp())
        with build_session("clonos", settings=settings, heap_mb=Spec().driver.memory_mb) as session:
            # If Kafka is unavailable, the driver configures the workers later.
            with contextlib.suppress(ClonosError):
                configure_workers(session.spark, reachable_kafka(settings))
            session.spark.sparkContext.environment.update(logs.environment())
            _run_warm_up_queries(session, self._agent)
            if settings.traces.endpoint:
                tracing.load()
            if settings.lineage.url:
                openlineage.load()
            yield session

    def wait(self, session: Session) -> LaunchRequest | None:
        """Wait until the agent assigns a run; None if the agent or the JVM exited."""
        mailbox = Mailbox(self._folder / MAILBOX)
        try:
            while not (message := mailbox.receive(_POLL_S)):
                if os.getppid() != self._agent or not session.gateway.running:
                    return None
            return LaunchRequest.model_validate_json(message)
        finally:
            mailbox.close()

    def adopt_run(self, request: LaunchRequest) -> None:
        """Turn this process into the driver of the requested run: set its environment, directory, output and
        modules.
        """
        os.environ.update(request.environment)
        os.chdir(request.directory)
        copied_bytes = (self._folder / LOG).stat().st_size
        with request.log.open("ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        threading.Thread(target=_copy_log, args=(self._folder / LOG, copied_bytes, request.log), daemon=True).start()
        threading.Thread(target=_touch_until_first_event, args=(request.events,), daemon=True).start()
        _link_modules(job_file(request.spec, read_spec(request.spec)).parent, self._modules)


def _link_modules(directory: Path, modules: Path) -> None:
    """Let Python workers import the modules beside the job file."""
    for module in directory.iterdir():
        (modules / module.name).symlink_to(module)


def _touch_until_first_event(events: Path) -> None:
    """Show the agent that this process works: the import of a job may take minutes, and emits no event."""
    with contextlib.suppress(OSError):
        size = events.stat().st_size
        while events.stat().st_size == size:
            os.utime(events)
            time.sleep(HEARTBEAT_S)


def _copy_log(source: Path, start: int, target: Path) -> None:
    """Copy the JVM's output to the job's log, from byte `start` on, for the lifetime of the process.

    The JVM keeps writing to the file that it was started with. That file is truncated after each `_TRUNCATE_BYTES`;
    lines written at that moment are lost.
    """
    with source.open("r+b", buffering=0) as reader, target.open("ab", buffering=0) as writer:
        reader.seek(start)
        while True:
            if chunk := reader.read(1 << 16):
                with contextlib.suppress(OSError):  # the disk is full
                    writer.write(chunk)
            elif reader.tell() > _TRUNCATE_BYTES:  # codespell:ignore tell
                reader.truncate(0)
                reader.seek(0)
            else:
                time.sleep(_COPY_POLL_S)


def _run_warm_up_queries(session: Session, agent: int) -> None:
    """Run a stateful query with Python workers `_WARM_UP_QUERIES` times, each on a new checkpoint and for one epoch."""
    spark = session.spark
    for number in range(_WARM_UP_QUERIES):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 8).load()
        counted = (
            rows.mapInArrow(_pass_through, rows.schema)
            .groupBy((F.col("value") % 4).alias("key"))
            .agg(F.count("*").alias("count"))
        )
        folder = session.scratch / f"warm-up-{number}"
        done = threading.Event()
        rows = counted.mapInArrow(_pass_through, counted.schema).select(F.to_json(F.struct("*")).alias("value"))
        with writing(spark, _WarmUp(done), job="warm-up", topic="", checks=None) as options:
            started = rows.writeStream.outputMode("update").option("checkpointLocation", f"file://{folder}")
            query = started.format(FORMAT).options(**options).start()
            try:
                _await_epoch(query, done, agent)
            finally:
                query.stop()
                shutil.rmtree(folder, ignore_errors=True)


def _await_epoch(query: StreamingQuery, done: threading.Event, agent: int) -> None:
    """Wait until the query's epoch is `done`. On a busy machine that takes minutes; the agent has the limit.

    Raises:
        EnvironmentFault: The query ended before, or the process `agent` is no longer the parent.
    """
    while not done.wait(_POLL_S):
        if os.getppid() != agent:
            raise EnvironmentFault("The agent exited during the warm-up of its pool driver.")
        if not query.isActive:
            raise EnvironmentFault(f"A query over generated rows did not run: {query.exception()}.")


class _WarmUp:
    """Takes the rows of a warm-up query's epochs, and publishes nothing."""

    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def begin(self, _epoch: int, partitions: int) -> TaskPlan:
        """Let the tasks send their rows."""
        return TaskPlan.of_all("SEND", partitions)

    def commit(self, _epoch: int, _rows: EpochRows) -> None:
        """Note that an epoch has run."""
        self._done.set()

    def abort(self, epoch: int) -> None:
        """Do nothing: the query is stopped, or fails."""

    def reach(self, point: str, task: int) -> None:
        """Do nothing: no task publishes."""


def _pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
