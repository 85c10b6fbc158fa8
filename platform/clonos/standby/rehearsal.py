"""Rehearsals: trial runs of a job's queries on no rows, which load classes and generate code before a takeover.

If a query has committed an epoch, the scratch checkpoint is a copy of the job's own (`clonos.standby.scratch`).
Otherwise:

1. Spark starts the query on an empty directory. It is stopped once it has planned the first epoch: the directory then
   holds the offsets of the sources, in Spark's own format.
2. The planned epoch is narrowed: to nothing, or to the newest record of each partition if the query filters it out.
3. Spark starts the query again, as a takeover does, and replays the epoch. Planning, shuffles, state, Python workers
   and the path to the sink are used. No row passes the filter, nothing is published and the sink is not called.

The tasks run the same plan as in an epoch, with the sink's own writer (`EpochWriter.rehearse`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from clonos.causal.epoch_scope import PROPERTY, EpochScope, encode_scope
from clonos.causal.shape import has_rows_without_input
from clonos.driver.planned import read_plan
from clonos.driver.running import INTERRUPTED, EpochEnded, partitions_of, stop_in_epoch, stream_writer
from clonos.driver.sink_writers import writer_of
from clonos.extend.sink import SinkEpoch, SinkLane
from clonos.extend.source import Progress
from clonos.jobs.context import Query
from clonos.log.records import EpochIdentity, Owner
from clonos.log.topic import log_topic
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.spark.internals import analyzed_plan, executed_plan, jvm_of, running_query
from clonos.spark.lane_sink import EpochRows, EpochWriter, TaskPlan, writing
from clonos.spark.live import LiveSink, LiveWriter
from clonos.spark.source_streams import LiveTasks, first_offsets, move_live
from clonos.standby.scratch import CheckpointContent, link_checkpoint

_log = logging.getLogger("clonos")
_NO_OWNER: Final = Owner(0, 0, "rehearsal")
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.01
_LIVE_S: Final = 0.5  # a live epoch reads for this time
_NEXT_S: Final = 0.5  # in this time a committed epoch is followed by the next one, if there is input


class NotRehearsed(Exception):
    """A query could not be rehearsed. A takeover still works, but takes longer."""


class Rehearsal:
    """Runs the queries of a job on no rows, on a scratch checkpoint.

    Args:
        spark: The session in which the queries are defined.
        kafka: The Kafka cluster.
        job: The job's name.
        scratch: A directory that is removed with the session.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, job: str, scratch: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._job = job
        self._scratch = scratch
        self._numbers = itertools.count()
        # Query → shortest duration of its replays of an epoch, from the start of the query to the end of the epoch.
        # Later ones wait for the cores that the driver uses, and a takeover does not.
        self.seconds: dict[str, float] = {}

    def run(
        self,
        query: Query,
        *,
        newest: bool,
        times: int,
        interrupted: Callable[[], bool],
        checkpoint: Path | None = None,
    ) -> CheckpointContent:
        """Rehearse one query `times` times.

        Args:
            query: The query.
            newest: Read the newest record of each partition; the query's sources must filter it out. Otherwise
                nothing is read, and a query without a shuffle has no tasks.
            times: Number of runs.
            interrupted: Returns whether to stop early.
            checkpoint: The query's checkpoint, or its mirror, as a path of this host. With `newest`, a copy of it is
                rehearsed if possible.

        Returns:
            The part of the job's checkpoint that the rehearsal read; `checkpoint_content` describes the values.

        Raises:
            NotRehearsed: The query could not be run.
        """
        if has_rows_without_input(query.frame):
            raise NotRehearsed(f"{query.name} produces a row without input, and its functions would receive that row")
        try:
            if newest and checkpoint is not None and may_read_state(query):
                content = self._run_on_copy(query, checkpoint, times, interrupted)
                if content != "nothing":
                    return content
            if not interrupted():
                with self._folder(query) as folder:
                    self._run_once(query, folder, None, interrupted)
                    if not interrupted():
                        narrow_epoch(folder, newest=newest)
                    self._replay(query, folder, times, interrupted)
        except OSError as error:
            raise NotRehearsed(f"{query.name}: {error}") from error
        return "nothing"

    def run_live(self, query: Query, interrupted: Callable[[], bool]) -> None:
        """Rehearse a query that runs live, once; its sources must filter the newest record of each partition out.

        No producer is opened.

        Raises:
            NotRehearsed: The query could not be run.
        """
        assert isinstance(query.sink, LiveSink)
        writer = query.sink.live_writer(self._spark, self._kafka)
        with self._folder(query) as folder:
            epoch = _FirstEpoch(lambda partitions: self._plan_live_epoch(query, writer, partitions))
            self._run_epoch(query, folder, epoch, writer, interrupted)

    def _plan_live_epoch(self, query: Query, writer: LiveWriter, partitions: int) -> TaskPlan:
        """Plan a live epoch, which ends soon."""
        identity = self._set_scope(query)
        run_id = str(running_query(self._spark).runId())
        begins, ends = OffsetClient(self._kafka).bounds(
            [TopicPartition(*partition) for partition in partitions_of(first_offsets(self._spark, run_id))]
        )
        newest: Progress = {}
        for (topic, partition), end in ends.items():
            newest.setdefault(topic, {})[partition] = max(begins[topic, partition], end - 1)
        move_live(self._spark, run_id, newest, LiveTasks())
        writer.run_id = run_id
        plan = writer.rehearse(SinkEpoch(identity, self._kafka, ()), partitions)
        cutting = threading.Timer(_LIVE_S, writer.cut)
        cutting.daemon = True
        cutting.start()
        return plan

    def evaluate_expressions(self, query: Query) -> int:
        """Evaluate the query's built-in expressions on sample values; no function of the user is called.

        A run on no rows initialises no class that only a row uses. Spark's `lower` and `upper`, for example, then take
        more than a second for their first row (the table of `CollationAwareUTF8String`).

        Returns:
            The number of evaluations without an error.

        Raises:
            NotRehearsed: Spark cannot list the expressions.
        """
        try:
            evaluated: int = jvm_of(self._spark).clonos.ExpressionRehearsal.run(analyzed_plan(query.frame))
        except Py4JJavaError as error:
            raise NotRehearsed(f"{query.name}: {error.java_exception}") from error
        return evaluated

    def _run_on_copy(
        self, query: Query, checkpoint: Path, times: int, interrupted: Callable[[], bool]
    ) -> CheckpointContent:
        """Rehearse on a copy of the job's own checkpoint, if possible."""
        try:
            with self._folder(query) as folder:
                content = link_checkpoint(checkpoint, folder)
                if content != "nothing":
                    self._replay(query, folder, times, interrupted)
                return content
        except NotRehearsed as error:
            _log.info("not rehearsed on the job's own checkpoint: %s", error)
            return "nothing"

    @contextlib.contextmanager
    def _folder(self, query: Query) -> Iterator[Path]:
        # A new name each time: Spark may still write to the previous directory.
        folder = self._scratch / f"rehearsal-{query.name}-{next(self._numbers)}"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _replay(self, query: Query, folder: Path, times: int, interrupted: Callable[[], bool]) -> None:
        for number in range(times):
            if not interrupted():
                # The last run also commits its epoch, and plans the next one: a takeover does both.
                began = time.monotonic()
                epoch = self._run_once(query, folder, number == times - 1, interrupted)
                if epoch.ended_at is not None:
                    took = round(epoch.ended_at - began, 3)
                    self.seconds[query.name] = min(took, self.seconds.get(query.name, took))

    def _run_once(
        self, query: Query, folder: Path, commits: bool | None, interrupted: Callable[[], bool]
    ) -> _FirstEpoch:
        """Start the query, run its first epoch and stop the query; stop earlier if `interrupted`.

        Args:
            query: The query.
            folder: Its scratch checkpoint.
            commits: Whether Spark commits the epoch, and plans the next one; None: the tasks of the epoch do not start.
            interrupted: Returns whether to stop early.
        """
        writer = writer_of(query.sink, self._spark, self._kafka)
        plan = (lambda partitions: self._plan_empty_epoch(query, writer, partitions)) if commits is not None else None
        epoch = _FirstEpoch(plan, commits=bool(commits))
        self._run_epoch(query, folder, epoch, writer, interrupted)
        return epoch

    def _run_epoch(
        self, query: Query, folder: Path, epoch: _FirstEpoch, writer: EpochWriter, interrupted: Callable[[], bool]
    ) -> None:
        try:
            with writing(self._spark, epoch, job=self._job, topic=writer.topic, checks=writer.checks) as options:
                started = stream_writer(query, writer, "", f"file://{folder}", options).start()
                _await_end(query, started, epoch, interrupted)
        finally:
            writer.close()
        if epoch.failure is not None and not interrupted():
            failure = epoch.failure
            raise NotRehearsed(f"{query.name}: {type(failure).__name__}: {failure}") from failure

    def _plan_empty_epoch(self, query: Query, writer: EpochWriter, partitions: int) -> TaskPlan:
        """Plan an epoch, and set the scope of a rehearsal for its tasks."""
        planned = read_plan(executed_plan(self._spark, running_query(self._spark)), partitions)
        planned = planned._replace(input_slices=writer.lanes(planned.input_slices))
        identity = self._set_scope(query)
        tasks = enumerate(zip(planned.lanes(), planned.input_slices, strict=True))
        lanes = [SinkLane(number, task, part, log_partition=number) for task, (number, part) in tasks]
        epoch = SinkEpoch(identity, self._kafka, tuple(sorted(lanes, key=lambda lane: lane.number)))
        return writer.rehearse(epoch, partitions)

    def _set_scope(self, query: Query) -> EpochIdentity:
        """Set the scope of a rehearsal for the tasks of an epoch."""
        identity = EpochIdentity(self._job, log_topic(self._job), query.name, 0, _NO_OWNER, replay=False)
        scope = EpochScope(identity, 0, 0, "0", (), {}, {}, {}, rehearsal=True)
        self._spark.sparkContext.setLocalProperty(PROPERTY, encode_scope(scope))
        return identity


