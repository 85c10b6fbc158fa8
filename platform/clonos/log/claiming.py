"""Claiming a job: becoming the owner of its causal log (invariant 2).

1. Open control's transactional id: fences the older driver's writer and aborts what it had open.
2. Read control: the newest claim, allotments, plans and ends.
3. Commit a claim of the next generation on control.
4. All lanes, in parallel: open their transactional ids (aborts dangling transactions); once all are open
   read the tails and commit claims that repeat the newest marker.
5. Check that control's newest claim is still one's own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from clonos.errors import EpochFailed, ForeignRecord, Superseded
from clonos.faults import reach
from clonos.log.control import ControlFollower, ControlState, ControlWriter, control_id, lane_id
from clonos.log.prepared import Prepared
from clonos.log.reading import LogReader, Tail, shared_reader
from clonos.log.records import Allot, Allotment, Claim, Marker, Owner, encode
from clonos.log.topic import CONTROL, ensure_log_topic, log_topic
from clonos.log.transaction import Aborted, TransactionalProducer, Unknown
from clonos.settings import KafkaSettings

_PARALLEL_CLAIMS = 16


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
    prepared: Prepared | None = None

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
            self.claim_lanes(fresh)
            self.control.check_owner()
        return tuple(self.state.lanes[sink, lane] for lane in range(count))

    def renew(self, allotment: Allotment) -> int:
        """Claim one lane again, so that everything before the new claim may be truncated (invariant 8)."""
        self.claim_lanes([allotment])
        return self.claimed[allotment.partition]

    def claim_lanes(self, allotments: Sequence[Allotment]) -> None:
        """Claim lanes, several at once (step 4)."""
        if not allotments:
            return
        with ThreadPoolExecutor(min(_PARALLEL_CLAIMS, len(allotments)), "clonos-claim") as pool:
            opening = [pool.submit(self._open_lane, allotment) for allotment in allotments]
            try:
                # All are fenced before the first is claimed. A claim voids the determinants that an older
                # owner still writes to its partition, and those may belong to any lane: from here on no
                # lane can publish what was computed from them.
                producers = [one.result() for one in opening]
                for allotment, tail in zip(allotments, pool.map(self._claim_lane, allotments, producers), strict=True):
                    self.claimed[allotment.partition] = self.known[allotment.partition] = tail.offset
                    self.markers[allotment.partition] = tail.marker
                    reach("lane-claimed", lane=allotment.lane, sink=allotment.sink)
            finally:
                for one in opening:
                    one.add_done_callback(_dispose_opened)

    def _open_lane(self, allotment: Allotment) -> TransactionalProducer:
        name = lane_id(self.job, allotment.sink, allotment.lane)
        connected = self.prepared.producer(name) if self.prepared is not None else None
        producer = TransactionalProducer(self.kafka, name, self.topic, connected=connected)
        reach("lane-claim-initialised", lane=allotment.lane, sink=allotment.sink)
        return producer

    def _check_owner_afresh(self) -> None:
        """As `ControlWriter.check_owner`, from any thread: control's own reader is another one's."""
        reader = LogReader(self.kafka, self.topic)
        try:
            tail = reader.tail(CONTROL)
        finally:
            reader.close()
        if tail is None or tail.record.owner != self.owner:
            raise Superseded(
                f"Generation {tail.record.owner if tail else 'nobody'} owns the job; this was {self.owner}."
            )

    def _claim_lane(self, allotment: Allotment, producer: TransactionalProducer) -> Tail:
        reader = (self.prepared.reader() if self.prepared is not None else None) or LogReader(self.kafka, self.topic)
        try:
            tail = reader.tail(allotment.partition)
            if tail and tail.record.owner not in self.state.owners:
                # Whoever claims a lane has claimed control before.
                self._check_owner_afresh()
                raise ForeignRecord(
                    f"{self.topic}[{allotment.partition}]@{tail.offset} is a record of {tail.record.owner}, who never "
                    "claimed the job."
                )
            claim = Claim(self.owner, _now_ms(), marker=tail.marker if tail else None)
            try:
                offset = producer.commit_one(self.topic, encode(claim), allotment.partition)
            except (Aborted, Unknown, EpochFailed) as failure:
                self._check_owner_afresh()
                raise EpochFailed(f"A lane could not be claimed: {failure}.") from failure
            mine = reader.tail(allotment.partition, visible=offset)
            if mine is None or mine.record.owner != self.owner:
                self._check_owner_afresh()
                raise EpochFailed(f"The claim of {self.topic}[{allotment.partition}] did not stay the newest.")
            return mine
        finally:
            reader.close()


def _dispose_opened(opening: Future[TransactionalProducer]) -> None:
    if opening.exception() is None:
        opening.result().dispose()


def claim(
    kafka: KafkaSettings,
    job: str,
    *,
    mine: set[str] | None = None,
    new_lineage: Mapping[str, int] | None = None,
    wish: str = "",
    prepared: Prepared | None = None,
) -> Ownership:
    """Become the owner of `job`'s log (the five steps of this module's docstring).

    Args:
        kafka: The cluster.
        job: The job's name.
        mine: Driver ids that this process has claimed with; this claim's is added. A restart in the same
            process only succeeds one of these; the first start (empty or None) succeeds whoever owns the log.
        new_lineage: Start a new lineage (the user's explicit word), in which these epochs (query → epoch) are
            the newest ended ones.
        wish: Key of the user's word. A lineage that came from the same wish goes on: whoever starts a job again after
            a crash repeats the word, and would publish everything once more.
        prepared: Connections that are there already; closed in the end.

    Raises:
        Superseded: Another driver claimed in between, or owned the log already.
        CausalLogDamaged: The log cannot tell who owns it.
        EpochFailed: A transaction failed while the log was still ours to claim; try again.
    """
    mine = set() if mine is None else mine
    restart = bool(mine)
    topic = (prepared.topic if prepared is not None else "") or ensure_log_topic(kafka, job)
    reader = (prepared.reader() if prepared is not None else None) or shared_reader(kafka, topic)
    if restart:
        # Before fencing anybody: a process that was superseded must not disturb its successor.
        tail = reader.tail(CONTROL)
        _must_be_mine(tail.record.owner if tail else None, mine)
    connected = prepared.producer(control_id(job)) if prepared is not None else None
    producer = TransactionalProducer(kafka, control_id(job), topic, connected=connected)
    try:
        reach("control-initialised")
        state = (prepared.control if prepared is not None else ControlFollower()).catch_up(reader)
        newest = state.owner
        if restart:
            _must_be_mine(newest, mine)
        if wish and state.claim is not None and state.claim.wish == wish:
            new_lineage = None
        owner = _successor(newest, new_lineage is not None)
        if restart:
            # Whatever becomes of it: after a broker's crash a claim may still turn up, and this one is ours.
            mine.add(owner.driver)
        control = ControlWriter(kafka, topic, producer, reader)
        control.owner = owner
        ended = dict(state.ended if new_lineage is None else new_lineage)
        after = newest.driver if newest else ""
        if new_lineage is None:
            wish = state.claim.wish if state.claim is not None else ""
        record = Claim(owner, _now_ms(), allotments=state.allotments(), ended=ended, after=after, wish=wish)
        try:
            offset = control.append(record)
        except Superseded:
            tail = reader.tail(CONTROL)
            if (tail.record.owner if tail else None) == newest:
                # Fenced by a late init of our own, or by a rival without a newer claim: this start may try again.
                raise EpochFailed(f"The claim of {topic} was fenced before it was committed.") from None
            raise
        control.check_owner(visible=offset)
        # Not before: a first start whose claim failed is still a first start when it tries again.
        mine.add(owner.driver)
        state.take(offset, record)
        reach("control-claimed")
        ownership = Ownership(kafka, job, topic, owner, state, control, reader, {CONTROL: offset}, {}, {}, prepared)
        ownership.claim_lanes(state.allotments())
        control.check_owner()
        reach("claim-checked")
    except BaseException:
        producer.dispose()
        raise
    return ownership


def _must_be_mine(owner: Owner | None, mine: set[str]) -> None:
    if owner is None or owner.driver not in mine:
        raise Superseded(f"Generation {owner or 'unknown'} owns the job now; it was claimed by another driver.")


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
