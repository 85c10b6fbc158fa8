"""The commit protocol of one lane: one sink partition's part of an epoch is one Kafka transaction.

For one lane of epoch *e* under owner *o* (the same steps as in `docs/protocol.md`):

1. Open a new producer with the lane's transactional id. ``init_transactions()`` (KIP-98) fences every earlier attempt
   and aborts its open transaction. The producer opens before the input is read, in parallel with Spark's work.
2. Read the tail of the lane's log partition. If its newest claim or marker is not of owner *o*: `Superseded`. If the
   partition still ends with the record that *o* itself wrote last, its end offset proves that without a read.
3. If the newest marker is for epoch *e*, the lane is published: write nothing, recompute the digest and compare
   (*replay audit*). If it is for a later epoch, or for other input: `CheckpointMismatch`.
4. Begin the transaction; produce the rows, then the marker; commit.
5. Retriable error: commit again. Aborted: the epoch fails. Fenced, timed out or fatal: open a new producer and read the
   tail. The marker of this attempt there proves the commit; otherwise the epoch fails and is replayed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from clonos.errors import CheckpointMismatch, CheckpointOutdated, EpochFailed, OutcomeUnknown
from clonos.extend.lanes import MultisetDigest, at_point, require_owner
from clonos.extend.sink import LaneReport, SinkEpoch, SinkLane
from clonos.log.control import lane_id
from clonos.log.reading import Tail
from clonos.log.records import EpochIdentity, Marker, encode
from clonos.log.transaction import TransactionalProducer, Unknown, dispose_opened
from clonos_sinks.kafka.rows import Row, identity
from clonos_sinks.kafka.targets import Limits, Targets

_PLACED_BY_KEY: Final = -1


class Lane(msgspec.Struct, frozen=True):
    """One lane of one epoch in a Spark task, with the settings of its Kafka transaction."""

    epoch: SinkEpoch
    assigned: SinkLane
    timeout_ms: int
    limits: Limits = Limits()  # record and request size limits of the cluster
    options: Mapping[str, str] = {}  # the sink's options of Kafka's producer

    @property
    def number(self) -> int:
        """The lane's number."""
        return self.assigned.number

    @property
    def identity(self) -> EpochIdentity:
        """Job, query and number of the epoch, and the owner that runs it."""
        return self.epoch.identity

    def __str__(self) -> str:
        """For messages: ``Lane 0 of orders``."""
        return f"Lane {self.number} of {self.identity.query}"

    def at_point(self, name: str) -> None:
        """Trigger the injected faults for this lane at a named point of the protocol, in tests (`clonos.faults`)."""
        at_point(name, self.epoch, self.assigned)


def publish(lane: Lane, rows: Iterator[Row], *, eager: bool) -> LaneReport:
    """Publish `rows` in one transaction, or compare them if an earlier attempt published the lane.

    Args:
        lane: The lane.
        rows: The lane's rows; read to the end, so that Spark commits its state.
        eager: Open the producer before the first row is known. A lane with input almost always has output.

    Raises:
        Superseded: A newer generation owns the lane.
        CheckpointMismatch: The lane's newest marker does not fit this epoch.
        OutcomeUnknown: The commit's outcome is unknown, and the log has no marker of this attempt.
        EpochFailed: The transaction was aborted.
    """
    with ThreadPoolExecutor(1, "clonos-lane") as opener:
        opening: Future[TransactionalProducer] | None = opener.submit(_open, lane) if eager else None
        producer: TransactionalProducer | None = None
        try:
            first = next(rows, None)
            if first is None:
                lane.at_point("state-committed")
                return LaneReport(lane.number, "empty", 0, b"")
            producer = opening.result() if opening else _open(lane)  # step 1
            opening = None
            lane.at_point("lane-initialised")
            tail = require_owner(lane.epoch, lane.assigned)  # step 2
            lane.at_point("lane-tail-read")
            published = published_marker(lane, tail) if tail else None  # step 3
            lane.at_point("lane-decided")
            if published is not None:
                return audit(lane, first, rows, published)
            try:
                return _commit(lane, producer, first, rows)
            except EpochFailed:
                require_owner(lane.epoch, lane.assigned, reread=True)  # Superseded, if a takeover fenced the producer
                raise
        finally:
            if opening is not None:
                opening.add_done_callback(dispose_opened)
            if producer is not None:
                producer.dispose()


