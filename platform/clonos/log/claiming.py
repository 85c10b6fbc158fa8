"""Claiming a job: becoming the owner of its causal log (invariant 2).

1. Open control's transactional id: fences the older driver's writer and aborts what it had open.
2. Read control: the newest claim, allotments, plans and ends.
3. Commit a claim of the next generation on control.
4. Every lane, in parallel: open its transactional id (aborts a dangling transaction), read the tail,
   commit a claim that repeats the newest marker.
5. Check that control's newest claim is still one's own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clonos.errors import EpochFailed, Superseded
from clonos.faults import reach
from clonos.log.control import ControlState, ControlWriter, control_id, read_control
from clonos.log.reading import LogReader, Tail, shared_reader
from clonos.log.records import Allot, Allotment, Claim, Marker, Owner, encode
from clonos.log.topic import CONTROL, ensure_log_topic, log_topic
from clonos.log.transaction import Aborted, TransactionalProducer, Unknown
from clonos.settings import KafkaSettings

_PARALLEL_CLAIMS = 16


def lane_id(job: str, sink: str, lane: int) -> str:
    """The transactional id of one sink lane."""
    return f"clonos.{job}.{sink}.{lane}"


@dataclass
class Ownership:
    """What a driver holds after claiming.

    Attributes:
        claimed: Log partition → offset of this owner's claim there.
        known: Log partition → offset of the newest claim or marker known; nothing of a later epoch is before it.
        markers: Log partition → newest marker at claiming.
    """

    kafka: KafkaSettings
    job: str
    topic: str
    owner: Owner
    state: ControlState
    control: ControlWriter
    reader: LogReader
    claimed: dict[int, int]
    known: dict[int, int]
    markers: dict[int, Marker | None]

    def ensure_lanes(self, sink: str, count: int) -> tuple[int, ...]:
        """The log partitions of lanes 0..count-1 of `sink`, allotted and claimed where they are new.

        Raises:
            Superseded: A newer claim stands.
        """
        missing = [lane for lane in range(count) if (sink, lane) not in self.state.lanes]
        if missing:
            first = max([CONTROL, *self.state.lanes.values()]) + 1
            fresh = tuple(Allotment(sink, lane, first + i) for i, lane in enumerate(missing))
            ensure_log_topic(self.kafka, self.job, partitions=first + len(fresh))
            record = Allot(self.owner, fresh)
            self.state.take(self.control.append(record), record)
            self._claim_lanes(fresh)
            self.control.check_owner()
        return tuple(self.state.lanes[sink, lane] for lane in range(count))

    def renew(self, allotment: Allotment) -> int:
        """Claim one lane again, so that everything before the new claim may be truncated (invariant 8)."""
        self._claim_lanes([allotment])
        return self.claimed[allotment.partition]

    def _claim_lanes(self, allotments: Sequence[Allotment]) -> None:
        if not allotments:
            return
        with ThreadPoolExecutor(min(_PARALLEL_CLAIMS, len(allotments)), "clonos-claim") as pool:
            for allotment, tail in zip(allotments, pool.map(self._claim_lane, allotments), strict=True):
                self.claimed[allotment.partition] = self.known[allotment.partition] = tail.offset
                self.markers[allotment.partition] = tail.marker
                reach("lane-claimed", lane=allotment.lane, sink=allotment.sink)

    def _claim_lane(self, allotment: Allotment) -> Tail:
        producer = TransactionalProducer(self.kafka, lane_id(self.job, allotment.sink, allotment.lane), self.topic)
        reach("lane-claim-initialised", lane=allotment.lane, sink=allotment.sink)
        reader = LogReader(self.kafka, self.topic)
        try:
            tail = reader.tail(allotment.partition)
            if tail and tail.record.owner.newer_than(self.owner):
                raise Superseded(f"Generation {tail.record.owner} owns the job now; this was {self.owner}.")
            claim = Claim(self.owner, _now_ms(), marker=tail.marker if tail else None)
            try:
                offset = producer.commit_one(self.topic, encode(claim), allotment.partition)
            except (Aborted, Unknown, EpochFailed) as failure:
                self.control.check_owner()
                raise EpochFailed(f"A lane could not be claimed: {failure}.") from failure
            mine = reader.tail(allotment.partition, visible=offset)
            if mine is None or mine.record.owner != self.owner:
                self.control.check_owner()
                raise EpochFailed(f"The claim of {self.topic}[{allotment.partition}] did not stay the newest.")
            return mine
        finally:
            producer.dispose()
            reader.close()


def claim(kafka: KafkaSettings, job: str, *, previous: Owner | None = None, new_lineage: bool = False) -> Ownership:
    """Become the owner of `job`'s log (the five steps of this module's docstring).

    Args:
        kafka: The cluster.
        job: The job's name.
        previous: For a restart in the same process: the owner it had. Only that one is succeeded; a first
            start succeeds whoever owns the log.
        new_lineage: Start a new lineage (the user's explicit word).

    Raises:
        Superseded: Another driver claimed in between, or `previous` no longer owned the log.
        CausalLogDamaged: The log cannot tell who owns it.
        EpochFailed: A transaction failed while the log was still ours; try again.
    """
    topic = ensure_log_topic(kafka, job)
    reader = shared_reader(kafka, topic)
    if previous is not None:
        tail = reader.tail(CONTROL)
        if tail is None or tail.record.owner != previous:
            raise Superseded(
                f"Generation {tail.record.owner if tail else 'unknown'} owns the job; this was {previous}."
            )
    producer = TransactionalProducer(kafka, control_id(job), topic)
    reach("control-initialised")
    state = read_control(reader)
    newest = state.owner
    if previous is not None and newest != previous:
        producer.dispose()
        raise Superseded(f"Generation {newest} owns the job now; this was {previous}.")
    owner = _successor(newest, new_lineage)
    control = ControlWriter(kafka, topic, producer, reader)
    control.owner = owner
    ended = {} if new_lineage else dict(state.ended)
    record = Claim(owner, _now_ms(), allotments=state.allotments(), ended=ended)
    offset = control.append(record)
    control.check_owner(visible=offset)
    state.take(offset, record)
    reach("control-claimed")
    ownership = Ownership(kafka, job, topic, owner, state, control, reader, {CONTROL: offset}, {}, {})
    ownership._claim_lanes(state.allotments())
    control.check_owner()
    reach("claim-checked")
    return ownership


def _successor(newest: Owner | None, new_lineage: bool) -> Owner:
    driver = secrets.token_hex(8)
    if newest is None:
        return Owner(1, 1, driver)
    return Owner(newest.lineage + new_lineage, newest.generation + 1, driver)


def newest_owner(kafka: KafkaSettings, job: str) -> Owner | None:
    """Who owns the job now, without claiming; None if nobody ever did."""
    tail = shared_reader(kafka, log_topic(job)).tail(CONTROL)
    return tail.record.owner if tail else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