def may_read_state(query: Query) -> bool:
    """Whether a rehearsal may read the query's state.

    False in complete mode, in which the user's functions would receive all of the state.
    """
    return query.sink.output_mode != "complete"


class _FirstEpoch:
    """The first epoch after one start of a rehearsed query. Unless it `commits`, the next start finds it in doubt.

    Args:
        plan: Plans the epoch, given its number of partitions; None: its tasks do not start.
        commits: Spark commits the epoch, and plans the next one, which has no tasks.

    Attributes:
        done: Set when the query can be stopped.
        ended_at: When the epoch had run, in seconds of the monotonic clock; None: not yet, or it has failed.
        committed_at: When Spark began to commit the epoch, in seconds of the monotonic clock; None: not yet.
        stopped: Set when the query is being stopped.
        failure: The exception of the epoch.
    """

    def __init__(self, plan: Callable[[int], TaskPlan] | None, *, commits: bool = False) -> None:
        self.done, self.stopped = threading.Event(), threading.Event()
        self.ended_at: float | None = None
        self.committed_at: float | None = None
        self.failure: BaseException | None = None
        self._plan = plan
        self._commits = commits

    def begin(self, _epoch: int, partitions: int) -> TaskPlan:
        """Plan the epoch. The epoch after a committed one ends here."""
        try:
            if self._plan is not None:
                plan = self._plan(partitions)  # also of the epoch that ends here, as in a takeover
                if self.committed_at is None:
                    return plan
        except BaseException as error:
            self.failure = error
        raise self._ended()

    def reach(self, point: str, task: int) -> None:
        """Do nothing at a point of the protocol that a task of a rehearsal reaches."""

    def commit(self, _epoch: int, _rows: EpochRows) -> None:
        """End the epoch, whose tasks have ended."""
        self._end_or_commit()

    def _end_or_commit(self) -> None:
        if self.failure is None and self.ended_at is None:
            self.ended_at = time.monotonic()
        if self._commits and self.failure is None and self.committed_at is None:
            self.committed_at = time.monotonic()
        else:
            raise self._ended()

    def abort(self, _epoch: int) -> None:
        """End the epoch, whose task failed."""
        if not self.done.is_set():
            self.failure = NotRehearsed("a task failed")
            self.done.set()

    def _ended(self) -> EpochEnded:
        """Return the error that ends the query, once it is being stopped."""
        self.done.set()
        self.stopped.wait(_TIMEOUT_S)
        return EpochEnded(INTERRUPTED)


