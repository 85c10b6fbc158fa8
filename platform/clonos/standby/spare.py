"""A spare: a warm driver without a job, for whichever falls to its host (``standby: {mode: pool}``).

It has a JVM, a session with Python workers, and has run a stateful query over made-up rows. What only a job can warm
up, a dedicated standby has done and a spare has not; in return one serves any number of jobs.

1. Its agent starts it with a folder of its own. Once it is warm it makes a named pipe there and reads it.
2. The agent writes one line into the pipe: a `Given`. Whoever can open it for writing knows that somebody reads.
3. The spare takes on the environment, folder and log of the job's run, and goes on as ``clonos run``.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clonos import lineage, logs, tracing
from clonos.embedded.reachable import reachable_kafka
from clonos.engine.attached import tell_workers
from clonos.engine.session import Session, build_session
from clonos.errors import ClonosError, EnvironmentFault
from clonos.faults import DRIVER_GROUP
from clonos.settings import Settings
from clonos.spec import Spec
from clonos.standby.offers import LOG, PIPE, Given

_RUNS: Final = 3
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.5
_COPY_S: Final = 0.2
_CUT_BYTES: Final = 1 << 20


class Spare:
    """The spare's end.

    Args:
        folder: Its own.
        agent: Process id of its agent, with which it ends.
    """

    def __init__(self, folder: Path, agent: int) -> None:
        self._folder = folder
        self._modules = folder / "modules"
        self._agent = agent

    @contextlib.contextmanager
    def warm(self) -> Iterator[Session]:
        """A session with which everything was done once that needs no job."""
        settings = Settings()
        logs.configure_logs(settings.log_format, settings.log_level)
        # Python workers have it on their path; empty until there is a job, whose modules are linked into it.
        self._modules.mkdir(exist_ok=True)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(self._modules), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        )
        os.environ[DRIVER_GROUP] = str(os.getpgrp())
        with build_session("clonos", settings=settings, heap_mb=Spec().driver_memory_mb) as session:
            with contextlib.suppress(ClonosError):  # there is no Kafka yet; the driver tells them then
                tell_workers(session.spark, reachable_kafka(settings))
            session.spark.sparkContext.environment.update(logs.environment())
            _exercise(session)
            if settings.traces.endpoint:
                tracing.load()
            if settings.lineage.url:
                lineage.load()
            yield session

    def wait(self, session: Session) -> Given | None:
        """What it is to do; None: its agent is gone, or its JVM."""
        pipe = self._folder / PIPE
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # For writing too, so that it does not end whenever the agent only looked.
        fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            while not select.select([fd], [], [], _LOOK_S)[0]:
                if os.getppid() != self._agent or not session.gateway.running:
                    return None
            return Given.model_validate_json(os.read(fd, select.PIPE_BUF))
        finally:
            pipe.unlink(missing_ok=True)
            os.close(fd)

    def become(self, given: Given) -> None:
        """Be a driver of this run from now on, for whoever looks at the process."""
        os.environ.update(given.environment)
        os.chdir(given.directory)
        seen = (self._folder / LOG).stat().st_size
        with given.log.open("ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        threading.Thread(target=_copy, args=(self._folder / LOG, seen, given.log), daemon=True).start()
        _link_modules(Path(given.arguments[1]).parent / "code", self._modules)


def _link_modules(code: Path, modules: Path) -> None:
    """Let Python workers import what is in the job's folder."""
    for one in code.iterdir():
        (modules / one.name).symlink_to(one)


def _copy(source: Path, seen: int, target: Path) -> None:
    """What the JVM writes goes where it wrote when it was started; users look for it in their job's log.

    That file is cut whenever so much was copied; what is written in the moment of the cut is lost.
    """
    with source.open("r+b", buffering=0) as read, target.open("ab", buffering=0) as written:
        read.seek(seen)
        while True:
            if piece := read.read(1 << 16):
                with contextlib.suppress(OSError):  # the disk is full
                    written.write(piece)
            elif read.tell() > _CUT_BYTES:
                read.truncate(0)
                read.seek(0)
            else:
                time.sleep(_COPY_S)


def _exercise(session: Session) -> None:
    """Have a stateful query with Python workers run, stopped in the middle as a driver that dies would be."""
    spark = session.spark
    for number in range(_RUNS):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 8).load()
        counted = (
            rows.mapInArrow(_same, rows.schema)
            .groupBy((F.col("value") % 4).alias("key"))
            .agg(F.count("*").alias("count"))
        )
        folder = session.scratch / f"exercise-{number}"
        done = threading.Event()
        query = (
            counted.writeStream.outputMode("update")
            .option("checkpointLocation", f"file://{folder}")
            .foreachBatch(partial(_use, done))
            .start()
        )
        try:
            if not done.wait(_PATIENCE_S):
                raise EnvironmentFault(f"A query over made-up rows did not run: {query.exception()}.")
        finally:
            query.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _use(done: threading.Event, frame: DataFrame, _number: int) -> None:
    frame.mapInArrow(_same, frame.schema).collect()
    done.set()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
