"""Truncates the causal log. Truncation never removes a record that a recovery could need (invariant 8).

Truncation retains the plans of the last `RETAINED_EPOCHS` epochs of every query. A host crash can lose that many from
Spark's offset log, which is not synced to the disk. Truncation also retains the determinants of these epochs, and the
newest claim or marker of every partition, which is renewed first.

The plans of a query without new epochs would keep all later records of control. They are written again at the end of
control, once they are old.
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from msgspec.structs import replace

from clonos.errors import KafkaAccessDenied
from clonos.kafka import admin_client, unanswered
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.records import Claim, EpochCommitted, EpochParts, LaneAssignment, Plan, Resolution
from clonos.log.topic import CONTROL

_TIMEOUT_S: Final = 5.0
# A plan is old if this many epochs of each query came after it.
_OLD_EPOCHS: Final = 4 * RETAINED_EPOCHS
_OFFSETS_PER_EPOCH: Final = 4  # plan and commit, each with the end of its transaction


def truncate(ownership: Ownership, *, sink: str | None = None, retained: int = RETAINED_EPOCHS) -> dict[int, int]:
    """Renew the claims of partitions, then delete the records before them that no recovery can need.

    The driver calls it between epochs.

    Args:
        ownership: The claimed log.
        sink: Truncate only the lanes of this sink. Renewing a claim aborts the open transaction of its lane, so the
            lanes of other queries, which may have an epoch in progress, must not be truncated.
        retained: Number of epochs of each query whose plans are retained.

    Returns:
        Partition → new first offset, for the partitions that were shortened.

    Raises:
        Superseded: Another driver claimed the job after this driver's claim.
        KafkaAccessDenied: The user may not delete records of the log; nothing was lost.
    """
    state = ownership.state
    newest: dict[str, int] = {}
    for query, epoch in state.plans:
        newest[query] = max(epoch, newest.get(query, -1))
    for query, epoch in list(state.plans):
        old = epoch <= newest[query] - retained and epoch <= state.committed.get(query, -1)
        if old or query in state.dropped:
            del state.plans[query, epoch]
    if not state.plans:
        return {}
    # A renewed claim on control repeats assignments and committed epochs, so only plans retain older records.
    assert state.claim is not None
    record = replace(
        state.claim,
        timestamp_ms=time.time_ns() // 1_000_000,
        assignments=state.assignments(),
        committed=dict(state.committed),
        follows="",
        topic_ids=dict(state.topic_ids),
    )
    renewed = ownership.control.append(record)
    ownership.control.check_owner()
    _renew_old_plans(ownership, before=renewed - _OLD_EPOCHS * _OFFSETS_PER_EPOCH * len(newest))
    plans = [state.plans[key] for key in sorted(state.plans)]
    keep = {CONTROL: min(offset for offset, _ in plans if offset >= 0)}
    # The claim before a retained plan must stay, or the plan would be void.
    keep[CONTROL] = min(keep[CONTROL], _claim_before(ownership, keep[CONTROL]))
    lanes = [LaneAssignment(*key, partition) for key, partition in state.lanes.items() if sink in (None, key[0])]
    ownership.claim_lanes(lanes)
    for partition in (lane.partition for lane in lanes):
        starts = [plan.start_offsets[partition] for _, plan in plans if partition in plan.start_offsets]
        keep[partition] = min([ownership.claimed[partition], *starts])
    return _delete(ownership, keep)


def _renew_old_plans(ownership: Ownership, *, before: int) -> None:
    """Write the plans at offsets below `before` again at the end of control, with all that belongs to their queries.

    A renewed plan has the offset and the owner of its new record. A reader of the whole log uses the first one.
    """
    state, owner = ownership.state, ownership.owner
    old = {key: plan for key, (offset, plan) in sorted(state.plans.items()) if 0 <= offset < before}
    if not old:
        return
    queries = {query for query, _ in old}
    records: list[Plan | EpochParts | EpochCommitted | Resolution] = [
        replace(plan, owner=owner) for plan in old.values()
    ]
    records += [replace(parts, owner=owner) for key, parts in state.parts.items() if key in old]
    records += [replace(commit, owner=owner) for query, commit in state.commits.items() if query in queries]
    records += [
        replace(entry, owner=owner, decided_by=entry.owner) for key, entry in state.resolutions.items() if key in old
    ]
    for offset, record in zip(ownership.control.append_all(records), records, strict=True):
        if isinstance(record, Plan):
            del state.plans[record.query, record.epoch]  # of two plans of an epoch, the first would count
        state.take(offset, record)


def _claim_before(ownership: Ownership, offset: int) -> int:
    low, _ = ownership.reader.bounds(CONTROL)
    newest = low
    for position, record in ownership.reader.read(CONTROL, low, offset):
        if isinstance(record, Claim):
            newest = position
    return newest


def _delete(ownership: Ownership, keep: dict[int, int]) -> dict[int, int]:
    shortened = {
        partition: offset for partition, offset in keep.items() if offset > ownership.reader.bounds(partition)[0]
    }
    if not shortened:
        return {}
    targets = [TopicPartition(ownership.topic, partition, offset) for partition, offset in shortened.items()]
    try:
        admin = admin_client(ownership.kafka, ownership.topic)
        # Kafka answers when all live replicas have deleted their records. The truncation does not wait for them.
        for future in admin.delete_records(targets, request_timeout=_TIMEOUT_S, operation_timeout=0).values():
            future.result(2 * _TIMEOUT_S)
    except (KafkaException, TimeoutError) as failure:
        refusal = (
            unanswered(
                f"The log {ownership.topic} was not truncated",
                failure.args[0],
                right=f"DELETE on the topic {ownership.topic}",
            )
            if isinstance(failure, KafkaException)
            else None
        )
        if isinstance(refusal, KafkaAccessDenied):
            raise refusal from failure
        return {}  # the next truncation tries again
    return shortened
