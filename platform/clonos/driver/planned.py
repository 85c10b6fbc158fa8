"""Reads an epoch's source ranges, and the input slice of each sink partition, from Spark's query plan.

Spark's partition index alone does not identify the same input in a replay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from clonos.extend.source import Progress
from clonos.log.records import InputSlice

_Node = dict[str, Any]  # a node of a plan; `clonos.PlanTree` in Java describes its keys
_RANGE: Final = re.compile(r"KafkaOffsetRange\(([^,()]+)-(\d+),(-?\d+),(-?\d+),")


class Planned(NamedTuple):
    """The inputs of one epoch, from Spark's query plan."""

    scans: tuple[tuple[InputSlice, ...], ...]  # for each streaming scan, its ranges in task order
    input_slices: tuple[InputSlice, ...]  # the input slice of each sink partition, in task order
    live: bool = False  # whether the epoch reads until it is ended: its ranges are empty

    def lanes(self) -> tuple[int, ...]:
        """Lane of each partition of the sink: the rank of the partition's input slice among the epoch's slices, by
        Spark's partition index.
        """
        order = sorted(range(len(self.input_slices)), key=lambda index: self.input_slices[index])
        ranks = [0] * len(order)
        for rank, index in enumerate(order):
            ranks[index] = rank
        return tuple(ranks)


def contradictions(scans: Sequence[Sequence[InputSlice]], ends: Sequence[Progress]) -> list[str]:
    """Return the partitions whose ranges do not end where Spark's offset-log entry ends.

    Another process may have replaced the entry since Spark planned the epoch.

    Args:
        scans: The ranges of each scan.
        ends: Topic → partition → next offset, for each source in the entry.

    Returns:
        One text for each such partition, for example ``orders-0 ends at 7``.
    """
    wrong: list[str] = []
    for scan in scans:
        until: dict[tuple[str, int], int] = {}
        for part in scan:  # Spark may split a partition into several ranges
            key = (part.topic, part.partition)
            until[key] = max(part.until, until.get(key, 0))
        wrong += [
            f"{topic}-{partition} ends at {end}"
            for (topic, partition), end in until.items()
            if all(source.get(topic, {}).get(partition) != end for source in ends)
        ]
    return wrong


class _Unknown(Exception):
    """A plan node whose input slices do not follow from its children's."""


def read_plan(text: str, partitions: int) -> Planned:
    """Read the inputs of an epoch from its plan.

    Args:
        text: The plan, as `clonos.spark.internals.executed_plan` returns it.
        partitions: Number of partitions of the query's sink.
    """
    root: _Node = json.loads(text)
    scans = tuple(_ranges(leaf) for leaf in _leaves(root) if leaf["kind"] == "MicroBatchScanExec")
    try:
        slices = _slices(root)
    except _Unknown:
        slices = ()
    if len(slices) != partitions:
        # The plan does not lead to the sources (a coalesce, a static side). The verified order of the scans gives
        # Spark's own index the same meaning in a replay.
        slices = tuple(InputSlice("task", "", index, 0, partitions) for index in range(partitions))
    return Planned(scans, slices)


def _leaves(node: _Node) -> Iterator[_Node]:
    for child in node["children"]:
        yield from _leaves(child)
    if not node["children"]:
        yield node


def _ranges(scan: _Node) -> tuple[InputSlice, ...]:
    return tuple(
        InputSlice("range", topic, int(partition), int(start), int(until))
        for topic, partition, start, until in _RANGE.findall(scan["inputs"])
    )


def _slices(node: _Node) -> tuple[InputSlice, ...]:
    kind = node["kind"]
    if kind == "MicroBatchScanExec":
        return _ranges(node)
    if kind == "ShuffleExchangeExec":
        count = node["partitions"]
        return tuple(InputSlice("hash", "", index, 0, count) for index in range(count))
    if kind == "ReusedExchangeExec":
        return _slices(node["again"])
    if kind == "CoalesceExec":
        raise _Unknown(kind)
    parts = [child for child in node["children"] if not child["kind"].startswith("Broadcast")]
    if not parts:
        raise _Unknown(kind)
    if kind == "UnionExec":
        slices: list[InputSlice] = []
        for number, part in enumerate(parts):
            slices.extend(_in_child(part_slice, number) for part_slice in _slices(part))
        return tuple(slices)
    return _slices(parts[0])


def _in_child(part: InputSlice, child: int) -> InputSlice:
    """Return the slice, named after its child of a union: two shuffled children have the same hash partitions."""
    return (
        part
        if part.kind == "range"
        else InputSlice(part.kind, f"child-{child}{part.topic}", part.partition, part.start, part.until)
    )
