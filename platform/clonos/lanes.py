"""Running a sink's lanes as Spark tasks: what most sinks need besides their own writing (`docs/sinks.md`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import pyarrow as pa
import xxhash
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from clonos.carried import carry, uncarry
from clonos.causal.scope import worker_kafka
from clonos.errors import ClonosError, EpochFailed, ReplayDivergence
from clonos.faults import reach
from clonos.log.reading import shared_reader
from clonos.settings import KafkaSettings
from clonos.sinks import LaneReport, SinkEpoch

Pass = Literal["publish", "audit"]
LaneWriter = Callable[[SinkEpoch, int, Iterator[pa.RecordBatch]], LaneReport]

# Not as text, which Spark would parse in each epoch.
_SCHEMA = StructType([StructField("report", BinaryType()), StructField("error", StringType())])
_ARROW = pa.schema([("report", pa.binary()), ("error", pa.string())])
_MODULUS = 1 << 128


def run_lanes(frame: DataFrame, epoch: SinkEpoch, write: LaneWriter) -> list[LaneReport]:
    """Run `write(epoch, lane, batches)` in the task of each lane and collect the reports, by lane.

    `write` is pickled; it must take its batches to the end, so that Spark's state is committed as well.

    Raises:
        ClonosError: What a lane raised; every other exception of a lane fails Spark's job.
        EpochFailed: A lane did not report.
    """
    # Settings hold a password: Python workers get them by environment, not inside the plan.
    shipped = msgspec.structs.replace(epoch, kafka=KafkaSettings())

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _run_lane(batches, shipped, write)

    reports = []
    for row in frame.mapInArrow(task, _SCHEMA).collect():
        if row.error is not None:
            raise uncarry(row.error) or EpochFailed(row.error)
        reports.append(msgspec.msgpack.decode(row.report, type=LaneReport))
    if len(reports) != len(epoch.held):
        raise EpochFailed(f"{len(reports)} of {len(epoch.held)} lanes of epoch {epoch.epoch} reported.")
    return sorted(reports, key=lambda report: report.lane)


def _run_lane(batches: Iterator[pa.RecordBatch], shipped: SinkEpoch, write: LaneWriter) -> pa.RecordBatch:
    context = TaskContext.get()
    if context is None:
        raise AssertionError("a lane is written by a Spark task")
    row: dict[str, bytes | str | None] = {"report": None, "error": None}
    try:
        epoch = msgspec.structs.replace(shipped, kafka=worker_kafka())
        row["report"] = msgspec.msgpack.encode(write(epoch, epoch.lanes[context.partitionId()], batches))
    except ClonosError as error:  # as a value, because Spark would only keep its text
        row["error"] = str(carry(error))
    return pa.RecordBatch.from_pylist([row], schema=_ARROW)


def publish_rest(
    frame: DataFrame, epoch: SinkEpoch, published: set[int], run: Callable[[DataFrame, Pass], list[LaneReport]]
) -> list[LaneReport]:
    """Publish the lanes of `epoch` that are not in `published`.

    Where an earlier attempt published some lanes and not others, those are audited before any other is published, on
    rows computed once: a contradiction must not get out.

    Args:
        frame: The epoch's output.
        epoch: Which epoch.
        published: Lanes that an earlier attempt published.
        run: Runs one pass over all lanes. ``publish`` leaves alone what is published, ``audit`` only compares.

    Raises:
        ReplayDivergence: A published lane differs from what this replay computes; nothing more was published.
    """
    if epoch.ended:
        return run(frame, "audit")
    if not published:
        return run(frame, "publish")
    if published.issuperset(epoch.lanes):
        return _sound(run(frame, "audit"), epoch)
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        audited = _sound(run(kept, "audit"), epoch)
        rest = run(kept, "publish")
    finally:
        kept.unpersist()
    return [first if first.lane in published else then for first, then in zip(audited, rest, strict=True)]


def _sound(audited: list[LaneReport], epoch: SinkEpoch) -> list[LaneReport]:
    wrong = [report.lane for report in audited if report.diverged]
    if wrong:
        raise ReplayDivergence(
            f"Epoch {epoch.epoch} of {epoch.query}: its replay differs from what lanes {wrong} published.",
            kept="the lanes not yet published were not published.",
        )
    return audited


def require_owner(epoch: SinkEpoch, lane: int) -> None:
    """Go on only if the newest claim or marker of the lane's log partition is this owner's.

    Raises:
        Superseded: It is a newer owner's.
        CausalLogDamaged: Nothing is there: never assume.
    """
    reader = shared_reader(epoch.kafka, epoch.topic)
    known = epoch.known[lane] if epoch.known else -1
    reader.own_tail(epoch.partitions[lane], epoch.owner, f"Lane {lane} of {epoch.query}", known=known)


def at_point(name: str, epoch: SinkEpoch, lane: int) -> None:
    """Tell a test that a lane reached a point of its protocol (`clonos.faults`)."""
    reach(name, query=epoch.query, epoch=epoch.epoch, lane=lane, replay=epoch.replay)


class MultisetDigest:
    """A digest of records as a multiset: the same for the same records in any order.

    The sum modulo 2^128 of a 128-bit hash of each; a sum, unlike an exclusive or, does not lose what appears twice.
    The hash (XXH3) is fast and not meant against an adversary: job authors are trusted.
    """

    def __init__(self) -> None:
        self._sum = 0
        self.records = 0

    def add(self, record: bytes) -> None:
        """Take in one record."""
        self._sum += xxhash.xxh3_128_intdigest(record)
        self.records += 1

    def value(self) -> bytes:
        """The digest so far, 16 bytes."""
        return (self._sum % _MODULUS).to_bytes(16, "big")
