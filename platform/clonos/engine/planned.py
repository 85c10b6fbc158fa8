"""What Spark is about to run: the source ranges of an epoch and what each sink partition is made of.

Read from the executed plan, because Spark's partition index alone is not stable across a replay (design
§5.0). Inside ``foreachBatch`` the batch's own frame only shows a scan of an existing RDD; the streaming
query's last execution shows the real plan.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from clonos.log.records import Held

_RANGE: Final = re.compile(r"KafkaOffsetRange\(([^,()]+)-(\d+),(-?\d+),(-?\d+),")


class Planned(NamedTuple):
    """One epoch as Spark will run it.

    Attributes:
        scans: Per streaming scan, its ranges in task order.
        held: Per sink partition, in task order, what it is made of.
    """

    scans: tuple[tuple[Held, ...], ...]
    held: tuple[Held, ...]

    def lanes(self) -> tuple[int, ...]:
        """Spark's partition index → lane: the rank of what the partition holds among the epoch's."""
        order = sorted(range(len(self.held)), key=lambda index: self.held[index])
        ranks = [0] * len(order)
        for rank, index in enumerate(order):
            ranks[index] = rank
        return tuple(ranks)


class _Unknown(Exception):
    """A plan node whose partitions cannot be told from its children."""


def read_plan(execution: Any, partitions: int) -> Planned:
    """The plan of a streaming query's last execution (a py4j handle).

    Args:
        execution: ``StreamExecution.lastExecution``.
        partitions: How many partitions the sink will get.
    """
    root = execution.executedPlan()
    scans: list[tuple[Held, ...]] = []
    leaves = root.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if _kind(leaf) == "MicroBatchScanExec":
            scans.append(_ranges(leaf))
    try:
        held = _made_of(root)
    except _Unknown:
        held = ()
    if len(held) != partitions:
        # Not followed to its sources (a coalesce, a static side): the verified order of the scans makes
        # Spark's own index mean the same in a replay.
        held = tuple(Held("task", "", index, 0, partitions) for index in range(partitions))
    return Planned(tuple(scans), held)


def _kind(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name


def _ranges(scan: Any) -> tuple[Held, ...]:
    text: str = scan.inputPartitions().toString()
    return tuple(
        Held("range", topic, int(partition), int(start), int(until))
        for topic, partition, start, until in _RANGE.findall(text)
    )


def _made_of(node: Any) -> tuple[Held, ...]:
    kind = _kind(node)
    if kind == "MicroBatchScanExec":
        return _ranges(node)
    if kind == "ShuffleExchangeExec":
        count = node.outputPartitioning().numPartitions()
        return tuple(Held("hash", "", index, 0, count) for index in range(count))
    if kind == "ReusedExchangeExec":
        return _made_of(node.child())
    if kind == "CoalesceExec":
        raise _Unknown(kind)
    children = node.children()
    parts = [children.apply(index) for index in range(children.size())]
    parts = [part for part in parts if not _kind(part).startswith("Broadcast")]
    if not parts:
        raise _Unknown(kind)
    if kind == "UnionExec":
        made: list[Held] = []
        for number, part in enumerate(parts):
            # Two shuffled children hold the same hash partitions: tell them apart by their place.
            made.extend(_placed(one, number) for one in _made_of(part))
        return tuple(made)
    return _made_of(parts[0])


def _placed(held: Held, child: int) -> Held:
    return (
        held
        if held.kind == "range"
        else Held(held.kind, f"child-{child}{held.topic}", held.partition, held.start, held.until)
    )
