"""Where a causal service is being called: which epoch, operator, task and row.

The driver publishes one `EpochScope` per epoch as a Spark local property; every task of the epoch sees it.
A `TaskScope` is what one operator of one task knows and has recorded so far.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, ParamSpec, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from pyspark import TaskContext

from clonos.carried import CarriedError, carry
from clonos.causal.counting import Tally
from clonos.causal.determinants import Recorder, recorded_answers
from clonos.errors import EnvironmentFault, OperatorUnknown
from clonos.log.records import Entry, Owner
from clonos.settings import KafkaSettings

P = ParamSpec("P")
R = TypeVar("R")

PROPERTY: Final = "clonos.epoch"
# Connection settings reach Python workers by environment, so that a password is in no Spark property.
KAFKA_ENVIRONMENT: Final = "CLONOS_WORKER_KAFKA"


class EpochScope(msgspec.Struct, frozen=True):
    """One epoch of one query, as its tasks need to know it.

    Attributes:
        depth: Determinant sharing depth: ``0``, ``1`` or ``full``.
        partitions: The log partitions that its tasks record to (task index modulo their number).
        since: Log partition → first offset that may hold determinants of this epoch.
        until: Log partition → this owner's claim; nothing is read from there on.
        replay: Whether the log already held a plan for this epoch.
        rehearsal: No row is there and no user's function is to be called (`clonos.standby.rehearsal`).
    """

    job: str
    topic: str
    query: str
    epoch: int
    at: int
    seed: int
    owner: Owner
    replay: bool
    depth: str
    partitions: tuple[int, ...]
    since: dict[int, int]
    until: dict[int, int]
    params: dict[str, str]
    rehearsal: bool = False


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(EpochScope)


def encode_scope(scope: EpochScope) -> str:
    """The scope as the text of a Spark local property."""
    return _encoder.encode(scope).decode()


@functools.lru_cache(maxsize=16)
def decode_scope(text: str) -> EpochScope:
    """The scope in a Spark local property."""
    return _decoder.decode(text)


class TaskScope:
    """One operator of one task of one epoch.

    Args:
        epoch: The epoch.
        operator: The operator's name, stable across runs.
        task: Spark's partition index (the driver has verified that it means the same as in the plan).
        wrapped: Whether somebody named the operator and calls `flush` before what used an answer leaves it.
            Otherwise only keyed draws are answered.
    """

    def __init__(self, epoch: EpochScope, operator: str, task: int, *, wrapped: bool = True) -> None:
        self.epoch = epoch
        self.operator = operator
        self.task = task
        self.wrapped = wrapped
        self.concurrency = 1
        self.place: _Row | Group = _Row(0)
        self._locks: dict[bytes, threading.RLock] = {}
        self.answers: dict[bytes, Entry] = {}
        self.recorded = 0
        self.replayed = 0
        self._log = (
            recorded_answers(worker_kafka(), epoch, operator, task)
            if wrapped and epoch.replay and epoch.depth != "0"
            else {}
        )
        self._recorder = Recorder(worker_kafka, epoch, operator, task)
        self._seed: int = xxhash.xxh3_64_intdigest(canonical((epoch.query, epoch.epoch, operator)), seed=epoch.seed)

    def known(self, key: bytes) -> Entry | None:
        """The answer that this task has for `key`: given before, or recorded by an earlier attempt."""
        entry = self.answers.get(key)
        if entry is None:
            entry = self._log.get(key)
            if entry is not None:
                self.answers[key] = entry
                self.replayed += 1
        return entry

    @contextlib.contextmanager
    def asking(self, key: bytes) -> Iterator[None]:
        """Equal arguments of rows that run in parallel share one call.

        Each key has a lock of its own: a service may call another one, in another thread.
        """
        with self._locks.setdefault(key, threading.RLock()):
            yield
        self._locks.pop(key, None)  # answered: nobody asks again

    def record(self, entry: Entry) -> None:
        """Keep a new answer for this task and the log."""
        self.answers[entry.key] = entry
        if self.epoch.depth != "0":
            self._recorder.add(entry)
            self.recorded += 1

    def flush(self) -> None:
        """Return once the log has acknowledged every new answer.

        Raises:
            EpochFailed: The log did not acknowledge.
        """
        self._recorder.flush()

    @property
    def tally(self) -> Tally:
        """What was recorded and replayed so far; the bytes of what is flushed."""
        return Tally(self.recorded, self.replayed, self._recorder.bytes)

    def derive(self, *what: object) -> int:
        """A 128-bit number that follows from the plan's seed, epoch, operator and `what`."""
        number: int = xxhash.xxh3_128_intdigest(canonical(what), seed=self._seed)
        return number


def _plain_hook(value: object) -> object:
    pandas = sys.modules.get("pandas")  # slow to import, and its values exist only where it is
    if pandas is not None:
        if value is pandas.NaT or value is pandas.NA:
            return None
        if isinstance(value, pandas.Timestamp):
            # Nanoseconds only where there are any, so that equal times are equal.
            return value.isoformat() if value.nanosecond else value.to_pydatetime()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, pa.Scalar):
        return value.as_py()
    as_py = getattr(value, "item", None)  # numpy scalars
    if callable(as_py):
        return as_py()
    if isinstance(value, tuple):  # Spark rows
        return tuple(value)
    raise TypeError(f"a {type(value).__name__} cannot be part of a causal service's arguments")


