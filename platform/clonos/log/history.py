"""The whole log of a job in order, for human eyes: every record with its place, and what is void said so.

It only reads: no consumer group is joined or committed, no transaction opened, so the job does not notice.
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

from clonos.errors import CausalLogDamaged, JobUnknown
from clonos.kafka import client_config, unanswered
from clonos.log.control import ControlState
from clonos.log.reading import LogReader
from clonos.log.records import (
    Allot,
    Claim,
    Determinants,
    End,
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
_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class Entered:
    """What stands at one offset of the log.

    Attributes:
        at: Kafka's timestamp, in ms.
        size: Bytes of the value.
        record: None where it is foreign.
        void: Why it counts for nothing; empty where it counts.
        foreign: Why it is not one of our records; empty where it is.
        start: The first bytes of what is foreign.
    """

    partition: int
    offset: int
    at: int
    size: int
    record: Record | None
    void: str = ""
    foreign: str = ""
    start: bytes = b""

    @property
    def kind(self) -> str:
        """``claim``, ``plan``, …, or ``foreign``."""
        return type(self.record).__name__.lower() if self.record is not None else "foreign"


Keep = Callable[[Entered], bool]


@dataclass
class _Partition:
    """What decides whether the next record of one partition is void."""

    number: int
    position: int = 0
    clock: int = 0
    newest: Owner | None = None
    newest_at: int = -1
    control: ControlState = field(default_factory=ControlState)

    def enter(self, offset: int, message: Message) -> Entered:
        value = message.value() or b""
        at = message.timestamp()[1]
        try:
            record = decode(message.value(), where=f"offset {offset}")
        except CausalLogDamaged as damage:
            return Entered(self.number, offset, at, len(value), None, foreign=damage.what, start=value[:16])
        if self.number == CONTROL:
            why = self.control.foreign(record)
            if why and isinstance(record, Claim):  # other records of an unknown owner are void below
                return Entered(
                    self.number, offset, at, len(value), None, foreign=f"offset {offset} is {why}", start=value[:16]
                )
            self.control.take(offset, record)
        void = self._void(record)
        # A claim and, in a lane, a marker say whose the partition is from here on (invariants 3 and 4).
        if isinstance(record, Claim | Marker):
            self.newest, self.newest_at = record.owner, offset
        return Entered(self.number, offset, at, len(value), record, void=void)

    def _void(self, record: Record) -> str:
        ruled = Determinants if self.number != CONTROL else Allot | Plan | End | Resolution
        if not isinstance(record, ruled) or record.owner == self.newest:
            return ""
        if self.newest is None:
            return "no claim before it"
        return f"{self.newest} owned the partition since offset {self.newest_at}"

    def ordered(self, entered: Iterable[Entered]) -> Iterator[tuple[int, int, int, Entered]]:
        """With keys to merge by: time, but never against the order of the partition."""
        for one in entered:
            self.clock = max(self.clock, one.at)
            yield self.clock, self.number, one.offset, one


@dataclass
class History:
    """Reads the log of one job from its beginning on.

    Raises:
        JobUnknown: It has no log.
        BrokerUnavailable: Kafka did not answer.
    """

    kafka: KafkaSettings
    job: str
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs = logged_jobs(self.kafka)
        if self.job not in jobs:
            known = ", ".join(sorted(jobs)) or "none"
            raise JobUnknown(f"The job {self.job!r} has no causal log in this Kafka.", hint=f"known jobs: {known}.")
        self._reader = LogReader(self.kafka, log_topic(self.job))
        self._admin = AdminClient(client_config(self.kafka))
        self._count = jobs[self.job]

    def read(self, keep: Keep, *, last: int | None = None) -> list[Entered]:
        """What is new since the last call, merged by time; only what `keep` wants, and of that the `last`."""
        found = []
        for number in range(self._count):
            partition = self._partitions.setdefault(number, _Partition(number))
            kept: deque[Entered] = deque(maxlen=last)
            kept.extend(one for one in self._new(partition) if keep(one))
            found.append(list(partition.ordered(kept)))
        merged = [entered for *_, entered in heapq.merge(*found)]
        return merged[-last:] if last else merged

    def follow(self, keep: Keep, stop: Event) -> Iterator[Entered]:
        """What `read` has not told yet, as it comes, until `stop`."""
        while not stop.wait(_LOOK_S):
            self._count = _partition_count(self._admin, log_topic(self.job)) or self._count
            yield from self.read(keep)

    def _new(self, partition: _Partition) -> Iterator[Entered]:
        low, end = self._reader.bounds(partition.number)
        start = max(low, partition.position)
        for offset, message in self._reader.messages(partition.number, start, end):
            yield partition.enter(offset, message)
        partition.position = max(start, end)

    def close(self) -> None:
        """Release the client."""
        self._reader.close()


def logged_jobs(kafka: KafkaSettings) -> dict[str, int]:
    """The jobs that have a causal log in this cluster, with its number of partitions.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
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
        known = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    except KafkaException:
        return 0  # the next look may tell
    return 0 if known.error else len(known.partitions)
