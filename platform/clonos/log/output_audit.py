"""Audits a job's output from outside: what `read_committed` readers see must be what the markers say was published.

Each marker holds the number of records of its lane and their multiset digest, which is a sum. So the sum over the
markers of some epochs equals the digest of the records that these epochs published. A reader does not see where an
epoch ends. The auditor therefore compares the state of the output at several moments, *snapshots*, with the sums up to
each committed epoch. Two snapshots that have the same distance from two epochs prove all epochs between these: a record
that was published twice, or not at all, or with other content, would change the distance.

If neither the log nor the output was truncated, the beginning of both is the first such pair.

The sum is the second half of `clonos.RecordDigest` (Java): it covers topic, key, value and headers. It leaves out
partition and timestamp, because a reader cannot see whether a row or Kafka chose them. Incremental hashes of multisets:
Clarke et al., ASIACRYPT 2003. XXH64 does not resist an adversary: who may write to the output topic could forge records
with an equal sum.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from clonos.errors import BrokerUnavailable
from clonos.kafka import client_config, unanswered
from clonos.log.history import Entered, History
from clonos.log.records import Claim, EpochCommitted, Marker, Plan
from clonos.log.topic import CONTROL
from clonos.partition_offsets import partition_bounds
from clonos.settings import KafkaSettings

_SEED: Final = 0x9E3779B97F4A7C15
_MODULUS: Final = 1 << 64
_NOTHING: Final = struct.pack("<i", -1)
_TIMEOUT_S: Final = 20.0
_PAUSE_S: Final = 0.2
_GRACE_S: Final = 10.0  # after the observation, for a snapshot between two epochs

# Called with the number of records that were read so far, and of those to read.
OnRead = Callable[[int, int], None]


class Sum(NamedTuple):
    """The number of some records, and the sum of the hashes of their contents."""

    records: int = 0
    digest: int = 0

    def plus(self, other: Sum) -> Sum:
        """The sum of two multisets."""
        return Sum(self.records + other.records, (self.digest + other.digest) % _MODULUS)

    def minus(self, other: Sum) -> Sum:
        """The distance from another multiset."""
        return Sum(self.records - other.records, (self.digest - other.digest) % _MODULUS)


class CommittedEpoch(NamedTuple):
    """A committed epoch of the causal log, and the sum of the markers of all epochs up to it."""

    query: str
    epoch: int
    total: Sum


@dataclass(frozen=True)
class OutputAudit:
    """The result of an audit.

    Attributes:
        verified: Query → first and last epoch that is proved. Empty: none.
        records: Number of records that these epochs published.
        repeated: Lanes that have two markers for one epoch, as ``query epoch N lane M``: they were published twice.
        incomplete: Committed epochs whose markers have fewer records than their commit, as ``query epoch N``.
        distance: For an output and a log that are complete, and contradict each other: number of records that were
            published more (above 0) or less than the markers say; 0: as many, with other content. None otherwise.
        reason: Why nothing was proved, or not the newest epochs; empty if everything observed was.
    """

    verified: dict[str, tuple[int, int]] = field(default_factory=dict)
    records: int = 0
    repeated: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    distance: int | None = None
    reason: str = ""

    @property
    def clean(self) -> bool:
        """Whether epochs are proved up to the newest one, and nothing contradicts the log."""
        return bool(self.verified) and not (self.repeated or self.incomplete or self.reason)

    @property
    def contradicted(self) -> bool:
        """Whether something contradicts the log. Neither this nor `clean`: not enough was proved."""
        return bool(self.repeated or self.incomplete or self.distance is not None)


def content_hash(message: Message) -> int:
    """The hash of a record's topic, key, value and headers."""
    state = _field(message.topic(), _SEED)
    state = _field(message.value(), _field(message.key(), state))
    for header in message.headers() or []:
        state = _field(header[1], _field(header[0], state))
    return state


def _field(data: bytes | str | None, seed: int) -> int:
    """The hash of one field: its length, then its bytes."""
    if data is None:
        return xxhash.xxh64_intdigest(_NOTHING, seed)
    raw = data.encode() if isinstance(data, str) else data
    return xxhash.xxh64_intdigest(raw, xxhash.xxh64_intdigest(struct.pack("<i", len(raw)), seed))


