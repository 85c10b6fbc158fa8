"""Reads the whole causal log of a job in order, for people: every record with its position, and whether it is void.

Reading uses no consumer group and no transaction, so it does not affect the job.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import AdminClient

from clonos.errors import CausalLogDamaged, CausalLogMissing
from clonos.kafka import client_config, unanswered
from clonos.log.control import ControlState
from clonos.log.reading import LogReader
from clonos.log.records import (
    AssignLanes,
    Claim,
    Determinants,
    EpochCommitted,
    EpochParts,
    Marker,
    Owner,
    Plan,
    Record,
    Resolution,
    decode,
)
from clonos.log.topic import CONTROL, log_topic
from clonos.settings import KafkaSettings

_NAME: Final = re.compile(r"clonos\.([a-z0-9-]+)\.log")
_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.5


@dataclass(frozen=True)
class Entered:
    """One entry of the causal log: a record, or a foreign value that Clonos did not write."""

    partition: int
    offset: int
    at: int  # Kafka's timestamp, in ms
    size: int  # size of the value in bytes
    record: Record | None  # the record; None for a foreign value
    void: str = ""  # the reason why the protocol ignores the record; empty for a valid one
    foreign: str = ""  # the reason why the value is not a record of this log; empty for a record
    start: bytes = b""  # the first bytes of a foreign value

    @property
    def kind(self) -> str:
        """The kind of the record, such as ``claim`` or ``plan``; ``foreign`` for a foreign value."""
        return str(self.record.__struct_config__.tag) if self.record is not None else "foreign"


Keep = Callable[[Entered], bool]


@dataclass
class _Partition:
    """The state of one partition, which decides whether its next record is void."""

    number: int
    position: int = 0
    clock: int = 0
    newest: Owner | None = None
    newest_offset: int = -1
    control: ControlState = field(default_factory=ControlState)

    def enter(self, offset: int, message: Message) -> Entered:
        value = message.value() or b""
        at = message.timestamp()[1]
        try:
            record = decode(message.value(), where=f"offset {offset}")
        except CausalLogDamaged as damage:
            return Entered(self.number, offset, at, len(value), None, foreign=damage.what, start=value[:16])
        if self.number == CONTROL:
            reason = self.control.foreign(record)
            if reason and isinstance(record, Claim):  # other records of an unknown owner are void below
                return Entered(
                    self.number, offset, at, len(value), None, foreign=f"offset {offset} is {reason}", start=value[:16]
                )
            self.control.take(offset, record)
        void = self._void(record)
        # The owner of a claim or, in a lane, of a marker owns the partition from there on (invariants 3 and 4).
        if isinstance(record, Claim | Marker):
            self.newest, self.newest_offset = record.owner, offset
        return Entered(self.number, offset, at, len(value), record, void=void)

    def _void(self, record: Record) -> str:
        control = AssignLanes | Plan | EpochParts | EpochCommitted | Resolution
        owned = Determinants if self.number != CONTROL else control
        if not isinstance(record, owned) or record.owner == self.newest:
            return ""
        if self.newest is None:
            return "no claim before it"
        return f"{self.newest} owned the partition since offset {self.newest_offset}"

    def ordered(self, entered: Iterable[Entered]) -> Iterator[tuple[int, int, int, Entered]]:
        """Entries with their merge keys: time, without breaking the order of the partition."""
        for entry in entered:
            self.clock = max(self.clock, entry.at)
            yield self.clock, self.number, entry.offset, entry


@dataclass
class History:
    """Reads the causal log of one job from its beginning.

    Raises:
        CausalLogMissing: The job has no log.
        BrokerUnavailable: Kafka did not answer.
    """

    kafka: KafkaSettings
    job: str
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs = logged_jobs(self.kafka)
        if self.job not in jobs:
            names = ", ".join(sorted(jobs)) or "none"
            raise CausalLogMissing(
                f"The job {self.job!r} has no causal log in this Kafka.", hint=f"known jobs: {names}."
            )
        self._reader = LogReader(self.kafka, log_topic(self.job))
        self._admin = AdminClient(client_config(self.kafka))
        self._count = jobs[self.job]

    def read(self, keep: Keep, *, last: int | None = None) -> list[Entered]:
        """Return the new entries since the previous call, in order of time.

        Args:
            keep: Selects the entries to return.
            last: Return only the newest of the filtered entries, at most this number.
        """
        partitions = []
        for number in range(self._count):
            partition = self._partitions.setdefault(number, _Partition(number))
            entries: deque[Entered] = deque(maxlen=last)
            entries.extend(entry for entry in self._new(partition) if keep(entry))
            partitions.append(list(partition.ordered(entries)))
        merged = [entry for *_, entry in heapq.merge(*partitions)]
        return merged[-last:] if last else merged

    def follow(self, keep: Keep, stop: Event) -> Iterator[Entered]:
        """Yield further entries as they arrive, until `stop` is set."""
        while not stop.wait(_POLL_S):
            self._count = _partition_count(self._admin, log_topic(self.job)) or self._count
            yield from self.read(keep)

    def _new(self, partition: _Partition) -> Iterator[Entered]:
        low, end = self._reader.bounds(partition.number)
        start = max(low, partition.position)
        for offset, message in self._reader.messages(partition.number, start, end):
            yield partition.enter(offset, message)
        partition.position = max(start, end)

    def close(self) -> None:
        """Close the Kafka consumer."""
        self._reader.close()


def logged_jobs(kafka: KafkaSettings) -> dict[str, int]:
    """Return the jobs with a causal log in this Kafka cluster: name → number of partitions of the log."""
    try:
        topics = AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return {
        named.group(1): len(topic.partitions)
        for name, topic in sorted(topics.items())
        if (named := _NAME.fullmatch(name)) and topic.error is None
    }


def _partition_count(admin: AdminClient, topic: str) -> int:
    try:
        metadata = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    except KafkaException:
        return 0  # retried at the next poll
    return 0 if metadata.error else len(metadata.partitions)
