"""The context of a call to a causal service: epoch, operator, task and row.

The driver sends one `EpochScope` per epoch to its tasks. A `TaskScope` holds the determinants of one operator in one
task.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import xxhash
from pyspark import TaskContext

from clonos.carried_errors import CarriedError, carry
from clonos.causal.counting import Tally
from clonos.causal.determinants import Recorder, recorded_answers
from clonos.causal.encoding import canonical
from clonos.causal.epoch_scope import JOB_ENVIRONMENT, PROPERTY, EpochScope, decode_scope, worker_kafka
from clonos.errors import EpochFailed, OperatorRequired, SpecError
from clonos.log.records import Determinant

P = ParamSpec("P")
R = TypeVar("R")


class TaskScope:
    """One operator in one task of one epoch: its determinants, and the seeds of its random draws.

    Args:
        epoch: The epoch.
        operator: The operator's name, stable across runs.
        task: Spark's partition index; the driver has checked that the partition has the same input as in the plan.
        wrapped: Whether Clonos runs the operator, and calls `flush` before its output leaves. Otherwise only random
            draws with a key are possible.
    """

    def __init__(self, epoch: EpochScope, operator: str, task: int, *, wrapped: bool = True) -> None:
        self.epoch = epoch
        self.operator = operator
        self.task = task
        self.wrapped = wrapped
        self.concurrency = 1
        self.position: _Row | Group = _Row(0)
        self._locks: dict[bytes, threading.RLock] = {}
        self.answers: dict[bytes, Determinant] = {}
        self.recorded = 0
        self.replayed = 0
        # The failure of a call that was not recorded. No output may leave the task then.
        self.failure: Exception | None = None
        self._log = (
            recorded_answers(worker_kafka(), epoch, operator, task)
            if wrapped and epoch.identity.replay and epoch.depth != "0"
            else {}
        )
        self._recorder = Recorder(worker_kafka, epoch, operator, task)
        identity = epoch.identity
        self._seed: int = xxhash.xxh3_64_intdigest(
            canonical((identity.query, identity.epoch, operator)), seed=epoch.seed
        )

    def find(self, key: bytes) -> Determinant | None:
        """Return the recorded answer to the call that `key` identifies, from this task or from an earlier attempt; None
        without one.
        """
        entry = self.answers.get(key)
        if entry is None:
            entry = self._log.get(key)
            if entry is not None:
                self.answers[key] = entry
                self.replayed += 1
        return entry

    @contextlib.contextmanager
    def locked(self, key: bytes) -> Iterator[None]:
        """Lock `key`, so that parallel rows with equal arguments share one call.

        Each key has its own lock, because a service may call another service in another thread.
        """
        with self._locks.setdefault(key, threading.RLock()):
            yield
        self._locks.pop(key, None)  # the answer is in `answers` now

    def record(self, entry: Determinant) -> None:
        """Store a new answer, and queue it for the causal log."""
        self.answers[entry.key] = entry
        if self.epoch.depth != "0":
            self._recorder.add(entry)
            self.recorded += 1

    def flush(self) -> None:
        """Write the queued answers to the causal log, and wait for the acknowledgement.

        Raises:
            Exception: `failure`. The function may have caught it; a replay could get an answer instead.
        """
        self._recorder.flush()
        if self.failure is not None:
            raise self.failure
        if self.epoch.live_since_ns:
            self.answers.clear()  # the next batch, which may come minutes later, asks again

    @property
    def tally(self) -> Tally:
        """The numbers of determinants recorded and replayed so far, and the bytes of those written to the log."""
        return Tally(self.recorded, self.replayed, self._recorder.bytes)

    def derive(self, *parts: object) -> int:
        """Compute a 128-bit number from the plan's seed, the epoch, the operator and `parts`: the seed of a draw."""
        number: int = xxhash.xxh3_128_intdigest(canonical(parts), seed=self._seed)
        return number