canonical: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain_hook).encode
"""Equal values as equal bytes, whatever the order of sets and dicts."""


def worker_environment(kafka: KafkaSettings) -> dict[str, str]:
    """What a Python worker's environment must hold to reach Kafka."""
    plain_text = kafka.model_dump(mode="json", exclude={"sasl_password", "ssl_key_password"})
    for name in ("sasl_password", "ssl_key_password"):
        secret = getattr(kafka, name)
        if secret is not None:
            plain_text[name] = secret.get_secret_value()
    return {KAFKA_ENVIRONMENT: msgspec.json.encode(plain_text).decode()}


@functools.cache
def worker_kafka() -> KafkaSettings:
    """How a Python worker reaches Kafka.

    Raises:
        EnvironmentFault: Nobody told this worker.
    """
    if KAFKA_ENVIRONMENT not in os.environ:
        raise EnvironmentFault(
            "A Python worker does not know how to reach Kafka: its function was built before Clonos knew the session.",
            kept="nothing was published.",
            hint="read with clonos.source(spark, topic) before UDFs are called on columns.",
        )
    return KafkaSettings.model_validate_json(os.environ[KAFKA_ENVIRONMENT])


class _Row:
    """Position of the row being computed, and how many positional draws it has made."""

    __slots__ = ("draws", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.draws = 0

    def move(self, index: int) -> None:
        """On to another row: cheaper than a new scope for each."""
        self.index = index
        self.draws = 0

    def draw(self, task: TaskScope) -> tuple[object, ...]:
        """What identifies the next draw: task, row, and the draw within the row."""
        self.draws += 1
        return ("at", task.task, self.index, self.draws)


class Group:
    """The group of rows being computed: where it stands among other groups, and in which task, does not matter.

    Args:
        key: What identifies it; called when a draw without a key needs it.
    """

    __slots__ = ("_key", "_known", "draws")

    def __init__(self, key: Callable[[], object]) -> None:
        self._key = key
        self._known: tuple[object] | None = None
        self.draws = 0

    def draw(self, _task: TaskScope) -> tuple[object, ...]:
        """What identifies the next draw: the group, and the draw within it."""
        if self._known is None:
            self._known = (self._key(),)
        self.draws += 1
        return ("group", *self._known, self.draws)


_task: ContextVar[TaskScope | None] = ContextVar("clonos_task", default=None)
_row: ContextVar[_Row | Group | None] = ContextVar("clonos_row", default=None)
_implicit: dict[int, TaskScope] = {}


def current_epoch() -> EpochScope | None:
    """The epoch of the task that calls, or None outside of a job."""
    task = _task.get()
    if task is not None:
        return task.epoch
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    return decode_scope(text) if text else None


def operator_scope() -> TaskScope | None:
    """The wrapped operator's scope that calls, or None."""
    return _task.get()


def current_task() -> TaskScope | None:
    """The operator's scope that calls, or None outside of a job.

    In Python code that no operator wraps it answers keyed draws only: several such functions may run in one
    task, in one worker or in several, and nothing that a replay would repeat tells them apart.
    """
    return _task.get() or _spark_task()


def positional(task: TaskScope) -> tuple[object, ...]:
    """What identifies a draw without a key: where in `task` it is made."""
    return (_row.get() or task.place).draw(task)


def unwrapped(what: str) -> CarriedError:
    """The refusal of something that needs a named operator, on its way to the driver."""
    return carry(OperatorUnknown(f"{what} was called in Python code that is no Clonos operator."))


def _spark_task() -> TaskScope | None:
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    if context is None or not text:
        return None
    attempt = context.taskAttemptId()
    scope = _implicit.get(attempt)
    if scope is None:
        _implicit.clear()  # a worker runs one task at a time
        scope = TaskScope(decode_scope(text), "task", context.partitionId(), wrapped=False)
        _implicit[attempt] = scope
    return scope


@contextlib.contextmanager
def task_scope(scope: TaskScope) -> Iterator[TaskScope]:
    """Make `scope` the current one."""
    token = _task.set(scope)
    try:
        yield scope
    finally:
        _task.reset(token)


@contextlib.contextmanager
def row_scope(index: int) -> Iterator[_Row]:
    """Make row `index` of the task the current one."""
    row = _Row(index)
    token = _row.set(row)
    try:
        yield row
    finally:
        _row.reset(token)


class Inside:
    """Calls inside of an operator, in a context of their own: generators may take turns, and nothing leaks.

    Args:
        scope: The operator's; None outside of a job.
        place: Where draws without a key are made; default the operator's own sequence.
    """

    def __init__(self, scope: TaskScope | None, place: Group | None = None) -> None:
        self._context = contextvars.copy_context()
        self._context.run(_task.set, scope)
        self._context.run(_row.set, place)

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` inside."""
        return self._context.run(function, *args, **kwargs)


def open_task_scope(operator: str) -> TaskScope | None:
    """A scope for `operator` in the Spark task that runs here; None outside of a Clonos epoch."""
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    if context is None or not text:
        return None
    return TaskScope(decode_scope(text), operator, context.partitionId())