def _await_end(query: Query, stream: Any, epoch: _FirstEpoch, interrupted: Callable[[], bool]) -> None:
    """Wait until the query has run `epoch`, then stop it."""
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while not epoch.done.wait(_POLL_S) and not interrupted():
            if epoch.committed_at is not None and time.monotonic() > epoch.committed_at + _NEXT_S:
                break  # there is nothing new to read
            if not stream.isActive and not epoch.done.is_set():
                raise NotRehearsed(f"{query.name}: {stream.exception()}")
            if time.monotonic() > deadline:
                raise NotRehearsed(f"{query.name} planned no epoch within {_TIMEOUT_S:g} s")
    finally:
        stop_in_epoch(stream, epoch.stopped)


def narrow_epoch(folder: Path, *, newest: bool) -> None:
    """Change the planned epoch in the scratch checkpoint `folder` so that it reads no records, or (`newest`) the
    newest record of each partition.
    """
    entry = folder / "offsets" / "0"
    version, metadata, *ends = entry.read_text().splitlines()
    for number, end in enumerate(ends):
        first = folder / "sources" / str(number) / "0"
        lines = first.read_text().splitlines() if first.is_file() else []
        if len(lines) != 2 or not (_is_json(lines[1]) and _is_json(end)):
            raise NotRehearsed(f"source {number} has no readable start offsets")
        if newest:
            first.write_text(f"{lines[0]}\n{_one_record_earlier(json.loads(lines[1]), json.loads(end))}")
            (first.parent / ".0.crc").unlink(missing_ok=True)
        else:
            ends[number] = lines[1]
    entry.write_text("\n".join([version, metadata, *ends]))
    (entry.parent / ".0.crc").unlink(missing_ok=True)


def _one_record_earlier(start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> str:
    """`end` minus one record for each partition, but not before `start`."""
    return json.dumps(
        {
            topic: {
                partition: max(start.get(topic, {}).get(partition, 0), offset - 1)
                for partition, offset in partitions.items()
            }
            for topic, partitions in end.items()
        },
        separators=(",", ":"),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
