"""Truncates the causal log. Truncation never removes a record that a recovery could need (invariant 8).

Truncation retains the plans of the last `RETAINED_EPOCHS` epochs of every query. A host crash can lose that many from
Spark's offset log, which is not synced to the disk. Truncation also retains the determinants of these epochs, and the
newest claim or marker of every partition, which is renewed first.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.records import Claim, LaneAssignment
from clonos.log.topic import CONTROL


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
    """
    state = ownership.state
    newest: dict[str, int] = {}
    for query, epoch in state.plans:
        newest[query] = max(epoch, newest.get(query, -1))
    for query, epoch in list(state.plans):
        if epoch <= newest[query] - retained and epoch <= state.committed.get(query, -1):
            del state.plans[query, epoch]
    plans = [state.plans[key] for key in sorted(state.plans)]
    if not plans:
        return {}
    # A renewed claim on control repeats assignments and committed epochs, so only plans retain older records.
    record = Claim(
        ownership.owner,
        time.time_ns() // 1_000_000,
        assignments=state.assignments(),
        committed=dict(state.committed),
        request_key=state.claim.request_key if state.claim is not None else "",
    )
    ownership.control.append(record)
    ownership.control.check_owner()
    keep = {CONTROL: min(offset for offset, _ in plans if offset >= 0)}
    # The claim before a retained plan must stay, or the plan would be void.
    keep[CONTROL] = min(keep[CONTROL], _claim_before(ownership, keep[CONTROL]))
    lanes = [LaneAssignment(*key, partition) for key, partition in state.lanes.items() if sink in (None, key[0])]
    ownership.claim_lanes(lanes)
    for partition in (lane.partition for lane in lanes):
        starts = [plan.start_offsets[partition] for _, plan in plans if partition in plan.start_offsets]
        keep[partition] = min([ownership.claimed[partition], *starts])
    return _delete(ownership, keep)


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
    admin = AdminClient(client_config(ownership.kafka))
    targets = [TopicPartition(ownership.topic, partition, offset) for partition, offset in shortened.items()]
    for future in admin.delete_records(targets).values():
        try:
            future.result(15.0)
        except KafkaException:
            return {}  # the next truncation tries again
    return shortened