class _Output:
    """Reads the topics from their first offsets, and adds up what it has read."""

    def __init__(self, kafka: KafkaSettings, topics: Collection[str], on_read: OnRead) -> None:
        self.topics = sorted(topics)
        self._on_read = on_read
        self._consumer = Consumer(
            client_config(
                kafka,
                group_id="clonos-audit",  # never joined, never committed
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
            )
        )
        self._positions: dict[tuple[str, int], int] = {}
        self._first = 0  # sum of the partitions' first offsets
        self._sum = Sum()
        self.complete = True  # whether the topics hold all records that were ever written to them
        for topic, partition in self._partitions():
            low, _ = self._bounds(topic, partition)
            self._positions[topic, partition] = low
            self._first += low
            self.complete = self.complete and low == 0

    def _partitions(self) -> Iterator[tuple[str, int]]:
        for topic in self.topics:
            try:
                metadata = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            except KafkaException as error:
                raise unanswered("Kafka did not answer", error.args[0]) from error
            if metadata.error is not None and metadata.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise unanswered(f"{topic} cannot be read", metadata.error)
            if metadata.error is not None:  # it was deleted, for instance an earlier topic of dead letters
                self.complete = False
            for partition in metadata.partitions:
                yield topic, partition

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            return partition_bounds(self._consumer, topic, partition, timeout_s=_TIMEOUT_S)
        except KafkaException as error:
            raise unanswered(f"{topic}[{partition}] cannot be read", error.args[0]) from error

    def snapshot(self) -> Sum:
        """Read up to the last stable offsets of now; the sum of all records so far."""
        ends = {place: self._bounds(*place)[1] for place in self._positions}
        due = {place: end for place, end in ends.items() if self._positions[place] < end}
        if due:
            self._consumer.assign([TopicPartition(*place, self._positions[place]) for place in due])
            deadline = time.monotonic() + _TIMEOUT_S
            while due:
                for message in self._consumer.consume(num_messages=500, timeout=0.1):
                    deadline = time.monotonic() + _TIMEOUT_S
                    self._take(message, due)
                self._on_read(sum(self._positions.values()) - self._first, sum(ends.values()) - self._first)
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"{sorted(due)[0][0]} was not read to its end in {_TIMEOUT_S:.0f} s.")
            self._consumer.unassign()
        return self._sum

    def _take(self, message: Message, due: dict[tuple[str, int], int]) -> None:
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise unanswered(f"{place[0]}[{place[1]}] cannot be read", error)
        end = due.get(place)
        if end is None:
            return
        if error is None and offset < end:
            self._sum = self._sum.plus(Sum(1, content_hash(message)))
        self._positions[place] = min(end, offset if error is not None else offset + 1)
        if self._positions[place] >= end:
            self._positions[place] = end
            del due[place]

    def close(self) -> None:
        self._consumer.close()


_EpochKey = tuple[int, str, int]  # lineage, query, epoch


def _key(record: Marker | EpochCommitted) -> _EpochKey:
    return record.owner.lineage, record.query, record.epoch


