"""Live epochs: tasks read all the time, and the output is published in steps (docs/protocol.md, "A live epoch").

A live epoch has a plan like any other, but no end until it is over. Each step's marker holds the next offset of each
source partition. So a restart computes nothing again: it ends the epoch at the greatest marker, and Spark begins the
next one there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.util import PythonEvalType

from clonos.causal.epoch_scope import PROPERTY, EpochScope, encode_scope
from clonos.causal.logical_plan import PlanNode, logical_plan, mentions
from clonos.deadline import Deadline
from clonos.driver.checkpoint import CheckpointDirectory, progress_of
from clonos.driver.epochs import Begun, EpochRunner
from clonos.driver.planned import Planned
from clonos.driver.repeatable import streaming_scans
from clonos.errors import EpochFailed
from clonos.extend.sink import LaneReport
from clonos.extend.source import Progress
from clonos.faults import reach
from clonos.formats.poison import drops
from clonos.jobs.context import Query
from clonos.jobs.spec import Trigger
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.records import EpochCommitted, EpochIdentity, InputSlice, Marker, Plan
from clonos.settings import KafkaSettings
from clonos.spark.executors import configured_slots, executor_ids
from clonos.spark.internals import task_slots
from clonos.spark.lane_sink import EpochRows, TaskPlan
from clonos.spark.live import COMMIT, LiveSink, LiveWriter, Steps, offset_entry, source_line
from clonos.spark.session import EXTENSIONS, LIVE_PYTHON, is_local
from clonos.spark.source_streams import LiveTasks, first_offsets, move_live, needs_live_tasks, set_live_tasks
from clonos.telemetry.driver_events import Epoch

_log = logging.getLogger("clonos")
EPOCH_S: Final = 300  # at its end all tasks start again, which costs some 100 ms
_REPORT_S: Final = 1.0
_FIRST_REPORT_S: Final = 0.05  # it ends a recovery
_STEPS_RETAINED: Final = 50_000  # whose markers are in the log, of 200 to 300 bytes each
# Operators whose output for a record follows from that record alone, in the task that reads it.
_OPERATORS: Final = frozenset(
    {
        *("Project", "Filter", "SubqueryAlias", "View", "Generate", "Expand", "StreamingRelationV2"),
        *("MapInArrow", "MapInPandas"),
    }
)
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
# Spark computes these once, when the epoch begins.
_ONCE: Final = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now", "CurrentBatchTimestamp")
_MOMENTS: Final = ("now", "today", "tomorrow", "yesterday")
_SUBQUERIES: Final = ("ScalarSubquery", "InSubquery", "ListQuery", "Exists", "LateralSubquery")
_IN_ARROW: Final = (
    PythonEvalType.SQL_ARROW_BATCHED_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    PythonEvalType.SQL_SCALAR_ARROW_UDF,
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
)
_LIMITS: Final = (
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "minpartitions",
    "maxrecordsperpartition",
    "endingtimestamp",
)


def epochs_because(query: Query, trigger: Trigger, kafka: KafkaSettings, queries: int) -> str:
    """Return why a query, one of a job with `queries`, cannot run live, as the rest of a sentence; empty: it can."""
    spark, sink = query.frame.sparkSession, query.sink
    if query.interval_ms or trigger.available_now:
        return "its trigger says when epochs begin"
    if not isinstance(sink, LiveSink):
        return f"the sink {sink.name} writes whole epochs"
    scans = streaming_scans(query.frame)
    if len(scans) != 1:
        return f"it reads {len(scans)} streams"
    (scan,) = scans
    if "subscribepattern" in scan.options:
        return "it reads the topics of a pattern"
    if limits := [name for name in _LIMITS if name in scan.options]:
        return f"its source has the option {limits[0]}"
    whys = (_of_node(node, spark) for node in logical_plan(query.frame).all())
    if because := next(filter(None, whys), "") or sink.epochs_because(spark, kafka):
        return because
    # An executor that is away for a moment does not change how a query runs: its tasks wait for a slot.
    slots = task_slots(spark) if is_local(spark.sparkContext.master) else configured_slots(spark)
    return f"Spark has fewer task slots than the job has queries ({queries})" if slots < queries else ""


def _of_node(node: PlanNode, spark: SparkSession) -> str:
    """Return why a query with this operator cannot run live."""
    if node.kind not in _OPERATORS or node.fields.get("isBarrier"):
        return f"it has the operator {node.kind}{' with barrier=True' if node.kind in _OPERATORS else ''}"
    if because := _of_functions(node, spark):
        return because
    if once := next((name for name in _ONCE if mentions(node.fields, _EXPRESSIONS + name)), ""):
        return f"it uses {once}, which Spark computes once for each epoch"
    if _casts_to_now(node.fields):
        return "it casts a text such as 'now' to a time, which Spark computes once for each epoch"
    return "it has a subquery" if any(mentions(node.fields, _EXPRESSIONS + name) for name in _SUBQUERIES) else ""


def _casts_to_now(value: Any) -> bool:
    """Whether an expression casts a text to a time that Spark replaces by the time of the epoch."""
    if isinstance(value, dict):
        return any(map(_casts_to_now, value.values()))
    if not isinstance(value, list):
        return False
    nodes = [node for node in value if isinstance(node, dict)]
    return any(map(_casts_to_now, value)) or any(
        cast.get("class") == f"{_EXPRESSIONS}Cast"
        and str(cast["dataType"]).startswith(("date", "timestamp"))
        and text.get("class") == f"{_EXPRESSIONS}Literal"
        and str(text["value"]).strip().lower().startswith(_MOMENTS)
        for cast, text in itertools.pairwise(nodes)
    )


def _of_functions(node: PlanNode, spark: SparkSession) -> str:
    if mentions(node.fields, _EXPRESSIONS + "PythonUDTF"):
        return "it has a table function in Python"
    if other := next((function for function in node.functions() if function.eval_type not in _IN_ARROW), None):
        return f"it has the Python function {other.name}, which takes no Arrow data: pass useArrow=True to F.udf"
    if any(node.functions()) and LIVE_PYTHON not in (spark.conf.get(EXTENSIONS, "") or ""):
        return f"it has Python functions, and the session is without the extension {LIVE_PYTHON}"
    return ""


class LiveRunner(EpochRunner):
    """Runs the live epochs of one query for one owner; the arguments are those of `EpochRunner`."""

    epoch_s = EPOCH_S
    _writer: LiveWriter

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._offsets: Progress = {}  # next offsets, as reported
        self._records = 0  # of the epoch's output, as reported
        self._reported = False  # whether the epoch has reported a step
        self._untruncated = 0  # steps since the log was truncated
        self._ended = threading.Event()
        self._reporting = threading.Lock()
        self._newest_ms = 0  # the time of the newest step, as reported
        self.resumes_at: Progress | None = None  # where the first epoch of a parked query begins
        self._was_moved = False  # whether the epoch begins elsewhere than Spark planned
        self._local = is_local(self._spark.sparkContext.master)
        self._executors: frozenset[str] = frozenset()  # those that have registered, when the epoch began
        self._others = 0  # number of reports in a row with further executors
        self._tasks = 1  # of the epoch
        self._waiting = 0  # of these tasks, as reported: without a slot

    def _inputs(self, _epoch: int, partitions: int) -> tuple[Planned, str]:
        self._find_query()
        self._tasks = partitions
        self._writer.run_id = self._run_id
        self._writer.commit_interval_ms = self._job.spec.spec.trigger.commit_interval_ms
        if self.resumes_at is not None and not self._offsets:
            move_live(self._spark, self._run_id, self.resumes_at, self.count_tasks())
            self._was_moved = True
        self._offsets = first_offsets(self._spark, self._run_id)
        scan = tuple(
            InputSlice("range", topic, partition, start, start)
            for topic, partitions in sorted(self._offsets.items())
            for partition, start in sorted(partitions.items())
        )
        self._writer.timestamp_ms = max(time.time_ns() // 1_000_000, self._latest_ms())
        entry = offset_entry(self._spark, self._jquery, self._writer.timestamp_ms, self._offsets)
        return Planned((scan,), self._writer.lanes((InputSlice("live"),) * partitions), live=True), entry

    def _latest_ms(self) -> int:
        """Return a time that no time in the output is after; the clock of another host may have been ahead."""
        name = self._query.name
        markers = [marker for marker in self._own.markers.values() if marker is not None]
        plans = [plan for _, plan in self._own.state.plans.values()]
        return max(
            [self._newest_ms]
            + [marker.time_ms for marker in markers if marker.query == name]
            + [plan.timestamp_ms for plan in plans if plan.query == name]
        )

    def begin(self, epoch: int, partitions: int) -> TaskPlan:
        """Plan a live epoch, and report its steps each second until `commit` or `abort`."""
        plan = super().begin(epoch, partitions)
        begun = self._begun
        assert begun is not None
        # After the publisher has read its clock: the time of a step is not before a time in its rows.
        since_ns = time.monotonic_ns() if self._local else -time.monotonic_ns()
        live = replace(self._scope(begun.identity, begun.plan), live_since_ns=since_ns)
        self._spark.sparkContext.setLocalProperty(PROPERTY, encode_scope(live))
        if not self._local:
            self._executors, self._others, self._waiting = executor_ids(self._spark), 0, 0
        self._records = 0
        self._reported = False
        self._ended = threading.Event()
        if self.stopping:  # a stop that came before the publisher was ready
            self._writer.cut()
        threading.Thread(target=self._report_often, args=(begun, self._ended), name="clonos-live", daemon=True).start()
        return plan

    def cut(self) -> None:
        """End the epoch in progress: its tasks stop reading."""
        self._writer.cut()

    def abort(self, epoch: int) -> None:
        """End an epoch whose task, step or commit failed."""
        with self._reporting:
            if self._begun is not None and not self._ended.is_set():
                with contextlib.suppress(Exception):  # the JVM may have exited, or the epoch not begun
                    self._report_steps(self._begun, self._writer.take())
            self._ended.set()
        super().abort(epoch)

    def _end(self) -> None:
        self._ended.set()
        super()._end()

    def _report_often(self, begun: Begun, ended: threading.Event) -> None:
        due, checks = Deadline(self.epoch_s), Deadline(_REPORT_S)
        if self._was_moved:
            self._was_moved = False
            with contextlib.suppress(Py4JError):  # Kafka may be away: the tasks notice it
                if needs_live_tasks(self._spark, self._run_id):
                    self._writer.cut()
        while not ended.wait(_REPORT_S if self._reported else _FIRST_REPORT_S):
            with self._reporting, contextlib.suppress(Py4JError):  # the JVM has exited: the driver notices it
                if not ended.is_set():
                    self._report_steps(begun, self._writer.take())
                    if due.passed():
                        self._writer.cut()
                    if not self._local and checks.passed():
                        checks = Deadline(_REPORT_S)
                        self._check_executors()

    def _check_executors(self) -> None:
        """Fail an epoch of which a task is lost, and end one that should have another number of tasks."""
        if lost := self._writer.lost():
            if not self.stopping:
                self.failure = EpochFailed(f"{lost}, in the live epoch {self.reads}.")
            self._spark.sparkContext.cancelJobGroup(self._run_id)
        elif self._should_replan():
            self._writer.cut()

    def _should_replan(self) -> bool:
        """Return whether executors have joined, or a task waits for a slot."""
        self._others = self._others + 1 if executor_ids(self._spark) - self._executors else 0
        if not self._waiting and (waiting := self._writer.waiting()):
            self._waiting = waiting
            _log.warning("%d of %d live tasks have no slot; %s", waiting, self._tasks, self.reads)
        # A task that waits begins when the others end, and ends at once: the next epoch must do without it.
        return (self._waiting > 0 and self._tasks > 1) or self._others > 1  # several register at about the same time

    def _report_steps(self, begun: Begun, steps: Steps, dropped: int = 0) -> None:
        """Emit the figures of the steps since the last report."""
        name = begun.identity.query
        read = Counter[str]()
        for topic, partitions in steps.next.items():
            for partition, next_ in partitions.items():
                read[topic] += next_ - self._offsets.get(topic, {}).get(partition, next_)
        if not steps.steps and not read.total() and not dropped:
            return
        self._reported = True
        self._offsets = merged(self._offsets, steps.next)
        self._records += steps.records
        self._untruncated += steps.steps
        self._newest_ms = max(self._newest_ms, steps.time_millis)
        self._on_progress(name, self._offsets)
        self._emit(
            Epoch(
                query=name,
                epoch=begun.identity.epoch,
                records_in=read.total(),
                records_out=steps.records,
                published_lanes=steps.steps,
                dead_letters=steps.dead_letters,
                dropped=dropped,
                duration_ms=round(steps.longest_micros / 1000),
                topics_in=dict(read),
                latencies=steps.latencies,
                offsets={
                    topic: {str(p): next_ for p, next_ in parts.items()} for topic, parts in self._offsets.items()
                },
                steps=steps.steps,
                live=True,
            )
        )
        self._attempt = 0
        self.published |= steps.steps > 0
        self.finished += 1

    def _finish(self, begun: Begun, reports: list[LaneReport], _rows: EpochRows) -> None:
        """Commit the epoch with its end (step 4)."""
        name, epoch = begun.identity.query, begun.identity.epoch
        self._note_tails(begun.plan, reports)
        self._clear_scope()
        with self._reporting:
            self._ended.set()
            dropped = drops.take(name, epoch, str(begun.identity.owner))  # Spark sums them up when tasks end
            self._report_steps(begun, self._writer.take(), dropped)
        with self._own.lock:
            end_epoch(self._own, begun.plan.query, epoch, self._end_entry(begun), self._records)
        reach("epoch-committed", query=name, epoch=epoch, replay=False)
        if not self._local:
            tasks = self.count_tasks()
            if self._waiting:
                started = max(1, self._tasks - self._waiting)
                tasks = LiveTasks(min(tasks.least, started), min(tasks.most, started))
            set_live_tasks(self._spark, self._run_id, tasks)
        if self.resumes_at is not None:  # Spark writes the entries of the scratch checkpoint
            self._checkpoint.add_epoch(epoch, offsets=self._end_entry(begun), commit=COMMIT)
            self._checkpoint.drop_epoch(epoch - RETAINED_EPOCHS)
        if self._untruncated >= _STEPS_RETAINED:
            self._untruncated = 0
            self._writer.discard()  # the renewed claims fence its producers
            with self._own.lock:
                self._truncate(name)
        reach("epoch-done", query=name, epoch=epoch, replay=False)
        self.finished += 1
        if self.last_epoch is not None and epoch >= self.last_epoch:
            self.stopping = True

    def _scope(self, identity: EpochIdentity, plan: Plan) -> EpochScope:
        return replace(super()._scope(identity, plan), depth="0")  # it is never replayed

    def _end_entry(self, begun: Begun) -> str:
        return with_offsets(begun.plan.offsets, self._offsets)


def merged(before: Progress, after: Progress) -> Progress:
    """Return the greater offset of each partition."""
    return {
        topic: {
            partition: max(before.get(topic, {}).get(partition, -1), after.get(topic, {}).get(partition, -1))
            for partition in before.get(topic, {}).keys() | after.get(topic, {}).keys()
        }
        for topic in before.keys() | after.keys()
    }


def with_offsets(entry: str, offsets: Progress) -> str:
    """Return an offset-log entry of one source with these offsets."""
    return "\n".join([*entry.splitlines()[:2], source_line(offsets)])


def end_epoch(own: Ownership, query: str, epoch: int, entry: str, records: int) -> None:
    """Commit the end of a live epoch to the log."""
    record = EpochCommitted(own.owner, query, epoch, records, offsets=entry)
    own.state.take(own.control.append(record), record)


def end_live_epochs(own: Ownership, query: str, checkpoint: CheckpointDirectory) -> Iterator[int]:
    """End the live epochs that the log has planned and Spark has not committed, at what is published; yields each.

    The newest one ends at its greatest marker, if the log has no end of it. A record after that marker is in no visible
    transaction: the next epoch reads it.
    """
    while True:
        epoch = max(checkpoint.commits(), default=-1) + 1
        plan = own.state.plan(query, epoch)
        if plan is None or not plan.live:
            return
        if epoch > own.state.committed.get(query, -1):
            steps = [
                marker
                for partition in plan.log_partitions
                if (marker := own.markers.get(partition)) is not None and _is_step(marker, own, query, epoch)
            ]
            ends = progress_of(plan.offsets)
            published = Counter[int]()  # number of records, by publisher
            for marker in steps:
                ends = merged(ends, marker.next_offsets)
                publisher = marker.input_slice.start
                published[publisher] = max(published[publisher], marker.total)
            end_epoch(own, query, epoch, with_offsets(plan.offsets, ends), sum(published.values()))
            plan = own.state.plan(query, epoch)
            assert plan is not None
        if checkpoint.read_offsets(epoch) not in (None, plan.offsets):
            checkpoint.write_offsets(epoch, plan.offsets)
        checkpoint.add_epoch(epoch, offsets=plan.offsets, commit=COMMIT)
        yield epoch


def _is_step(marker: Marker, own: Ownership, query: str, epoch: int) -> bool:
    return (marker.query, marker.epoch, marker.owner.lineage) == (query, epoch, own.owner.lineage) and marker.step > 0
