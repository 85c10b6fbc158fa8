"""Claiming a job: a driver becomes the owner of the job's causal log (invariant 2).

A claim that follows one of another platform is refused before step 1, unless the job is adopted.

1. Open control's transactional id. This fences the previous driver's writer and aborts its open transaction.
2. Read control: the newest claim, lane assignments, plans and committed epochs.
3. Commit a claim of the next generation on control.
4. For all lanes in parallel: open the transactional id, which aborts a dangling transaction. Once all are open, read
   the tails and commit claims that repeat the newest marker.
5. Check that the newest claim on control is still this driver's.

The fencing in steps 1 and 4 is Kafka's (KIP-98): ``init_transactions()`` raises the producer epoch of the
transactional id.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from msgspec.structs import replace

from clonos.deadline import Deadline
from clonos.errors import CausalLogDamaged, ClonosError, EpochFailed, ForeignRecord, JobForeign, Superseded
from clonos.faults import reach
from clonos.log.control import ControlFollower, ControlState, ControlWriter, control_id, known_control, lane_id
from clonos.log.platform_identity import Platform, refuse, taken_over
from clonos.log.prepared import PARALLEL_CLAIMS, Prepared
from clonos.log.reading import SINGLE_RECORD_TRANSACTION, LogReader, Tail, shared_reader
from clonos.log.records import AssignLanes, Claim, LaneAssignment, Marker, Owner, Plan, Record, Resolution, encode
from clonos.log.topic import CONTROL, ensure_log_topic, log_deleted, log_topic
from clonos.log.transaction import Aborted, TransactionalProducer, Unknown, dispose_opened, was_fenced
from clonos.settings import KafkaSettings

# From the fencing (step 1) to the claim (step 3) a takeover takes some ten ms, on a busy machine some hundred.
_CLAIM_FOLLOWS_S: Final = 1.0
_CLAIM_POLL_S: Final = 0.05


@dataclass
class Ownership:
    """The result of a claim: the causal log of a job, with the connections and the state that its owner needs."""

    kafka: KafkaSettings
    job: str
    topic: str
    owner: Owner
    state: ControlState  # state of the control partition. The owner updates it with each record that it appends.
    control: ControlWriter
    reader: LogReader
    claimed: dict[int, int]  # log partition → offset of the claim of `owner` in it
    # Log partition → offset of the newest known claim or marker; later epochs have no record before it.
    tail_offsets: dict[int, int]
    markers: dict[int, Marker | None]  # log partition → newest marker at the time of the claim
    prepared: Prepared | None = None  # connections that were opened before the claim
    # Held while `control` or `state` is used, because the job's queries share them.
    lock: threading.RLock = field(default_factory=threading.RLock)

    def ensure_lanes(self, sink: str, count: int) -> tuple[int, ...]:
        """Return the log partitions of the lanes 0 to count-1 of `sink`. Partitions for new lanes are assigned and
        claimed.

        Raises:
            Superseded: Another driver claimed the job after this driver's claim.
        """
        missing = [lane for lane in range(count) if (sink, lane) not in self.state.lanes]
        if missing:
            first = max([CONTROL, *self.state.lanes.values()]) + 1
            added = tuple(LaneAssignment(sink, lane, first + i) for i, lane in enumerate(missing))
            ensure_log_topic(self.kafka, self.job, partitions=first + len(added), had=True)
            record = AssignLanes(self.owner, added)
            self.state.take(self.control.append(record), record)
            self.claim_lanes(added)
            self.control.check_owner()
        return tuple(self.state.lanes[sink, lane] for lane in range(count))

    def claim_lanes(self, assignments: Sequence[LaneAssignment]) -> None:
        """Fence the earlier producers of all these lanes, then write claims to the lanes' partitions, in parallel.

        Claims of this driver's own lanes are renewed, so that the records before them may be truncated (invariant 8).
        """
        if not assignments:
            return
        with (
            _Readers(self.kafka, self.topic, self.prepared) as readers,
            ThreadPoolExecutor(min(PARALLEL_CLAIMS, len(assignments)), "clonos-claim") as pool,
        ):
            opening = [pool.submit(self._open_lane, assignment) for assignment in assignments]
            try:
                # All lanes are fenced before the first is claimed. A claim voids the determinants that an older
                # owner still writes to that partition, and these may belong to any lane. At this point no lane can
                # publish rows that were computed from them.
                producers = [future.result() for future in opening]
                claiming = pool.map(partial(self._claim_lane, readers), assignments, producers)
                for assignment, tail in zip(assignments, claiming, strict=True):
                    self.claimed[assignment.partition] = self.tail_offsets[assignment.partition] = tail.offset
                    self.markers[assignment.partition] = tail.marker
                    reach("lane-claimed", lane=assignment.lane, sink=assignment.sink)
            finally:
                for future in opening:
                    future.add_done_callback(dispose_opened)

    def _open_lane(self, assignment: LaneAssignment) -> TransactionalProducer:
        name = lane_id(self.job, assignment.sink, assignment.lane)
        producer = _open_producer(self.kafka, name, self.topic, self.prepared)
        reach("lane-claim-initialised", lane=assignment.lane, sink=assignment.sink)
        return producer

    def _check_owner_in_thread(self) -> None:
        """As `ControlWriter.check_owner`, for any thread: the reader of `control` belongs to the driver's thread."""
        reader = LogReader(self.kafka, self.topic)
        try:
            tail = reader.tail(CONTROL)
        finally:
            reader.close()
        if tail is None:
            raise log_deleted(self.topic)
        if tail.record.owner != self.owner:
            raise Superseded(f"Generation {tail.record.owner} owns the job; this driver was {self.owner}.")

    def _claim_lane(self, readers: _Readers, assignment: LaneAssignment, producer: TransactionalProducer) -> Tail:
        with readers.borrowed() as reader:
            tail = reader.tail(assignment.partition)
            if tail and tail.record.owner not in self.state.owners:
                # A driver claims control before any lane.
                self._check_owner_in_thread()
                raise ForeignRecord(
                    f"{self.topic}[{assignment.partition}]@{tail.offset} is a record of {tail.record.owner}, which "
                    "never claimed the job."
                )
            claim = Claim(self.owner, _now_ms(), marker=tail.marker if tail else None)
            try:
                (offset,) = producer.commit_all(self.topic, [encode(claim)], assignment.partition)
            except (Aborted, Unknown, EpochFailed) as failure:
                self._check_owner_in_thread()
                raise EpochFailed(f"A lane could not be claimed: {failure}.") from failure
            end = reader.end(assignment.partition, visible=offset)
            is_last = end == offset + SINGLE_RECORD_TRANSACTION
            newest = Tail(offset, claim, end) if is_last else reader.tail(assignment.partition)
            if newest is None or newest.record.owner != self.owner:
                self._check_owner_in_thread()
                raise EpochFailed(f"The claim of {self.topic}[{assignment.partition}] did not stay the newest.")
            return newest


