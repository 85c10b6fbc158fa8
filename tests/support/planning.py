"""Epochs that a test writes to a causal log as a driver does."""

from __future__ import annotations

from clonos.log.claiming import Ownership
from clonos.log.records import EpochCommitted, InputSlice, Plan


def planned(own: Ownership, query: str, epoch: int, *, committed: bool = True) -> None:
    """Append the plan of an epoch, and its commit record."""
    partitions = own.ensure_lanes(query, 1)
    plan = Plan(
        own.owner,
        query,
        epoch,
        input_slices=(InputSlice("range", "in", 0, epoch, epoch + 1),),
        scans=(),
        log_partitions=partitions,
        start_offsets={partition: own.tail_offsets[partition] for partition in partitions},
        seed=epoch,
        code="c",
        offsets="",
        timestamp_ms=0,
    )
    own.state.take(own.control.append(plan), plan)
    if committed:
        commit = EpochCommitted(own.owner, query, epoch, 1)
        own.state.take(own.control.append(commit), commit)
