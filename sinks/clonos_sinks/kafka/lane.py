"""The commit protocol of one lane: one sink partition's part of an epoch is one Kafka transaction.

For lane *p* of epoch *e* under owner *o*:

1. A new transactional producer with the lane's own id; ``init_transactions()`` fences every earlier attempt
   and aborts its open transaction. It is opened before input is read, so that this hides behind Spark's work.
2. Read the tail of the lane's log partition. Newest claim or marker not of owner *o* → `Superseded`. Where the
   partition still ends with what *o* itself wrote last, its end says so without reading.
3. The newest marker is for this very epoch → already published: write nothing, recompute the digest and
   compare (*replay audit*). It is for a later epoch, or holds something else → `CheckpointMismatch`.
4. begin; produce the rows, then the marker; commit.
5. Retriable → the same call again. Aborted → the epoch fails. Fatal, timed out or unknown → new producer,
   read the tail: a marker of mine means committed; otherwise the epoch fails and is replayed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from clonos.errors import CheckpointMismatch, CheckpointOutdated, EpochFailed, OutcomeUnknown
from clonos.faults import reach
from clonos.lanes import MultisetDigest
from clonos.log.control import lane_id
from clonos.log.reading import LogReader, Tail, shared_reader
from clonos.log.records import Held, Marker, Owner, encode
from clonos.log.transaction import TransactionalProducer, Unknown
from clonos.settings import KafkaSettings
from clonos.sinks import LaneReport
from clonos_sinks.kafka.rows import Row, identity
from clonos_sinks.kafka.targets import Limits, Targets

_PLACED_BY_KEY: Final = -1


class Lane(msgspec.Struct, frozen=True):
    """One lane of one epoch, and where its markers go."""

    kafka: KafkaSettings
    job: str
    sink: str
    topic: str
    owner: Owner
    query: str
    epoch: int
    lane: int
    held: Held
    partition: int
    timeout_ms: int
    replay: bool = False
    limits: Limits = Limits()
    known: int = -1

    def point(self, name: str) -> None:
        """Tell a test that this lane reached a point of the protocol."""
        reach(name, query=self.query, epoch=self.epoch, lane=self.lane, replay=self.replay)


def publish(lane: Lane, rows: Iterator[Row], *, eager: bool) -> LaneReport:
    """Publish `rows` once (the five steps of this module's docstring).

    Args:
        lane: Which lane.
        rows: Its output; consumed to the end, so that Spark's state is committed as well.
        eager: Open the producer before the first row is known (a lane with input almost always has output).

    Raises:
        Superseded: A newer generation owns the lane.
        CheckpointMismatch: The lane's newest marker does not fit this epoch.
        OutcomeUnknown: The commit's outcome was unknown and no marker of ours is there.
        EpochFailed: The transaction was aborted.
    """
    with ThreadPoolExecutor(1, "clonos-lane") as opener:
        opening: Future[TransactionalProducer] | None = opener.submit(_open, lane) if eager else None
        producer: TransactionalProducer | None = None
        try:
            first = next(rows, None)
            if first is None:
                lane.point("state-committed")
                return LaneReport(lane.lane, "empty", 0, b"")
            producer = opening.result() if opening else _open(lane)  # step 1
            opening = None
            lane.point("lane-initialised")
            reader = shared_reader(lane.kafka, lane.topic)
            tail = _own_tail(lane, reader, known=lane.known)  # step 2
            lane.point("lane-tail-read")
            published = published_marker(lane, tail) if tail else None  # step 3
            lane.point("lane-decided")
            if published is not None:
                return audit(lane, first, rows, published)
            try:
                return _commit(lane, producer, first, rows)
            except EpochFailed:
                _own_tail(lane, reader)  # fenced by a takeover: say that
                raise
        finally:
            if opening is not None:
                opening.add_done_callback(_dispose_opened)
            if producer is not None:
                producer.dispose()


def _open(lane: Lane) -> TransactionalProducer:
    return TransactionalProducer(
        lane.kafka,
        lane_id(lane.job, lane.sink, lane.lane),
        lane.topic,
        timeout_ms=lane.timeout_ms,
        batch_bytes=lane.limits.batch,
    )


def _dispose_opened(opening: Future[TransactionalProducer]) -> None:
    if opening.exception() is None:
        opening.result().dispose()


def _own_tail(lane: Lane, reader: LogReader, *, known: int = -1) -> Tail | None:
    return reader.own_tail(lane.partition, lane.owner, f"Lane {lane.lane} of {lane.query}", known=known)


def published_marker(lane: Lane, tail: Tail) -> Marker | None:
    """The marker that says this lane of this epoch is published; None if it is not.

    Raises:
        CheckpointMismatch: The newest marker is of a later epoch, or of this one with other input.
    """
    marker = tail.marker
    if marker is None or marker.owner.lineage != lane.owner.lineage:
        return None
    if marker.epoch > lane.epoch:
        raise CheckpointOutdated(
            f"Lane {lane.lane} of {lane.query} already published epoch {marker.epoch}; this is epoch {lane.epoch}."
        )
    if marker.epoch < lane.epoch:
        return None
    if (marker.held, marker.query, marker.lane) != (lane.held, lane.query, lane.lane):
        raise CheckpointMismatch(
            f"Lane {lane.lane} of {lane.query} published epoch {lane.epoch} from {marker.held}, not {lane.held}.",
            hint="the replay does not read what the first attempt read; do not change topics or options in between.",
        )
    return marker


def audit(lane: Lane, first: Row | None, rows: Iterator[Row], published: Marker) -> LaneReport:
    """Compare what a replay computes with what is published; writes nothing."""
    digest = MultisetDigest()
    if first is not None:
        digest.add(identity(first))
    for row in rows:
        digest.add(identity(row))
    same = digest.value() == published.digest and digest.records == published.records
    return LaneReport(lane.lane, "audited", digest.records, digest.value(), diverged=not same)


def _commit(lane: Lane, producer: TransactionalProducer, first: Row, rows: Iterator[Row]) -> LaneReport:
    digest = MultisetDigest()
    targets = Targets(lane.kafka, producer.producer, lane.limits)
    producer.begin()  # step 4
    try:
        lane.point("lane-begun")
        targets.admit(first)
        _produce(producer, first, digest)
        for row in rows:
            targets.admit(row)
            _produce(producer, row, digest)
            if digest.records == 2:
                lane.point("lane-produced")
        lane.point("state-committed")
        marker = Marker(
            lane.owner, lane.query, lane.epoch, lane.lane, lane.held, records=digest.records, digest=digest.value()
        )
        offsets: list[int] = []
        producer.produce(
            lane.topic,
            encode(marker),
            partition=lane.partition,
            timestamp=time.time_ns() // 1_000_000,
            on_delivery=lambda error, message: None if error else offsets.append(message.offset()),
        )
    except BaseException:
        producer.abort()  # this may have been the last attempt: readers would wait for its transaction to time out
        raise
    lane.point("lane-marked")
    try:
        producer.commit()
    except Unknown as unknown:  # step 5
        _resolve(lane, marker, str(unknown))
    lane.point("lane-committed")
    return LaneReport(lane.lane, "published", digest.records, digest.value(), offset=offsets[-1] if offsets else -1)


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


def _resolve(lane: Lane, marker: Marker, why: str) -> None:
    """Find out whether a commit of unknown outcome happened; returns if it did.

    The marker's digest and this attempt's owner make it recognisable. If it is not there the rows are
    consumed already, so committing again would publish a marker without them: the epoch must be replayed.
    """
    successor = _open(lane)  # whatever the old transaction was, it is committed or aborted after this
    successor.dispose()
    tail = _own_tail(lane, shared_reader(lane.kafka, lane.topic))
    if tail is None or tail.record != marker:
        raise OutcomeUnknown(f"Lane {lane.lane} of {lane.query} epoch {lane.epoch} was not committed: {why}.")
