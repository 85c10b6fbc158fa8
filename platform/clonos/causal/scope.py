"""Where a causal service is being called: which epoch, operator, task and row.

The driver publishes one `EpochScope` per epoch as a Spark local property; every task of the epoch sees it.
A `TaskScope` is what one operator of one task knows and has recorded so far.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

import msgspec
import xxhash
from pyspark import TaskContext

from clonos.causal.determinants import Recorder, recorded_answers
from clonos.errors import EnvironmentFault
from clonos.log.records import Entry, Owner
from clonos.settings import KafkaSettings

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
        deferred: Whether somebody calls `flush` before what used an answer can leave the operator; otherwise
            each new answer is acknowledged on its own.
    """

    def __init__(self, epoch: EpochScope, operator: str, task: int, *, deferred: bool) -> None:
        self.epoch = epoch
        self.operator = operator
        self.task = task
        self.deferred = deferred
        self.concurrency = 1
        self._locks: dict[bytes, threading.RLock] = {}
        self.answers: dict[bytes, Entry] = {}
        self.recorded = 0
        self.replayed = 0
        self._log = (
            recorded_answers(worker_kafka(), epoch, operator, task) if epoch.replay and epoch.depth != "0" else {}
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
        if not self.deferred:
            self.flush()

    def flush(self) -> None:
        """Return once the log has acknowledged every new answer.

        Raises:
            EpochFailed: The log did not acknowledge.
        """
        self._recorder.flush()

    def derive(self, *what: object) -> int:
        """A 128-bit number that follows from the plan's seed, epoch, operator and `what`."""
        number: int = xxhash.xxh3_128_intdigest(canonical(what), seed=self._seed)
        return number


def _plain_hook(value: object) -> object:
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


_task: ContextVar[TaskScope | None] = ContextVar("clonos_task", default=None)
_row: ContextVar[_Row | None] = ContextVar("clonos_row", default=None)
_implicit: dict[int, TaskScope] = {}


def current_epoch() -> EpochScope | None:
    """The epoch of the task that calls, or None outside of a job."""
    task = _task.get()
    if task is not None:
        return task.epoch
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    return decode_scope(text) if text else None


def current_task() -> TaskScope | None:
    """The operator's scope that calls, or None outside of a job.

    In a plain Spark UDF (not wrapped by `clonos.udf`) it is one scope for the whole task.
    """
    return _task.get() or _spark_task()


def positional() -> tuple[int, int]:
    """The position of the current row in its task and of this draw within the row."""
    row = _row.get()
    if row is None:
        task = current_task()
        row = _task_rows.setdefault(id(task), _Row(0))
    row.draws += 1
    return row.index, row.draws


_task_rows: dict[int, _Row] = {}


def _spark_task() -> TaskScope | None:
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    if context is None or not text:
        return None
    attempt = context.taskAttemptId()
    scope = _implicit.get(attempt)
    if scope is None:
        _implicit.clear()  # a worker runs one task at a time
        _task_rows.clear()
        scope = TaskScope(decode_scope(text), "task", context.partitionId(), deferred=False)
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


def open_task_scope(operator: str) -> TaskScope | None:
    """A scope for `operator` in the Spark task that runs here; None outside of a Clonos epoch."""
    context = TaskContext.get()
    text = context.getLocalProperty(PROPERTY) if context is not None else None
    if context is None or not text:
        return None
    return TaskScope(decode_scope(text), operator, context.partitionId(), deferred=True)
