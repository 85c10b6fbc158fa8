"""Runs a sink's `write_lane` in Spark's tasks, and the parts that most sinks share (`docs/sinks.md`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final, Self

import msgspec
import pyarrow as pa
import xxhash
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from clonos.carried_errors import carry, uncarry
from clonos.causal.epoch_scope import PROPERTY, decode_scope, worker_kafka
from clonos.errors import ClonosError, EpochFailed, ReplayDivergence
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane, WritesLanes, WritesParts
from clonos.faults import reach
from clonos.log.reading import Tail, shared_reader
from clonos.log.records import EpochIdentity
from clonos.log.topic import CONTROL, short_topic_id
from clonos.resolve_command import resolve_command

SINK_EPOCH: Final = "clonos.sinkEpoch"  # Spark's local property with the `LaneOrders`
_RESULT: Final = b"r"
_ERROR: Final = b"e"
_ROWS: Final = b"a"
_LONGEST_PAYLOAD: Final = 64 * 1024
_MODULUS = 1 << 128


class LaneOrders(msgspec.Struct, frozen=True):
    """What the tasks of an epoch get to know, as Spark's local property `SINK_EPOCH`."""

    epoch: SinkEpoch
    """The epoch, without the settings of Kafka: workers get the password from their environment."""
    deferred: frozenset[int] = frozenset()
    """Numbers of the lanes whose rows go to the driver, which publishes them after the audit of the others."""
    counts: bool = False
    """Whether parts are only counted, because the epoch is committed."""


_log_ids: dict[tuple[str, str], tuple[str, str]] = {}  # of this process: cluster and log → claim, id of the topic
_encoder = msgspec.json.Encoder(enc_hook=lambda _settings: None)
_decoder = msgspec.json.Decoder(LaneOrders, dec_hook=lambda _type, _none: worker_kafka())


def encode_orders(orders: LaneOrders) -> str:
    """Encode the orders as the text of a Spark local property."""
    return _encoder.encode(orders).decode()