class _Row:
    """Position of the current row, and the number of draws without a key in it."""

    __slots__ = ("draws", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.draws = 0

    def move(self, index: int) -> None:
        """Change to another row; cheaper than a new scope for each row."""
        self.index = index
        self.draws = 0

    def draw(self, task: TaskScope) -> tuple[object, ...]:
        """Return the identity of the next draw: task, row, and number in the row."""
        self.draws += 1
        return ("at", task.task, self.index, self.draws)


class Group:
    """The rows with one grouping key that Spark passes to one call of a grouped function.

    Random draws in it depend neither on the task nor on the order of groups.

    Args:
        key: Returns the identity of the group; called at the first random draw without a key.
    """

    __slots__ = ("_compute_key", "_key", "draws")

    def __init__(self, key: Callable[[], object]) -> None:
        self._compute_key = key
        self._key: tuple[object] | None = None
        self.draws = 0

    def draw(self, _task: TaskScope) -> tuple[object, ...]:
        """Return the identity of the next random draw without a key: the group, and the number of the draw in the
        group.
        """
        if self._key is None:
            self._key = (self._compute_key(),)
        self.draws += 1
        return ("group", *self._key, self.draws)


_task: ContextVar[TaskScope | None] = ContextVar("clonos_task", default=None)
_row: ContextVar[_Row | Group | None] = ContextVar("clonos_row", default=None)
_implicit: dict[int, TaskScope] = {}
_batch = (0, 0)  # of this worker's newest batch in a live epoch: `EpochScope.live_since_ns`, and its time


# What this worker read first in the newest live epoch on a cluster: `EpochScope.live_since_ns`, the time in ms, and the
# monotonic clock in ns.
_began = (0, 0, 0)


def begin_batch(epoch: EpochScope) -> None:
    """Set the time of a live epoch, for the Arrow batch that this worker has just received."""
    global _batch
    _batch = epoch.live_since_ns, live_time_ms(epoch)


def live_time_ms(epoch: EpochScope) -> int:
    """Return the time in a live epoch, in milliseconds. It follows the monotonic clock, which is never set."""
    global _began
    now_ns = time.monotonic_ns()
    if epoch.live_since_ns > 0:
        return epoch.timestamp_ms + (now_ns - epoch.live_since_ns) // 1_000_000
    if _began[0] != epoch.live_since_ns:
        _began = epoch.live_since_ns, max(epoch.timestamp_ms, time.time_ns() // 1_000_000), now_ns
    _, began_ms, began_ns = _began
    return began_ms + (now_ns - began_ns) // 1_000_000


def time_ms(epoch: EpochScope) -> int:
    """Return the time of an epoch; in a live epoch that of this worker's newest Arrow batch. In milliseconds."""
    since, at = _batch
    return at if epoch.live_since_ns and since == epoch.live_since_ns else epoch.timestamp_ms


def current_epoch() -> EpochScope | None:
    """Return the epoch of the current task; None outside a job."""
    task = _task.get()
    if task is not None:
        return task.epoch
    spark_task = _spark_task()
    return spark_task[1] if spark_task is not None else None


def operator_scope() -> TaskScope | None:
    """Return the scope of the operator that runs this code; None in Python code that Clonos does not wrap."""
    return _task.get()


def current_task() -> TaskScope | None:
    """Return the scope of this code in the current Spark task; None outside a job.

    In Python code that Clonos does not wrap, the scope allows only random draws with a key. Several such functions may
    run in one task, and nothing repeatable distinguishes them.
    """
    return _task.get() or _unwrapped_scope()


def positional(task: TaskScope) -> tuple[object, ...]:
    """Return the identity of the next random draw without a key: the position of the row or group, and the number of
    the draw.
    """
    return (_row.get() or task.position).draw(task)


def operator_required(subject: str) -> CarriedError:
    """Return the error for a call outside an operator, in a form that Spark carries to the driver.

    `subject` names the called function in the error's text.
    """
    return carry(OperatorRequired(f"{subject} was called in Python code that is not a Clonos operator."))


def in_spark() -> bool:
    """Whether this process runs a Spark task. Tests run operators without one."""
    return TaskContext.get() is not None


def live_epoch() -> EpochScope | None:
    """Return the live epoch of the current Spark task; None in other tasks."""
    epoch = _epoch_of(TaskContext.get())
    return epoch if epoch is not None and epoch.live_since_ns else None


def _epoch_of(context: TaskContext | None) -> EpochScope | None:
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    return decode_scope(text) if text else None


def _spark_task() -> tuple[TaskContext, EpochScope] | None:
    """Return the current Spark task and its epoch; None outside a Clonos epoch."""
    context = TaskContext.get()
    epoch = _epoch_of(context)
    if context is None or epoch is None:
        return None
    if context.attemptNumber() > 0:
        # A cluster repeats the tasks of a lost executor, and their answers would differ from those already recorded.
        # Spark repeats no stage (`PROMISED`), so the number of its attempt, which PySpark lacks, is not needed.
        raise carry(EpochFailed("Spark repeated a task of the epoch."))
    return context, epoch


def _unwrapped_scope() -> TaskScope | None:
    spark_task = _spark_task()
    if spark_task is None:
        return None
    context, epoch = spark_task
    attempt = context.taskAttemptId()
    scope = _implicit.get(attempt)
    if scope is None:
        _implicit.clear()  # a worker runs one task at a time
        scope = _implicit[attempt] = TaskScope(epoch, "task", context.partitionId(), wrapped=False)
    return scope


@contextlib.contextmanager
def task_scope(scope: TaskScope) -> Iterator[TaskScope]:
    """Run the block as code of the operator of `scope`."""
    token = _task.set(scope)
    try:
        yield scope
    finally:
        _task.reset(token)


@contextlib.contextmanager
def row_scope(index: int) -> Iterator[_Row]:
    """Run the block for row number `index` of the task: random draws without a key depend on it.

    Yields the position, which the block can move to another row.
    """
    row = _Row(index)
    token = _row.set(row)
    try:
        yield row
    finally:
        _row.reset(token)


class Inside:
    """Runs calls as code of an operator. Each instance has its own context, because generators may interleave.

    Args:
        scope: The operator's scope; None outside a job.
        group: The group for random draws without a key; None: draws are numbered for the whole task.
    """

    def __init__(self, scope: TaskScope | None, group: Group | None = None) -> None:
        self._context = contextvars.copy_context()
        self._context.run(_task.set, scope)
        self._context.run(_row.set, group)

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` inside the operator."""
        return self._context.run(function, *args, **kwargs)


def open_task_scope(operator: str) -> TaskScope | None:
    """Return a scope for `operator` in the current Spark task; None outside a Clonos job.

    Raises:
        CarriedError: The task belongs to a job, but to no epoch: nothing would record the answers of services.
    """
    spark_task = _spark_task()
    if spark_task is None and TaskContext.get() is not None and (job := os.environ.get(JOB_ENVIRONMENT)):
        raise carry(
            SpecError(
                f"The operator {operator} runs outside of the epochs of the job {job}, where nothing is recorded.",
                hint="use it on streams only; compute static data before the job.",
            )
        )
    return TaskScope(spark_task[1], operator, spark_task[0].partitionId()) if spark_task is not None else None
