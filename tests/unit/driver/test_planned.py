"""Reading Spark's executed plan, on small stand-ins for its nodes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from clonos.driver.checkpoint import source_ends
from clonos.driver.planned import Planned, contradictions, read_plan
from clonos.log.records import InputSlice

Node = dict[str, Any]


def node(kind: str, *children: Node, **more: Any) -> Node:
    """A plan node as `clonos.PlanTree` in Java shows it."""
    return {"kind": kind, "children": list(children), **more}


def scan(*ranges: str) -> Node:
    parts = ", ".join(f"KafkaBatchInputPartition(KafkaOffsetRange({text},None),{{}},512,true)" for text in ranges)
    return node("MicroBatchScanExec", inputs=f"Vector({parts})")


def shuffle(child: Node, partitions: int) -> Node:
    return node("ShuffleExchangeExec", child, partitions=partitions)


def read(root: Node, partitions: int) -> Planned:
    return read_plan(json.dumps(root), partitions)


LINES = ("lines-2,10,20", "lines-0,0,5", "lines-1,7,9")
HELD = (
    InputSlice("range", "lines", 2, 10, 20),
    InputSlice("range", "lines", 0, 0, 5),
    InputSlice("range", "lines", 1, 7, 9),
)


def hashes(count: int, topic: str = "") -> tuple[InputSlice, ...]:
    return tuple(InputSlice("hash", topic, index, 0, count) for index in range(count))


def tasks(count: int) -> tuple[InputSlice, ...]:
    return tuple(InputSlice("task", "", index, 0, count) for index in range(count))


def test_ranges_in_task_order() -> None:
    planned = read(node("ProjectExec", node("ArrowEvalPythonExec", scan(*LINES))), 3)
    assert planned.scans == (HELD,)
    assert planned.input_slices == HELD


@pytest.mark.parametrize("topic", ["a-1", "a.b_c-2-3", "9-9-9"])
def test_topics_with_dashes_and_dots(topic: str) -> None:
    assert read(scan(f"{topic}-12,5,6"), 1).input_slices == (InputSlice("range", topic, 12, 5, 6),)


def test_nothing_to_read() -> None:
    planned = read(scan(), 0)
    assert planned == Planned(((),), ())
    assert planned.lanes() == ()


def test_shuffle_has_hash_partitions() -> None:
    planned = read(node("HashAggregateExec", shuffle(scan(*LINES), 4)), 4)
    assert planned.scans == (HELD,)
    assert planned.input_slices == hashes(4)


def test_a_union_has_its_childrens_partitions() -> None:
    planned = read(node("UnionExec", scan(*LINES), scan("more-0,1,2")), 4)
    assert planned.scans == (HELD, (InputSlice("range", "more", 0, 1, 2),))
    assert planned.input_slices == (*HELD, InputSlice("range", "more", 0, 1, 2))


def test_union_of_shuffles_names_each_child() -> None:
    planned = read(node("UnionExec", shuffle(scan("a-0,0,1"), 2), shuffle(scan("b-0,0,1"), 2)), 4)
    assert planned.input_slices == (*hashes(2, "child-0"), *hashes(2, "child-1"))
    assert sorted(planned.lanes()) == [0, 1, 2, 3]


def test_nested_unions_name_each_child() -> None:
    inner = node("UnionExec", shuffle(scan("a-0,0,1"), 2), shuffle(scan("b-0,0,1"), 2))
    planned = read(node("UnionExec", inner, shuffle(scan("c-0,0,1"), 2)), 6)
    assert len(set(planned.input_slices)) == 6


@pytest.mark.parametrize("broadcast_first", [True, False])
def test_a_broadcast_side_has_no_part_in_the_partitions(broadcast_first: bool) -> None:
    table = node("BroadcastExchangeExec", node("LocalTableScanExec"))
    sides = (table, scan(*LINES)) if broadcast_first else (scan(*LINES), table)
    assert read(node("BroadcastHashJoinExec", *sides), 3).input_slices == HELD


def test_an_exchange_used_again() -> None:
    first = shuffle(scan(*LINES), 2)
    planned = read(node("UnionExec", first, node("ReusedExchangeExec", again=first)), 4)
    assert planned.input_slices == (*hashes(2, "child-0"), *hashes(2, "child-1"))


@pytest.mark.parametrize(
    ("root", "partitions"),
    [
        (node("CoalesceExec", scan(*LINES)), 1),
        (node("ProjectExec", node("CoalesceExec", shuffle(scan(*LINES), 4))), 3),
        (node("UnionExec", scan(*LINES), node("LocalTableScanExec")), 4),
        (node("CartesianProductExec", scan(*LINES), scan(*LINES)), 9),
        (node("BroadcastNestedLoopJoinExec", node("BroadcastExchangeExec", scan(*LINES))), 2),
    ],
)
def test_unknown_plans_fall_back_to_the_task_index(root: Node, partitions: int) -> None:
    planned = read(root, partitions)
    assert planned.input_slices == tasks(partitions)
    assert planned.lanes() == tuple(range(partitions))
    assert HELD in planned.scans  # which is what then keeps the index meaning the same


def test_static_sides_are_not_scans() -> None:
    planned = read(node("SortMergeJoinExec", shuffle(scan(*LINES), 2), shuffle(node("LocalTableScanExec"), 2)), 2)
    assert planned.scans == (HELD,)
    assert planned.input_slices == hashes(2)


def test_lanes_do_not_depend_on_the_order_of_tasks() -> None:
    ranges = [f"{topic}-{partition},0,5" for topic in ("b", "a", "a-1") for partition in (10, 2, 0)]
    first = read(scan(*ranges), len(ranges))
    lane_of = dict(zip(first.input_slices, first.lanes(), strict=True))
    assert sorted(lane_of.values()) == list(range(len(ranges)))
    for seed in range(20):
        random.Random(seed).shuffle(ranges)
        again = read(scan(*ranges), len(ranges))
        assert dict(zip(again.input_slices, again.lanes(), strict=True)) == lane_of


def test_equal_slices_have_separate_lanes() -> None:
    """One topic read by two sources in a union: the same range twice."""
    planned = read(node("UnionExec", scan("a-0,0,5"), scan("a-0,0,5")), 2)
    assert planned.lanes() == (0, 1)


ENTRY = 'v1\n{}\n{"orders":{"0":7,"1":9}}\n-\n{"orders":{"0":5},"users":{"0":2}}'


@pytest.mark.parametrize(
    ("scans", "wrong"),
    [
        ([[("orders", 0, 3, 7), ("orders", 1, 9, 9)], [("users", 0, 0, 2)]], []),
        ([[("orders", 0, 3, 5), ("orders", 0, 5, 7)]], []),  # split by minPartitions
        ([[("orders", 0, 3, 5)]], []),  # the second source of the same topic
        ([[("orders", 0, 3, 6), ("orders", 1, 9, 9)]], ["orders-0 ends at 6"]),
        ([[("users", 1, 0, 4)]], ["users-1 ends at 4"]),
        ([], []),
    ],
)
def test_a_plan_that_contradicts_the_offset_log_is_seen(
    scans: list[list[tuple[str, int, int, int]]], wrong: list[str]
) -> None:
    """A superseded driver may replace the entry between Spark's planning and the plan in the log."""
    ranges = [[InputSlice("range", *part) for part in scan] for scan in scans]
    assert contradictions(ranges, source_ends(ENTRY)) == wrong