def _open(lane: Lane) -> TransactionalProducer:
    return TransactionalProducer(
        lane.epoch.kafka,
        lane_id(lane.identity.job, lane.identity.query, lane.number),
        lane.identity.log_topic,
        timeout_ms=lane.timeout_ms,
        batch_bytes=lane.limits.batch,
        options=lane.options,
    )


def published_marker(lane: Lane, tail: Tail) -> Marker | None:
    """The marker that proves that this lane of this epoch is published; None if it is not.

    Raises:
        CheckpointMismatch: The newest marker is of a later epoch, or of this one with other input.
    """
    marker, epoch = tail.marker, lane.identity
    if marker is None or marker.owner.lineage != epoch.owner.lineage:
        return None
    if marker.epoch > epoch.epoch:
        raise CheckpointOutdated(f"{lane} already published epoch {marker.epoch}; this is epoch {epoch.epoch}.")
    if marker.epoch < epoch.epoch:
        return None
    read = lane.assigned.input_slice
    if (marker.input_slice, marker.query, marker.lane) != (read, epoch.query, lane.number):
        raise CheckpointMismatch(
            f"{lane} published epoch {epoch.epoch} from {marker.input_slice}, not {read}.",
            hint="the replay reads other input than the first attempt; do not change topics or options in between.",
        )
    return marker


def audit(lane: Lane, first: Row | None, rows: Iterator[Row], published: Marker) -> LaneReport:
    """Compare the rows of a replay with the rows that the marker `published` describes; writes nothing.

    Args:
        lane: The lane.
        first: The first row if the caller has taken it from `rows`, else None.
        rows: The other rows; read to the end.
        published: The marker.

    Returns:
        A report with the outcome ``audited``; `diverged` states whether the rows differ, apart from their order.
    """
    digest = MultisetDigest.of(map(identity, rows if first is None else itertools.chain([first], rows)))
    same = digest.value() == published.digest and digest.records == published.records
    return LaneReport(lane.number, "audited", digest.records, digest.value(), diverged=not same)


def _commit(lane: Lane, producer: TransactionalProducer, first: Row, rows: Iterator[Row]) -> LaneReport:
    digest = MultisetDigest()
    targets = Targets(lane.epoch.kafka, producer.producer, lane.limits)
    producer.begin()  # step 4
    try:
        lane.at_point("lane-begun")
        targets.admit(first)
        _produce(producer, first, digest)
        for row in rows:
            targets.admit(row)
            _produce(producer, row, digest)
            if digest.records == 2:
                lane.at_point("lane-produced")
        lane.at_point("state-committed")
        epoch = lane.identity
        marker = Marker(
            owner=epoch.owner,
            query=epoch.query,
            epoch=epoch.epoch,
            lane=lane.number,
            input_slice=lane.assigned.input_slice,
            records=digest.records,
            digest=digest.value(),
        )
        offsets: list[int] = []
        producer.produce(
            epoch.log_topic,
            encode(marker),
            partition=lane.assigned.log_partition,
            timestamp=time.time_ns() // 1_000_000,
            on_delivery=lambda error, message: None if error else offsets.append(message.offset()),
        )
    except BaseException:
        producer.abort()  # this may be the last attempt: readers would wait until the transaction times out
        raise
    lane.at_point("lane-marked")
    try:
        producer.commit()
    except Unknown as unknown:  # step 5
        _resolve(lane, marker, str(unknown))
    lane.at_point("lane-committed")
    offset = offsets[-1] if offsets else -1
    return LaneReport(lane.number, "published", digest.records, digest.value(), marker_offset=offset)


def _produce(producer: TransactionalProducer, row: Row, digest: MultisetDigest) -> None:
    producer.produce(
        row.topic,
        row.value,
        row.key,
        partition=_PLACED_BY_KEY if row.partition is None else row.partition,
        headers=list(row.headers) if row.headers else None,
        timestamp=row.timestamp or 0,
    )
    digest.add(identity(row))
    if digest.records % 1000 == 0:
        producer.producer.poll(0)


def _resolve(lane: Lane, marker: Marker, reason: str) -> None:
    """Read the outcome of an unknown commit from the log; returns if the commit happened.

    The marker's owner and digest identify this attempt. Without the marker the epoch must be replayed: the rows are
    consumed, so a second commit would publish a marker without them.
    """
    _open(lane).dispose()  # after this, the old transaction is either committed or aborted
    tail = require_owner(lane.epoch, lane.assigned, reread=True)
    if tail is None or tail.record != marker:
        raise OutcomeUnknown(f"{lane} was not committed in epoch {lane.identity.epoch}: {reason}.")