class _Readers:
    """The readers of one claim: as many as threads use at once, because a reader is a Kafka client with threads."""

    def __init__(self, kafka: KafkaSettings, topic: str, prepared: Prepared | None) -> None:
        self._kafka = kafka
        self._topic = topic
        self._prepared = prepared
        self._idle: SimpleQueue[LogReader] = SimpleQueue()

    def __enter__(self) -> _Readers:
        return self

    @contextmanager
    def borrowed(self) -> Iterator[LogReader]:
        """Provide a reader for this thread alone, until the end of the context."""
        try:
            reader = self._idle.get_nowait()
        except Empty:
            reader = (self._prepared.reader() if self._prepared is not None else None) or LogReader(
                self._kafka, self._topic
            )
        try:
            yield reader
        finally:
            self._idle.put(reader)

    def __exit__(self, *_: object) -> None:
        # In the background: a consumer takes some 10 ms to close.
        readers = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        threading.Thread(target=_close, args=(readers,), name="clonos-close").start()


def _close(readers: Iterable[LogReader]) -> None:
    for reader in readers:
        reader.close()


class Claimant:
    """Claims the causal log of one job for one driver process: first at its start, and again after each restart of
    its queries.

    The first claim may follow a claim of any driver. A later claim may follow only a claim of this process: a process
    that was superseded must not claim the log back.

    Args:
        kafka: The Kafka cluster.
        job: The job's name.
        claim_ids: Claim ids of this process so far.
        code: Hash of the job's code.
        code_parts: The parts of that code, name → hash or version.
        platform: The platform of the driver; None if it is unknown, which follows claims of all platforms.
        adopt: Whether the first claim may follow a claim of another platform.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        job: str,
        claim_ids: Iterable[str] = (),
        *,
        code: str = "",
        code_parts: Mapping[str, str] | None = None,
        platform: Platform | None = None,
        adopt: bool = False,
    ) -> None:
        self._kafka = kafka
        self._job = job
        self._code = code
        self._code_parts = dict(code_parts or {})
        self._adopt = adopt
        # Claim ids of this process so far. A claim that failed counts if it may still become visible.
        self.claim_ids = frozenset(claim_ids)
        self.platform = platform  # the platform of the driver

    def claim(
        self,
        *,
        new_lineage: Mapping[str, int] | None = None,
        request_key: str = "",
        prepared: Prepared | None = None,
        sinks: Iterable[str] = (),
        dropped: Iterable[str] = (),
        carry: Collection[str] = (),
        had: bool = False,
    ) -> Ownership:
        """Become the owner of the log: fence the previous driver, write claims to all partitions, check that they hold.

        Args:
            new_lineage: Start a new lineage, in which these epochs (query → epoch) are the newest committed ones.
            request_key: Idempotency key of `new_lineage`. A retry with the same key continues the lineage that the
                first request created.
            prepared: Connections that were opened before; the claim takes them over.
            sinks: The job's sinks.
            dropped: Sinks of earlier claims that the job has dropped. Later claims repeat them.
            carry: With `new_lineage`: for these queries, an epoch that the log has committed and Spark has not (a crash
                came in between) stays committed in the new lineage.
            had: Whether the job had a log before: then none is created, as after a claim by this process.

        Raises:
            JobForeign: Another platform has claimed the job. Nothing was written; and nothing was fenced, unless that
                claim came after the last look at the log.
            Superseded: Another driver claimed in between, or owned the log already.
            CausalLogDamaged: The log's owner cannot be read.
            EpochFailed: A transaction failed, and no other driver claimed the log; a retry may succeed.
        """
        kafka, job, restart = self._kafka, self._job, bool(self.claim_ids)
        topic = (prepared.topic if prepared is not None else "") or ensure_log_topic(kafka, job, had=had or restart)
        reader = (prepared.reader() if prepared is not None else None) or shared_reader(kafka, topic)
        if restart:
            # Before step 1 fences: a process that was superseded must not disturb its successor.
            tail = reader.tail(CONTROL)
            self._check_own(tail.record.owner if tail else None)
        follower = prepared.control if prepared is not None else ControlFollower()
        if not restart:
            # A standby has read the log: its takeover asks Kafka no more than before.
            follows = prepared is not None and bool(prepared.topic)
            self._check_platform(prepared.state if prepared is not None and follows else follower.catch_up(reader))
        producer = _open_producer(kafka, control_id(job), topic, prepared)  # step 1
        try:
            reach("control-initialised")
            state = follower.catch_up(reader)  # step 2
            newest = state.owner
            if restart:
                self._check_own(newest)
            else:
                self._check_platform(state)
            if request_key and state.claim is not None and state.claim.request_key == request_key:
                new_lineage = None
            owner = _successor(newest, new_lineage is not None)
            if restart:
                # Even if the commit fails: after a broker's crash the claim may become visible later.
                self.claim_ids |= {owner.claim_id}
            control = ControlWriter(kafka, topic, producer, reader)
            control.owner = owner
            if new_lineage is None:
                request_key = state.claim.request_key if state.claim is not None else ""
            record = Claim(
                owner,
                _now_ms(),
                assignments=state.assignments(),
                committed=dict(state.committed if new_lineage is None else new_lineage),
                follows=newest.claim_id if newest else "",
                request_key=request_key,
                code=self._code,
                code_parts=self._code_parts,
                topic_ids=dict(state.topic_ids) if new_lineage is None else {},
                dropped=tuple(sorted((state.dropped | set(dropped)) - set(sinks))),
                platform=self.platform,
            )
            ended = _ended_plans(state, new_lineage) if new_lineage is not None else []
            plans = [plan for plan in ended if plan.query in carry]
            record = replace(record, committed=record.committed | {plan.query: plan.epoch for plan in plans})
            records = [record, *(carried for plan in plans for carried in _carried(plan, owner, self._code))]
            offsets = _append_claim(control, records, reader, newest)  # step 3
            # Not earlier: a first claim that failed is still a first claim when it is retried.
            self.claim_ids |= {owner.claim_id}
            for offset, entry in zip(offsets, records, strict=True):
                state.take(offset, entry)
            reach("control-claimed")
            ownership = Ownership(
                kafka, job, topic, owner, state, control, reader, {CONTROL: offsets[0]}, {}, {}, prepared
            )
            ownership.claim_lanes(state.assignments())  # step 4
            control.check_owner()  # step 5
            reach("claim-checked")
        except BaseException:
            producer.dispose()
            raise
        return ownership

    def check_rival(self, error: ClonosError, wait: Callable[[float], bool]) -> None:
        """Check whether another driver's takeover caused `error`. A claim by this process would fence that driver.

        A takeover fences this process shortly before its claim is committed. So after a fencing, this waits for up to
        `_CLAIM_FOLLOWS_S` seconds for such a claim. If the log cannot be read, the next claim reports why.

        Args:
            error: The reason why this process is about to claim again.
            wait: Waits for some seconds; returns True if the job was stopped in that time.

        Raises:
            Superseded: Another driver claimed the job after this process did.
            CausalLogDamaged: The log holds no claim: its topic was deleted and created again.
        """
        deadline = Deadline(_CLAIM_FOLLOWS_S if was_fenced(error) else 0.0)
        while self.claim_ids:
            try:
                tail = shared_reader(self._kafka, log_topic(self._job)).tail(CONTROL)
                self._check_own(tail.record.owner if tail else None)
            except (Superseded, CausalLogDamaged):
                raise
            except ClonosError:
                return
            if deadline.passed() or wait(_CLAIM_POLL_S):
                return

    def taken_over(self) -> JobForeign | None:
        """Return the error of this process if a driver of another platform superseded it; None: no other platform did,
        or the log cannot be read.
        """
        if self.platform is None:
            return None
        try:
            state = known_control(self._kafka, self._job)
        except ClonosError:
            return None
        claim = state.claim if state is not None else None
        if claim is None or claim.platform is None or claim.platform.id == self.platform.id:
            return None
        return taken_over(self._job, self.platform, claim.platform, claim.timestamp_ms)

    def _check_platform(self, state: ControlState) -> None:
        if self.platform is not None and not self._adopt:
            require_own(self._job, self.platform, state.claim)

    def _check_own(self, owner: Owner | None) -> None:
        if owner is None:
            raise log_deleted(log_topic(self._job))
        if owner.claim_id not in self.claim_ids:
            raise Superseded(f"Generation {owner} owns the job now; it was claimed by another driver.")


def require_own(job: str, platform: Platform, claim: Claim | None) -> None:
    """Check that the newest claim of a job is not one of another platform than `platform`.

    Raises:
        JobForeign: It is one of another platform.
    """
    owner = claim.platform if claim is not None else None
    if claim is not None and owner is not None and owner.id != platform.id:
        refuse(job, platform, owner, claim.timestamp_ms)


def claim(
    kafka: KafkaSettings, job: str, *, new_lineage: Mapping[str, int] | None = None, request_key: str = ""
) -> Ownership:
    """Claim the causal log of a job once, as a new driver process does.

    The arguments are as for `Claimant` and `Claimant.claim`.
    """
    return Claimant(kafka, job).claim(new_lineage=new_lineage, request_key=request_key)


def _open_producer(kafka: KafkaSettings, name: str, topic: str, prepared: Prepared | None) -> TransactionalProducer:
    """Open the producer with this transactional id, if possible on a connection that was opened before the claim."""
    connected = None if prepared is None else lambda: prepared.producer(name)
    return TransactionalProducer(kafka, name, topic, connected=connected)


def _ended_plans(state: ControlState, new_lineage: Mapping[str, int]) -> list[Plan]:
    """Return the plans of the epochs that the log has committed, and that follow the newest ones in `new_lineage`."""
    ended = ((query, epoch) for query, epoch in state.committed.items() if epoch == new_lineage.get(query, -1) + 1)
    return [plan for query, epoch in ended if (plan := state.plan(query, epoch)) is not None]


def _carried(plan: Plan, owner: Owner, code: str) -> tuple[Plan, Resolution]:
    """Return the records that carry a committed epoch into a new lineage: its published lanes stand."""
    return replace(plan, owner=owner), Resolution(owner, plan.query, plan.epoch, "keep", code)


def _append_claim(
    control: ControlWriter, records: Sequence[Record], reader: LogReader, newest: Owner | None
) -> list[int]:
    """Commit a claim and what belongs to it on control, and check that it is the newest; returns the offsets."""
    try:
        offsets = control.append_all(records)
    except (Superseded, CausalLogDamaged) as refused:  # damaged: no claim in it, as in the log of a new job
        tail = reader.tail(CONTROL)
        if (tail.record.owner if tail else None) == newest:
            # Fenced by a late init of this process, or by a rival without a newer claim: a retry may succeed.
            fenced = refused.__context__  # `check_rival` waits for the rival's claim
            raise EpochFailed(f"The claim of {reader.topic} was fenced before it was committed.") from fenced
        raise
    control.check_owner(visible=offsets[-1])
    return offsets


def _successor(newest: Owner | None, new_lineage: bool) -> Owner:
    claim_id = secrets.token_hex(8)
    if newest is None:
        return Owner(1, 1, claim_id)
    return Owner(newest.lineage + new_lineage, newest.generation + 1, claim_id)


def newest_owner(kafka: KafkaSettings, job: str) -> Owner | None:
    """Return the current owner of a job's causal log, read without claiming it; None if no driver has claimed it
    yet.
    """
    tail = shared_reader(kafka, log_topic(job)).tail(CONTROL)
    return tail.record.owner if tail else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
