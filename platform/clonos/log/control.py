"""The control partition: what it adds up to, and the driver's one writer of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from clonos.errors import CausalLogDamaged, EpochFailed, ForeignRecord, Superseded
from clonos.kafka import topics_missing
from clonos.log.reading import LogReader, Positioned
from clonos.log.records import Allot, Allotment, Claim, End, Owner, Plan, Record, Resolution, encode
from clonos.log.topic import CONTROL, log_topic
from clonos.log.transaction import Aborted, TransactionalProducer, Unknown
from clonos.settings import KafkaSettings

RETAINED_EPOCHS: Final = 100


@dataclass
class ControlState:
    """Everything the control partition says, folded in order.

    Attributes:
        claim: The newest claim.
        owners: Whoever made a claim.
        claim_offset: Where it stands.
        lanes: (sink, lane) → log partition.
        plans: (query, epoch) → plan, with its offset.
        ended: Query → newest ended epoch.
        ends: Query → its newest end record.
        resolutions: (query, epoch) → the user's word.
    """

    claim: Claim | None = None
    claim_offset: int = -1
    owners: set[Owner] = field(default_factory=set)
    lanes: dict[tuple[str, int], int] = field(default_factory=dict)
    plans: dict[tuple[str, int], tuple[int, Plan]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)
    resolutions: dict[tuple[str, int], Resolution] = field(default_factory=dict)

    @property
    def owner(self) -> Owner | None:
        """The newest claim's owner."""
        return self.claim.owner if self.claim else None

    def fold(self, records: Iterable[Positioned]) -> ControlState:
        """Take in `records`; what does not come from the owner of the newest claim before it is void."""
        for offset, record in records:
            self.take(offset, record)
        return self

    def take(self, offset: int, record: Record) -> None:
        """Take in one record."""
        match record:
            case Claim():
                if self.claim and record.owner.lineage != self.claim.owner.lineage:
                    # A new lineage starts its epochs afresh: what the old one planned or ended says nothing.
                    self.plans.clear()
                    self.ended.clear()
                    self.ends.clear()
                    self.resolutions.clear()
                self.claim, self.claim_offset = record, offset
                self.owners.add(record.owner)
                self._allot(record.allotments)
                for query, epoch in record.ended.items():
                    self.ended[query] = max(epoch, self.ended.get(query, -1))
            case Allot() if record.owner == self.owner:
                self._allot(record.allotments)
            case Plan() if record.owner == self.owner:
                self.plans.setdefault((record.query, record.epoch), (offset, record))
                self.plans.pop((record.query, record.epoch - 2 * RETAINED_EPOCHS), None)
            case End() if record.owner == self.owner:
                self.ended[record.query] = max(record.epoch, self.ended.get(record.query, -1))
                self.ends[record.query] = record
            case Resolution() if record.owner == self.owner:
                self.resolutions[record.query, record.epoch] = record
            case _:
                return

    def foreign(self, record: Record) -> str:
        """Why none of the log's owners can have written `record` next; empty if one can.

        A claim follows another: the newest, or an earlier one where a broker's crash showed the newest late.
        """
        if isinstance(record, Claim):
            if not self.owners or record.owner in self.owners or any(self._follows(record, one) for one in self.owners):
                return ""
            return f"a claim of {record.owner} that does not follow one of this log"
        return "" if record.owner in self.owners else f"a record of {record.owner}, who never claimed it"

    @staticmethod
    def _follows(claim: Claim, earlier: Owner) -> bool:
        if claim.after:
            return claim.after == earlier.driver
        # The job's first claim, of which a broker's crash showed another one late, or one of before claims said so.
        generation = (claim.owner.lineage, claim.owner.generation)
        return (
            generation in {(1, 1), (earlier.lineage, earlier.generation + 1)}
            or claim.owner.lineage == earlier.lineage + 1
        )

    def _allot(self, allotments: Iterable[Allotment]) -> None:
        for one in allotments:
            self.lanes[one.sink, one.lane] = one.partition

    def plan(self, query: str, epoch: int) -> Plan | None:
        """The plan of an epoch, if the log holds one."""
        found = self.plans.get((query, epoch))
        return found[1] if found else None

    def newest_plan(self, query: str) -> int:
        """The newest planned epoch of `query`; -1 if none."""
        return max((epoch for name, epoch in self.plans if name == query), default=-1)

    def plans_beyond(self, query: str, epoch: int) -> list[int]:
        """The planned epochs of `query` after `epoch`, ascending."""
        return sorted(planned for name, planned in self.plans if name == query and planned > epoch)

    def allotments(self) -> tuple[Allotment, ...]:
        """All allotments, as a claim repeats them."""
        return tuple(Allotment(sink, lane, partition) for (sink, lane), partition in sorted(self.lanes.items()))


