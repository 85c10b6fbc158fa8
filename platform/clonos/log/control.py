"""The control partition (partition 0) of the causal log: the state that its records describe, and the writer of
the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from clonos.errors import CausalLogDamaged, EpochFailed, ForeignRecord, Superseded
from clonos.kafka import topics_missing
from clonos.log.reading import SINGLE_RECORD_TRANSACTION, LogReader, Positioned
from clonos.log.records import (
    AssignLanes,
    Claim,
    EpochCommitted,
    EpochParts,
    LaneAssignment,
    Owner,
    Plan,
    Record,
    Resolution,
    encode,
)
from clonos.log.topic import CONTROL, log_deleted, log_topic
from clonos.log.transaction import Aborted, TransactionalProducer, Unknown
from clonos.settings import KafkaSettings

RETAINED_EPOCHS: Final = 100


@dataclass
class ControlState:
    """The state that the records of the control partition describe, in order."""

    claim: Claim | None = None
    owners: set[Owner] = field(default_factory=set)  # the owners of all claims
    lanes: dict[tuple[str, int], int] = field(default_factory=dict)  # (sink, lane) → log partition
    # (query, epoch) → (offset, plan), of the newest lineage and of the newest epochs only.
    plans: dict[tuple[str, int], tuple[int, Plan]] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)  # query → newest committed epoch
    # Query → commit record of its newest committed epoch.
    commits: dict[str, EpochCommitted] = field(default_factory=dict)
    # Query → records per second that it reads from each source, in the fastest of its newest committed epochs.
    speeds: dict[str, float] = field(default_factory=dict)
    # (query, epoch) → the user's decision about an epoch in doubt.
    resolutions: dict[tuple[str, int], Resolution] = field(default_factory=dict)
    # (query, epoch) → the parts of an epoch in doubt, which its sink commits.
    parts: dict[tuple[str, int], EpochParts] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)  # hash of an owner's code → its parts
    topic_ids: dict[str, str] = field(default_factory=dict)  # topic → Kafka's id of it, of the newest lineage
    dropped: frozenset[str] = frozenset()  # queries that the job had before, and dropped

    @property
    def owner(self) -> Owner | None:
        """The owner that wrote the newest claim; None before the first claim."""
        return self.claim.owner if self.claim else None

    def fold(self, records: Iterable[Positioned]) -> ControlState:
        """Update the state with `records`, and return it.

        A record is void if the newest claim before it has another owner (invariant 4).
        """
        for offset, record in records:
            self.take(offset, record)
        return self

    def take(self, offset: int, record: Record) -> None:
        """Update the state with one record; a void record changes nothing."""
        match record:
            case Claim():
                if self.claim and record.owner.lineage != self.claim.owner.lineage:
                    # Plans and commits of the old lineage do not apply to the epochs of a new one.
                    self.plans.clear()
                    self.committed.clear()
                    self.commits.clear()
                    self.resolutions.clear()
                    self.parts.clear()
                    self.topic_ids.clear()
                self.claim = record
                self.codes[record.code] = record.code_parts
                self.topic_ids |= record.topic_ids
                self.dropped = frozenset(record.dropped)
                self.owners.add(record.owner)
                self._assign(record.assignments)
                for query, epoch in record.committed.items():
                    self.committed[query] = max(epoch, self.committed.get(query, -1))
            case AssignLanes() if record.owner == self.owner:
                self._assign(record.assignments)
            case Plan() if record.owner == self.owner:
                self.plans.setdefault((record.query, record.epoch), (offset, record))
                self.plans.pop((record.query, record.epoch - 2 * RETAINED_EPOCHS), None)
                self.topic_ids |= record.topic_ids
            case EpochParts() if record.owner == self.owner:
                self.parts[record.query, record.epoch] = record
            case EpochCommitted() if record.owner == self.owner:
                self.committed[record.query] = max(record.epoch, self.committed.get(record.query, -1))
                self.commits[record.query] = record
                self.parts.pop((record.query, record.epoch), None)
                plan = self.plan(record.query, record.epoch)
                if plan is not None and plan.live and record.offsets:
                    offset_of_plan, _ = self.plans[record.query, record.epoch]
                    plan = replace(plan, offsets=record.offsets)
                    self.plans[record.query, record.epoch] = offset_of_plan, plan
                if plan is not None and plan.records and record.duration_ms:
                    # Epochs with few records are slower for each: the fastest of the newest epochs counts.
                    speed = plan.records / len(set(plan.scans)) * 1000 / record.duration_ms
                    self.speeds[record.query] = max(speed, 0.9 * self.speeds.get(record.query, 0.0))
            case Resolution() if record.owner == self.owner:
                # A marker of the deciding owner, or of a later one, carries the decision out (`SinkEpoch.counts`).
                decided = replace(record, owner=record.decided_by or record.owner, decided_by=None)
                self.resolutions[record.query, record.epoch] = decided
            case _:
                return

    def foreign(self, record: Record) -> str:
        """Return the reason why no driver of this job can have written `record` after this state; empty if one can.

        A claim names the claim that it follows: the newest, or an earlier one if the newest became visible late because
        of a broker's crash.
        """
        if isinstance(record, Claim):
            if not self.owners or record.owner in self.owners:
                return ""
            if any(self._follows(record, owner) for owner in self.owners):
                return ""
            return f"a claim of {record.owner} that does not follow a claim of this log"
        return "" if record.owner in self.owners else f"a record of {record.owner}, which never claimed the log"

    @staticmethod
    def _follows(claim: Claim, earlier: Owner) -> bool:
        if claim.follows:
            return claim.follows == earlier.claim_id
        # A claim without `follows`: a first claim of the job, if a crash made another first claim visible late.
        generation = (claim.owner.lineage, claim.owner.generation)
        return (
            generation in {(1, 1), (earlier.lineage, earlier.generation + 1)}
            or claim.owner.lineage == earlier.lineage + 1
        )

    def _assign(self, assignments: Iterable[LaneAssignment]) -> None:
        for assignment in assignments:
            self.lanes[assignment.sink, assignment.lane] = assignment.partition

    def plan(self, query: str, epoch: int) -> Plan | None:
        """Return the plan of an epoch; None if the log holds none."""
        entry = self.plans.get((query, epoch))
        return entry[1] if entry else None

    def newest_plan(self, query: str) -> int:
        """Return the newest planned epoch of `query`; -1 if none."""
        return max((epoch for name, epoch in self.plans if name == query), default=-1)

    def plans_beyond(self, query: str, epoch: int) -> list[int]:
        """Return the planned epochs of `query` after `epoch`, ascending."""
        return sorted(planned for name, planned in self.plans if name == query and planned > epoch)

    def assignments(self) -> tuple[LaneAssignment, ...]:
        """All lane assignments, in the form that a claim repeats."""
        return tuple(LaneAssignment(sink, lane, partition) for (sink, lane), partition in sorted(self.lanes.items()))


def read_control(reader: LogReader) -> ControlState:
    """Read the whole control partition, which truncation keeps short, and return the state."""
    return ControlFollower().catch_up(reader)


class ControlFollower:
    """Keeps the state of the control partition in memory. Each call of `catch_up` reads only the new records."""

    def __init__(self) -> None:
        self._state = ControlState()
        self._next = 0

    def catch_up(self, reader: LogReader) -> ControlState:
        """Read the new records of the control partition up to its end, and return the state.

        Raises:
            CausalLogDamaged: Control was truncated and holds no claim.
            ForeignRecord: Another program wrote to control.
        """
        low, end = reader.bounds(CONTROL)
        if not low <= self._next <= end:
            # Control was truncated beyond this position, or created again: start with its first record.
            self._state, self._next = ControlState(), low
        try:
            self._take(reader, end)
        except BaseException:
            self._state, self._next = ControlState(), 0
            raise
        if self._state.claim is None and low > 0:
            raise CausalLogDamaged(
                f"The control partition of {reader.topic} was truncated and holds no claim.",
                hint="restore the log topic, or start a new lineage with a new output topic.",
            )
        return self._state

    def _take(self, reader: LogReader, end: int) -> None:
        for offset, record in reader.read(CONTROL, self._next, end):
            reason = self._state.foreign(record)
            if reason:
                raise ForeignRecord(f"{reader.topic}[{CONTROL}]@{offset} is {reason}.")
            self._state.take(offset, record)
        self._next = end


def known_control(kafka: KafkaSettings, job: str) -> ControlState | None:
    """Return the state of the control partition of `job`, read without claiming the log; None if there is no log."""
    topic = log_topic(job)
    if topics_missing(kafka, [topic]):
        return None
    reader = LogReader(kafka, topic)
    try:
        return read_control(reader)
    finally:
        reader.close()


def control_id(job: str) -> str:
    """Return the transactional id for writes to the control partition."""
    return f"clonos.{job}.control"


def lane_id(job: str, sink: str, lane: int) -> str:
    """Return the transactional id for writes to one lane of a sink."""
    return f"clonos.{job}.{sink}.{lane}"


def owner_of(transactional_id: str) -> str:
    """Return the job that writes with a transactional id; empty if it is not one of Clonos.

    Example:
        >>> owner_of("clonos.orders.output.0")
        'orders'
    """
    parts = transactional_id.split(".")
    is_control = len(parts) == 3 and parts[2] == "control"
    is_lane = len(parts) == 4 and parts[3].isdigit()
    return parts[1] if parts[0] == "clonos" and (is_control or is_lane) else ""


class ControlWriter:
    """The driver's writer of the control partition: one small transaction for each record, on a cached producer.

    A driver continues only if its record commits (invariant 3): a superseded driver stops at its next record.

    Args:
        kafka: The Kafka cluster.
        topic: The causal log.
        producer: The producer of the control partition's transactional id.
        reader: Reads the newest claim after a failed commit, to learn whether another driver owns the log.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, producer: TransactionalProducer, reader: LogReader) -> None:
        self._kafka = kafka
        self._topic = topic
        self._producer = producer
        self._reader = reader
        self.owner: Owner | None = None  # the owner that this driver's claim names; the claimant sets it
        self._newest = -1  # offset of the newest record that was appended

    def append(self, record: Record) -> int:
        """Commit `record` to the control partition; returns its offset. Raises what `append_all` raises."""
        return self.append_all([record])[0]

    def append_all(self, records: Sequence[Record]) -> list[int]:
        """Commit `records` to the control partition in one transaction; returns their offsets.

        Raises:
            Superseded: Another driver claimed the job after this driver's claim.
            CausalLogDamaged: The topic was deleted, or deleted and created again.
            EpochFailed: The record is not committed, but the claim of `owner` is still the newest: claim again and
                replay.
        """
        try:
            offsets = self._producer.commit_all(self._topic, [encode(record) for record in records], CONTROL)
        except (Aborted, Unknown, EpochFailed) as failure:
            self.check_owner()
            raise EpochFailed(f"A record could not be committed to {self._topic}: {failure}.") from failure
        if offsets[0] <= self._newest:
            raise log_deleted(self._topic)  # and created again
        self._newest = offsets[-1]
        return offsets

    def check_owner(self, *, visible: int = -1) -> None:
        """Read the end of the control partition, and check that `owner` wrote the newest claim (invariant 2).

        Args:
            visible: Offset of a committed record of `owner` that must be visible first.

        Raises:
            Superseded: Another driver claimed the job after this driver's claim.
        """
        end = self._reader.end(CONTROL, visible=visible)
        if self._newest >= 0 and end == self._newest + SINGLE_RECORD_TRANSACTION:
            return  # no record follows its own newest one
        tail = self._reader.tail(CONTROL)
        if tail is None:
            raise log_deleted(self._topic)
        if tail.record.owner != self.owner:
            raise Superseded(f"Generation {tail.record.owner} owns the job now; this driver was {self.owner}.")

    def dispose(self) -> None:
        """Destroy the Kafka producer in the background."""
        self._producer.dispose()
