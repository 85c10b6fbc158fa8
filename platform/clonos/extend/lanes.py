"""Runs a sink's lanes as Spark tasks: the parts that most sinks share (`docs/sinks.md`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Self

import msgspec
import pyarrow as pa
import xxhash
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from clonos.carried_errors import carry, uncarry
from clonos.causal.epoch_scope import COMPUTED, worker_kafka
from clonos.errors import ClonosError, EpochFailed, ReplayDivergence
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.faults import reach
from clonos.log.reading import Tail, shared_reader
from clonos.log.records import EpochIdentity
from clonos.log.topic import CONTROL
from clonos.resolve_command import resolve_command
from clonos.settings import KafkaSettings

Pass = Literal["publish", "audit"]
LaneWriter = Callable[[SinkEpoch, SinkLane, Iterator[pa.RecordBatch]], LaneReport]

# A StructType, because Spark would parse a DDL string in each epoch.
_SCHEMA = StructType([StructField("report", BinaryType()), StructField("error", StringType())])
_ARROW = pa.schema([("report", pa.binary()), ("error", pa.string())])
_MODULUS = 1 << 128


def run_lanes(frame: DataFrame, epoch: SinkEpoch, write: LaneWriter) -> list[LaneReport]:
    """Run `write(epoch, lane, batches)` in the task of each lane.

    Args:
        frame: The epoch's rows, with one partition for each lane.
        epoch: The epoch.
        write: Publishes one lane. It is pickled, and must read its Arrow batches to the end: Spark commits its state
            with the last batch.

    Returns:
        The reports, by lane number.

    Raises:
        ClonosError: A lane raised it. Every other exception of a lane fails Spark's job.
        EpochFailed: A lane did not report.
    """
    # The settings hold a password: workers get them from the environment, not from the plan.
    shipped = msgspec.structs.replace(epoch, kafka=KafkaSettings())

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _run_lane(batches, shipped, write)

    reports = []
    for row in frame.mapInArrow(task, _SCHEMA).collect():
        if row.error is not None:
            raise uncarry(row.error) or EpochFailed(row.error)
        reports.append(msgspec.msgpack.decode(row.report, type=LaneReport))
    if len(reports) != len(epoch.lanes):
        raise EpochFailed(f"{len(reports)} of {len(epoch.lanes)} lanes of epoch {epoch.identity.epoch} reported.")
    return sorted(reports, key=lambda report: report.lane)


def _run_lane(batches: Iterator[pa.RecordBatch], shipped: SinkEpoch, write: LaneWriter) -> pa.RecordBatch:
    context = TaskContext.get()
    if context is None:
        raise AssertionError("a lane is written by a Spark task")
    if context.attemptNumber() > 0:
        raise carry(EpochFailed("Spark repeated a task of the epoch."))  # the first attempt may have published the lane
    row: dict[str, bytes | str | None] = {"report": None, "error": None}
    try:
        epoch = msgspec.structs.replace(shipped, kafka=worker_kafka())
        row["report"] = msgspec.msgpack.encode(write(epoch, epoch.lane_of(context.partitionId()), batches))
    except ClonosError as error:  # returned as a value, because Spark keeps only the text of an exception
        row["error"] = str(carry(error))
    return pa.RecordBatch.from_pylist([row], schema=_ARROW)


def publish_rest(
    frame: DataFrame, epoch: SinkEpoch, published: set[int], run: Callable[[DataFrame, Pass], list[LaneReport]]
) -> list[LaneReport]:
    """Publish the lanes of `epoch` that are not in `published`.

    If an earlier attempt published some of the lanes, those are audited first, on rows computed once. So a replay that
    contradicts them publishes nothing (`docs/adr/0004-persist-partial-replay.md`).

    Args:
        frame: The epoch's rows.
        epoch: The epoch. If it is committed, its lanes are only audited.
        published: Numbers of the lanes that an earlier attempt published.
        run: Runs one pass over all lanes: ``publish`` skips the published lanes, ``audit`` only compares.

    Returns:
        The reports, by lane number.

    Raises:
        ReplayDivergence: A published lane of an epoch without a commit differs from this replay. No further lane was
            published.
    """
    if epoch.committed:
        return run(frame, "audit")
    if not published:
        return run(frame, "publish")
    if published.issuperset(lane.number for lane in epoch.lanes):
        return require_equal(run(frame, "audit"), epoch)
    persisted = frame.persist(StorageLevel.MEMORY_AND_DISK)
    context = frame.sparkSession.sparkContext
    try:
        audited = require_equal(run(persisted, "audit"), epoch)
        context.setLocalProperty(COMPUTED, "true")  # the rows of a lost executor fail the epoch
        rest = run(persisted, "publish")
    finally:
        context.setLocalProperty(COMPUTED, None)  # type: ignore[arg-type]
        persisted.unpersist()
    return [audit if audit.lane in published else report for audit, report in zip(audited, rest, strict=True)]


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
    """The error for a replay that differs from published lanes.

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
        """The digest of these records."""
        digest = cls()
        for record in records:
            digest.add(record)
        return digest

    def add(self, record: bytes) -> None:
        """Add one record, encoded as bytes."""
        self._sum += xxhash.xxh3_128_intdigest(record)
        self.records += 1

    def value(self) -> bytes:
        """The digest of the records added so far, 16 bytes."""
        return (self._sum % _MODULUS).to_bytes(16, "big")