def read_control(reader: LogReader) -> ControlState:
    """Fold the whole control partition (truncation keeps it short).

    Raises:
        CausalLogDamaged: It holds records but no claim.
        ForeignRecord: Somebody else wrote to it.
    """
    return ControlFollower().catch_up(reader)


class ControlFollower:
    """Control in memory, as far as it was read: only what is new is read the next time."""

    def __init__(self) -> None:
        self._state = ControlState()
        self._next = 0

    def catch_up(self, reader: LogReader) -> ControlState:
        """Read up to the end.

        Raises:
            CausalLogDamaged: It holds records but no claim.
            ForeignRecord: Somebody else wrote to it.
        """
        low, end = reader.bounds(CONTROL)
        if not low <= self._next <= end:
            # Truncated beyond what was read, or made anew: what is there says all.
            self._state, self._next = ControlState(), low
        try:
            self._take(reader, end)
        except BaseException:
            self._state, self._next = ControlState(), 0
            raise
        if self._state.claim is None and low > 0:
            raise CausalLogDamaged(
                f"The control partition of {reader.topic} was truncated and holds no claim.",
                hint="restore the log topic, or start a new lineage to a new output.",
            )
        return self._state

    def _take(self, reader: LogReader, end: int) -> None:
        for offset, record in reader.stretch(CONTROL, self._next, end):
            why = self._state.foreign(record)
            if why:
                raise ForeignRecord(f"{reader.topic}[{CONTROL}]@{offset} is {why}.")
            self._state.take(offset, record)
        self._next = end


def known_control(kafka: KafkaSettings, job: str) -> ControlState | None:
    """What the log of `job` says, without claiming it; None if there is no log.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
    topic = log_topic(job)
    if topics_missing(kafka, [topic]):
        return None
    reader = LogReader(kafka, topic)
    try:
        return read_control(reader)
    finally:
        reader.close()


def control_id(job: str) -> str:
    """The transactional id of control."""
    return f"clonos.{job}.control"


def lane_id(job: str, sink: str, lane: int) -> str:
    """The transactional id of one sink lane."""
    return f"clonos.{job}.{sink}.{lane}"


class ControlWriter:
    """The driver's writer of control: one small transaction per record, on a cached producer.

    A driver goes on only if its record commits (invariant 3): a zombie stops at its next plan or end.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, producer: TransactionalProducer, reader: LogReader) -> None:
        self._kafka = kafka
        self._topic = topic
        self._producer = producer
        self._reader = reader
        self.owner: Owner | None = None

    def append(self, record: Record) -> int:
        """Commit `record`.

        Returns:
            Its offset.

        Raises:
            Superseded: A newer claim stands.
            EpochFailed: Not committed, but the log is still this owner's: claim anew and replay.
        """
        try:
            return self._producer.commit_one(self._topic, encode(record), CONTROL)
        except (Aborted, Unknown, EpochFailed) as failure:
            self.check_owner()
            raise EpochFailed(f"A record could not be committed to {self._topic}: {failure}.") from failure

    def check_owner(self, *, visible: int = -1) -> None:
        """Read the tail: it is ours only if our own driver id is newest (invariant 2).

        Args:
            visible: An offset of ours that must be visible first.

        Raises:
            Superseded: It is not.
        """
        tail = self._reader.tail(CONTROL, visible=visible)
        if tail is None or tail.record.owner != self.owner:
            newest = tail.record.owner if tail else "nobody"
            raise Superseded(f"Generation {newest} owns the job now; this was {self.owner}.")

    def dispose(self) -> None:
        """Let the producer go."""
        self._producer.dispose()