class _Log:
    """The committed epochs of a job's causal log, in the order of their commits, with the sums of their markers."""

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self._history = History(kafka, job)
        self._markers: dict[_EpochKey, dict[int, Marker]] = {}
        self._waiting: list[EpochCommitted] = []
        self._counted: set[_EpochKey] = set()
        self.at_least_once = False  # whether a query delivers so: it writes no markers
        self.epochs = [CommittedEpoch("", -1, Sum())]
        self.repeated: list[str] = []
        self.incomplete: list[str] = []
        self.topics: set[str] = set()
        self._sources: dict[str, set[str]] = {}
        self._lineage = 0
        self.complete = False
        self._begun: dict[int, bool] = {}  # log partition → whether its first record was at offset 0

    def update(self) -> None:
        """Read what was written since the last call."""
        commits: list[EpochCommitted] = []
        first = self._lineage == 0  # the first record of a log is a claim

        def take(entered: Entered) -> bool:
            record = entered.record
            if entered.partition not in self._begun:
                self._begun[entered.partition] = entered.offset == 0
                # A truncation of lanes may leave control as it is: plans of another query retain it.
                whole = all(self._begun.values())
                if entered.partition != CONTROL:
                    self.complete = self.complete and whole
                elif first:
                    self.complete = whole and isinstance(record, Claim)
            if record is None or entered.void:
                return False
            match record:
                case Claim():
                    self.topics |= record.topic_ids.keys()
                    self._begin(record.owner.lineage)
                    if record.marker is not None:
                        self._add(record.marker)
                case Plan():
                    self.topics |= record.topic_ids.keys()
                    self.at_least_once |= record.delivery == "at-least-once"
                    read = self._sources.setdefault(record.query, set())
                    read |= {part.topic for scan in record.scans for part in scan}
                case Marker():
                    self._add(record)
                case EpochCommitted():
                    # A truncation repeats the commits of queries without new epochs.
                    if _key(record) not in self._counted:
                        commits.append(record)
            return False

        self._history.read(take)
        self._waiting += commits
        self._count()

    def _begin(self, lineage: int) -> None:
        if lineage > self._lineage > 0:
            self.complete = False  # a start from an older point publishes epochs again
        self._lineage = max(self._lineage, lineage)

    def _add(self, marker: Marker) -> None:
        if _key(marker) in self._counted:
            return
        lanes = self._markers.setdefault(_key(marker), {})
        known = lanes.get(marker.lane)
        if known is not None and known != marker:  # a claim repeats the newest marker as it is
            self.repeated.append(f"{marker.query} epoch {marker.epoch} lane {marker.lane}")
        lanes[marker.lane] = marker

    def _count(self) -> None:
        """Add the committed epochs whose markers are visible."""
        if not self.complete and len(self.epochs) == 1:
            del self._waiting[: self._truncated()]
        while self._waiting:
            commit = self._waiting[0]
            published = self._published(commit)
            if published.records < commit.records:
                return
            del self._waiting[0]
            self._markers.pop(_key(commit), None)
            self._counted.add(_key(commit))
            self.epochs.append(CommittedEpoch(commit.query, commit.epoch, self.epochs[-1].total.plus(published)))

    def _truncated(self) -> int:
        """The number of oldest commits without all their markers.

        Each query's lanes are truncated on their own, so the oldest commits with markers of one query may precede the
        newest commits without markers of another.
        """
        begun: set[str] = set()  # queries of which a commit has its markers
        truncated = 0
        for number, commit in enumerate(self._waiting, 1):
            if commit.query in begun or not commit.records:
                continue
            if self._published(commit).records >= commit.records:
                begun.add(commit.query)
            else:
                truncated = number
        return truncated

    def _published(self, commit: EpochCommitted) -> Sum:
        published = Sum()
        for marker in self._markers.get(_key(commit), {}).values():
            published = published.plus(Sum(marker.records, int.from_bytes(marker.digest[8:])))
        return published

    def give_up(self) -> None:
        """Count the epochs that still miss markers as incomplete."""
        self.incomplete += [f"{commit.query} epoch {commit.epoch}" for commit in self._waiting]

    @property
    def outputs(self) -> set[str]:
        """The topics to which the job's sinks publish, as far as the log names them; empty if one query may read what
        another publishes.
        """
        sources = set[str]().union(*self._sources.values())
        alike = all(read == sources for read in self._sources.values())
        return self.topics - sources if alike else set()

    def close(self) -> None:
        self._history.close()


def audit_output(
    kafka: KafkaSettings,
    job: str,
    *,
    topics: Collection[str] = (),
    seconds: float = 10.0,
    on_read: OnRead = lambda _read, _total: None,
) -> OutputAudit:
    """Audit the output of a job.

    Args:
        kafka: The Kafka cluster of the log and of the output.
        job: The job's name.
        topics: All topics to which the job publishes; empty: those that the causal log names. No other program may
            write to them.
        seconds: How long to observe a running job. A log and an output that are complete need one look.
        on_read: Called while the output is read, with the number of records that were read, and of all.

    Raises:
        CausalLogMissing: The job has no log.
        BrokerUnavailable: Kafka did not answer.

    Example:
        >>> audit_output(KafkaSettings(), "words").clean  # doctest: +SKIP
        True
    """
    log = _Log(kafka, job)
    try:
        log.update()
        names = set(topics) or log.outputs
        if not names:
            return OutputAudit(
                reason="The causal log does not show which topics are the sinks': name all of them with --topic."
            )
        if log.at_least_once:
            return OutputAudit(reason="The job delivers at least once, as configured: it writes no markers.")
        output = _Output(kafka, names, on_read)
        try:
            return _observe(log, output, seconds)
        finally:
            output.close()
    finally:
        log.close()


