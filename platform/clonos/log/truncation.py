"""Truncation of the causal log: never past what a recovery could still need (invariant 8).

Kept are the plans of the last `RETAINED_EPOCHS` epochs of every query (a host crash can take that many
from Spark's offset log, which is not synced to disk), the determinants that belong to them, and the newest
claim or marker of every partition, which is renewed first.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.log.claiming import Ownership
from clonos.log.control import RETAINED_EPOCHS
from clonos.log.records import Allotment, Claim
from clonos.log.topic import CONTROL


def truncate(ownership: Ownership, *, sink: str | None = None, retained: int = RETAINED_EPOCHS) -> dict[int, int]:
    """Renew claims, then delete the records that no recovery can need.

    Call it between epochs, from the driver.

    Args:
        ownership: The log's owner.
        sink: Shorten the lanes of this sink only: renewing a claim aborts what its lane has open, so lanes of
            other queries, whose epochs may be running, must be left alone.
        retained: Plans of so many epochs are kept.

    Returns:
        Partition → new first offset, for the partitions that were shortened.

    Raises:
        Superseded: A newer claim stands.
    """
    state = ownership.state
    newest: dict[str, int] = {}
    for query, epoch in state.plans:
        newest[query] = max(epoch, newest.get(query, -1))
    for query, epoch in list(state.plans):
        if epoch <= newest[query] - retained and epoch <= state.ended.get(query, -1):
            del state.plans[query, epoch]
    plans = [state.plans[key] for key in sorted(state.plans)]
    if not plans:
        return {}
    # Control: a renewed claim repeats allotments and ends, so only retained plans hold records back.
    record = Claim(
        ownership.owner,
        time.time_ns() // 1_000_000,
        allotments=state.allotments(),
        ended=dict(state.ended),
        wish=state.claim.wish if state.claim is not None else "",
    )
    ownership.control.append(record)
    ownership.control.check_owner()
    keep = {CONTROL: min(offset for offset, _ in plans if offset >= 0)}
    # The claim under which a retained plan was written must stay, or the plan would look void.
    keep[CONTROL] = min(keep[CONTROL], _claim_before(ownership, keep[CONTROL]))
    for name, lane in sorted(state.lanes):
        if sink not in (None, name):
            continue
        partition = state.lanes[name, lane]
        ownership.renew(Allotment(name, lane, partition))
        held = [plan.since[partition] for _, plan in plans if partition in plan.since]
        keep[partition] = min([ownership.claimed[partition], *held])
    return _delete(ownership, keep)


def _claim_before(ownership: Ownership, offset: int) -> int:
    low, _ = ownership.reader.bounds(CONTROL)
    newest = low
    for position, record in ownership.reader.stretch(CONTROL, low, offset):
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
            return {}  # the log is longer than it needs to be; the next truncation tries again
    return shortened