class _SinkTask:
    """The function that calls a sink in each task of an epoch, before Spark's writer.

    Its rows have one binary column. The first byte says what follows: the result, an error, or rows for the driver.
    """

    schema: ClassVar[StructType] = StructType([StructField("value", BinaryType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of this task."""
        context = TaskContext.get()
        if context is None:
            raise AssertionError("a lane is written by a Spark task")
        if context.attemptNumber() > 0:  # the first attempt may have published the lane
            raise carry(EpochFailed("Spark repeated a task of the epoch."))
        scope = context.getLocalProperty(PROPERTY)
        if scope and decode_scope(scope).rehearsal:
            for _ in batches:
                pass
            return
        orders = _decoder.decode(context.getLocalProperty(SINK_EPOCH) or "")
        try:
            yield from self.write(orders, context.partitionId(), batches)
        except ClonosError as error:  # as a value: the other tasks of the epoch continue
            yield _row(_ERROR, str(carry(error)).encode())

    def write(self, orders: LaneOrders, task: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task; yield the rows for the driver."""
        raise NotImplementedError


class LaneTask(_SinkTask):
    """Runs `write_lane` of a sink, which is pickled when the query starts."""

    def __init__(self, sink: WritesLanes) -> None:
        self._sink = sink

    def write(self, orders: LaneOrders, task: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the lane of this task, unless it is deferred."""
        lane = orders.epoch.lane_of(task)
        if lane.number in orders.deferred:
            yield from (_row(_ROWS, _stream(batch)) for batch in batches)
        else:
            yield _row(_RESULT, msgspec.msgpack.encode(self._sink.write_lane(orders.epoch, lane, batches)))


class PartTask(_SinkTask):
    """Runs `write_part` of a sink, which is pickled when the query starts."""

    def __init__(self, sink: WritesParts) -> None:
        self._sink = sink

    def write(self, orders: LaneOrders, task: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the part of this task, or only count its rows."""
        digest = MultisetDigest()
        rows = _digested(batches, digest)
        payload = b""
        if not orders.counts:
            at_point("lane-begun", orders.epoch, orders.epoch.lanes[0])
            payload = self._sink.write_part(orders.epoch, task, rows)
            if len(payload) > _LONGEST_PAYLOAD:
                raise EpochFailed(f"The sink's payload of part {task} has {len(payload)} bytes, more than 64 KiB.")
        for _ in rows:  # Spark commits its state with the last row
            pass
        at_point("state-committed", orders.epoch, orders.epoch.lanes[0])
        yield _row(_RESULT, msgspec.msgpack.encode(PartReport(payload, digest.records, digest.value())))


class PartReport(msgspec.Struct, frozen=True):
    """One part of an epoch: the payload that the sink returned, and the digest of its rows."""

    payload: bytes
    records: int
    digest: bytes


def digest_of(batches: Iterable[pa.RecordBatch]) -> MultisetDigest:
    """Return the digest of rows as `WritesParts.commit` gets it."""
    digest = MultisetDigest()
    for _ in _digested(batches, digest):
        pass
    return digest


def _digested(batches: Iterable[pa.RecordBatch], digest: MultisetDigest) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            digest.add(msgspec.msgpack.encode(row, enc_hook=str))
        yield batch


def lane_report(values: Iterable[bytes]) -> LaneReport:
    """Return the report in the rows of a `LaneTask`; raise as `part_report`."""
    return msgspec.msgpack.decode(_result(values), type=LaneReport)


def part_report(values: Iterable[bytes]) -> PartReport:
    """Return the report in the rows of a `PartTask`.

    Raises:
        ClonosError: The task raised it.
        EpochFailed: The task did not report.
    """
    return msgspec.msgpack.decode(_result(values), type=PartReport)


def _result(values: Iterable[bytes]) -> bytes:
    for value in values:
        kind, content = value[:1], value[1:]
        if kind == _ERROR:
            raise uncarry(content.decode()) or EpochFailed(content.decode())
        if kind == _RESULT:
            return content
    raise EpochFailed("A task of the epoch did not report.")


def deferred_rows(values: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Return the Arrow batches in the rows of a `LaneTask` whose lane is deferred."""
    for value in values:
        yield from pa.ipc.open_stream(value[1:])


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _row(kind: bytes, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([kind + content], pa.binary())})


def require_equal(audited: list[LaneReport], epoch: SinkEpoch) -> list[LaneReport]:
    """Return the reports of the lanes that an earlier attempt published.

    Raises:
        ReplayDivergence: A lane differs from this replay, and the user has not decided that it may.
    """
    diverged = [report.lane for report in audited if report.diverged]
    if diverged and not epoch.may_differ:
        kept = "the lanes not yet published were not published."
        raise divergence(epoch.identity, diverged, kept=kept, decisions=epoch.decisions)
    return audited


def divergence(identity: EpochIdentity, lanes: list[int], *, kept: str, decisions: Sequence[str]) -> ReplayDivergence:
    """Return the error for a replay that differs from published lanes.

    Args:
        identity: The epoch.
        lanes: Numbers of the published lanes that differ.
        kept: What was kept safe.
        decisions: The decisions that the sink accepts.
    """
    options = [f"--{name} TOPIC" if name == "dead-letter" else f"--{name}" for name in decisions]
    choice = f" ({', '.join(options[:-1])} or {options[-1]})" if len(options) > 1 else ""
    query, epoch = identity.query, identity.epoch
    return ReplayDivergence(
        f"The replay of epoch {epoch} of {query} differs from the published lanes {lanes}.",
        kept=kept,
        hint=f"decide about the epoch{choice}: "
        f"{resolve_command(identity.job, query, epoch, 'keep')}. For later epochs, {ReplayDivergence.hint_default}",
    )


def require_owner(epoch: SinkEpoch, lane: SinkLane, *, reread: bool = False) -> Tail | None:
    """Check that this driver still owns a lane: the newest claim or marker of the lane's log partition is of the
    epoch's owner.

    Args:
        epoch: The epoch.
        lane: The lane.
        reread: Read the tail even if its offset is known.

    Returns:
        The newest claim or marker; None if the record at `lane.tail_offset` is still the newest.

    Raises:
        Superseded: A newer owner wrote it.
        CausalLogDamaged: The partition holds no claim.
    """
    identity = epoch.identity
    reader = shared_reader(epoch.kafka, identity.log_topic)
    return reader.own_tail(
        lane.log_partition,
        identity.owner,
        f"Lane {lane.number} of {identity.query}",
        tail_offset=-1 if reread else lane.tail_offset,
    )


def require_job(epoch: SinkEpoch) -> None:
    """Check that this driver still owns the job: the newest claim of the causal log is of the epoch's owner.

    Raises:
        Superseded: A newer owner claimed the job.
        CausalLogDamaged: The log holds no claim.
    """
    identity = epoch.identity
    reader = shared_reader(epoch.kafka, identity.log_topic)
    reader.own_tail(CONTROL, identity.owner, f"The job {identity.job}", tail_offset=epoch.plan_offset)


def log_id(epoch: SinkEpoch) -> str:
    """Return the causal log's topic, by Kafka's id of it; this process asks once for each claim."""
    # A worker outlives a driver, and a log that was deleted and created again has the same name.
    log = (epoch.kafka.bootstrap_servers, epoch.identity.log_topic)
    claim, known = _log_ids.get(log, ("", ""))
    if claim != epoch.identity.owner.claim_id:
        known = short_topic_id(epoch.kafka, epoch.identity.log_topic)
        _log_ids[log] = epoch.identity.owner.claim_id, known
    return known


def at_point(name: str, epoch: SinkEpoch, lane: SinkLane) -> None:
    """Trigger the injected faults for a lane at a named point of its protocol, in tests (`clonos.faults`)."""
    identity = epoch.identity
    reach(name, query=identity.query, epoch=identity.epoch, lane=lane.number, replay=identity.replay)


class MultisetDigest:
    """A digest of records as a multiset: equal records in any order have the same digest.

    It is the sum modulo 2^128 of the records' XXH3 hashes. A sum, unlike an exclusive or, counts duplicates. XXH3 is
    fast and does not resist an adversary: job authors are trusted.

    Example::

        digest = MultisetDigest()
        digest.add(b"first")
        digest.add(b"second")
        assert (digest.records, len(digest.value())) == (2, 16)
    """

    def __init__(self) -> None:
        self._sum = 0
        self.records = 0

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Self:
        """Return the digest of these records."""
        digest = cls()
        for record in records:
            digest.add(record)
        return digest

    def add_all(self, records: int, value: bytes) -> None:
        """Add the records of another digest."""
        self._sum += int.from_bytes(value, "big")
        self.records += records

    def add(self, record: bytes) -> None:
        """Add one record, encoded as bytes."""
        self._sum += xxhash.xxh3_128_intdigest(record)
        self.records += 1

    def value(self) -> bytes:
        """Return the digest of the records added so far, 16 bytes."""
        return (self._sum % _MODULUS).to_bytes(16, "big")