def _observe(log: _Log, output: _Output, seconds: float) -> OutputAudit:
    snapshots = [Sum()] if output.complete else []
    deadline = time.monotonic() + seconds
    while True:
        snapshots.append(output.snapshot())
        log.update()
        late = time.monotonic() > deadline
        whole = log.complete and output.complete
        if whole or late:
            fit = _fit(log.epochs, snapshots, whole=whole)
            # The newest snapshot may be in the middle of an epoch: then another one is taken.
            if fit.newest or time.monotonic() > deadline + _GRACE_S:
                log.give_up()
                return _result(log, output.topics, snapshots, fit, whole=whole)
        time.sleep(_PAUSE_S)


class _Fit(NamedTuple):
    """The snapshots and epochs of one distance: the epochs, in order, and whether the newest snapshot is among them."""

    epochs: list[CommittedEpoch]
    newest: bool


def _fit(epochs: Sequence[CommittedEpoch], snapshots: Sequence[Sum], *, whole: bool) -> _Fit:
    """The distance that spans the most records; with `whole`, the distance 0."""
    fits: dict[Sum, list[CommittedEpoch]] = {}
    for epoch in epochs:
        for snapshot in dict.fromkeys(snapshots):
            fits.setdefault(snapshot.minus(epoch.total), []).append(epoch)
    best = _Fit([], newest=False)
    for distance, same in fits.items():
        if _span(same) > _span(best.epochs) and (distance == Sum() or not whole):
            best = _Fit(same, newest=snapshots[-1].minus(same[-1].total) == distance)
    return best


def _result(log: _Log, topics: Sequence[str], snapshots: Sequence[Sum], fit: _Fit, *, whole: bool) -> OutputAudit:
    repeated, incomplete = tuple(log.repeated), tuple(log.incomplete)
    distance = None
    if whole and not fit.newest and len(log.epochs) > 1:
        distance = snapshots[-1].records - log.epochs[-1].total.records
    if not _span(fit.epochs):
        return OutputAudit({}, 0, repeated, incomplete, distance, _reason(log, topics, snapshots, distance))
    first, last = (log.epochs.index(epoch) for epoch in (fit.epochs[0], fit.epochs[-1]))
    reason = (
        ""
        if fit.newest
        else f"Of later epochs, no moment of the output fits. {_reason(log, topics, snapshots, distance)}"
    )
    records = fit.epochs[-1].total.records - fit.epochs[0].total.records
    return OutputAudit(_ranges(log.epochs[first + 1 : last + 1]), records, repeated, incomplete, distance, reason)


def _reason(log: _Log, topics: Sequence[str], snapshots: Sequence[Sum], distance: int | None) -> str:
    if len(log.epochs) == 1:
        return "No committed epoch is in the causal log."
    if distance == 0:
        return f"{', '.join(topics)}: as many records as the markers say, with other content."
    if distance is not None:
        records = "1 record" if abs(distance) == 1 else f"{abs(distance)} records"
        if distance > 0:
            hint = "If another program writes to one of them, name the topics of this job alone with --topic."
        else:
            hint = "If the job publishes to other topics too, name all of them with --topic."
        return f"{', '.join(topics)}: {records} {'more' if distance > 0 else 'less'} than the markers say. {hint}"
    if len({*snapshots} - {Sum()}) == 1:  # a complete output has one at its beginning, too
        return "Nothing was published during the audit, and older records or markers were deleted."
    return "No moment of the output fits the markers: another program may write to the topics, or records differ."


def _span(pairs: Sequence[CommittedEpoch]) -> int:
    """The number of records between the first and the last of the pairs."""
    return pairs[-1].total.records - pairs[0].total.records if pairs else 0


def _ranges(epochs: Iterable[CommittedEpoch]) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    for ended in epochs:
        first, _ = ranges.get(ended.query, (ended.epoch, 0))
        ranges[ended.query] = (first, ended.epoch)
    return ranges
