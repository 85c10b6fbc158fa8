"""The drawing of a job's graph: nothing overlaps, lines end at their boxes, long and many names fit."""

from __future__ import annotations

import itertools
import re

import pytest

from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos_api.dashboard.graph_layout import WIDTH, Box, Layout, fitting, layout


def topic(name: str) -> TopicNode:
    return TopicNode(kind="topic", id=f"topic:{name}", name=name)


def query(name: str) -> QueryNode:
    return QueryNode(id=f"query:{name}", name=name, sink="KafkaSink")


def operator(name: str, of: str, **fields: float) -> OperatorNode:
    return OperatorNode(id=f"operator:{of}:{name}", name=name, query=f"query:{of}", **fields)


def reads(of: str, name: str, rate: float | None = 1.0, lag: int | None = None) -> GraphEdge:
    return GraphEdge(kind="input", source=f"topic:{name}", target=f"query:{of}", records_per_s=rate, lag=lag)


def writes(of: str, name: str, rate: float | None = 1.0) -> GraphEdge:
    return GraphEdge(kind="output", source=f"query:{of}", target=f"topic:{name}", records_per_s=rate)


def graph(queries: int, inputs: int, outputs: int, operators: int) -> JobGraph:
    """Queries with topics of their own, and one topic that all of them read and write."""
    nodes: list[TopicNode | QueryNode | OperatorNode] = [topic("shared")]
    edges = []
    for number in range(queries):
        name = f"q{number}"
        nodes.append(query(name))
        nodes.extend(operator(f"o{each}", name) for each in range(operators))
        for each in range(inputs):
            nodes.append(topic(f"in-{number}-{each}"))
            edges.append(reads(name, f"in-{number}-{each}"))
        for each in range(outputs):
            nodes.append(topic(f"out-{number}-{each}"))
            edges.append(writes(name, f"out-{number}-{each}"))
        edges += [reads(name, "shared"), writes(name, "shared")]
    return JobGraph(generation=1, nodes=nodes, edges=edges)


def texts(drawing: Layout) -> list[str]:
    return [label.text for part in (*drawing.boxes, *drawing.wires) for label in part.labels]


def overlap(first: Box, second: Box) -> bool:
    return (
        first.x < second.x + second.width
        and second.x < first.x + first.width
        and first.y < second.y + second.height
        and second.y < first.y + first.height
    )


SHAPES = [(1, 1, 1, 0), (1, 0, 5, 1), (3, 2, 1, 4), (2, 7, 7, 12), (4, 30, 30, 30), (30, 1, 0, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_do_not_overlap_and_are_inside(shape: tuple[int, int, int, int]) -> None:
    drawing = layout(graph(*shape))
    outer = [box for box in drawing.boxes if box.kind != "operator"]
    inner = [box for box in drawing.boxes if box.kind == "operator"]
    for boxes in (outer, inner):
        assert not any(overlap(first, second) for first, second in itertools.combinations(boxes, 2))
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.x + box.width <= WIDTH
        assert box.y >= 0
        assert box.y + box.height <= drawing.height + 1
    for box in inner:
        (around,) = [query for query in outer if overlap(query, box)]
        assert around.kind == "query"
        assert around.y < box.y
        assert box.y + box.height < around.y + around.height


@pytest.mark.parametrize("shape", SHAPES)
def test_each_line_joins_a_topic_and_a_query(shape: tuple[int, int, int, int]) -> None:
    drawing = layout(graph(*shape))
    sides: dict[float, list[Box]] = {}
    for box in drawing.boxes:
        if box.kind != "operator":
            sides.setdefault(box.x, []).append(box)
            sides.setdefault(box.x + box.width, []).append(box)
    ends = set()
    for wire in drawing.wires:
        points = [(float(x), float(y)) for x, y in re.findall(r"(?:M|[ C])(-?[\d.]+) (-?[\d.]+)", wire.path)]
        begin, end = points[0], points[-1]
        if "H" in wire.path.rpartition(" ")[2]:
            end = (float(wire.path.rpartition("H")[2]), points[-1][1])
        for x, y in (begin, end):
            assert [box for box in sides[x] if box.y <= y <= box.y + box.height]
        assert (begin, end) not in ends
        ends.add((begin, end))


def test_figures_are_at_their_lines() -> None:
    nodes = [topic("in"), topic("out"), query("q"), operator("judge", "q", recorded=1200, recorded_per_s=12.0)]
    drawing = layout(JobGraph(nodes=nodes, edges=[reads("q", "in", 120.0, 4000), writes("q", "out", None)]))
    read, written = drawing.wires
    assert [label.text for label in read.labels] == ["120 /s", "lag 4 000"]
    assert written.labels == ()
    assert {"judge", "12 /s", "1 200 determinants", "0 /s read, 0 /s published"} <= set(texts(drawing))


def test_what_is_left_out_is_summed_up() -> None:
    nodes = [query("q"), *(topic(f"t{each}") for each in range(20))]
    edges = [reads("q", f"t{each}", 2.0, each) for each in range(20)]
    drawing = layout(JobGraph(nodes=[*nodes, *(operator(f"o{each}", "q") for each in range(15))], edges=edges))
    assert len(drawing.wires) == 8
    assert {"13 more topics", "26 /s", f"lag {sum(range(7, 20))}", "3 more operators"} <= set(texts(drawing))
    assert layout(graph(25, 1, 1, 1)).queries_left_out == 5


def test_dead_letters_are_always_drawn() -> None:
    nodes = [query("q"), *(topic(f"t{each}") for each in range(20))]
    dead = GraphEdge(kind="dead-letters", source="query:q", target="topic:t19", records_per_s=1.0)
    drawing = layout(JobGraph(nodes=nodes, edges=[*(writes("q", f"t{each}", None) for each in range(19)), dead]))
    assert [wire.kind for wire in drawing.wires].count("dead-letters") == 1
    assert ("q", "t19", "dead-letters", 1.0) in [
        (flow.source, flow.target, flow.kind, flow.records_per_s) for flow in drawing.flows
    ]
    assert len(drawing.flows) == 8


@pytest.mark.parametrize("text", ["", "a", "a" * 23, "a" * 24, "a" * 249, "漢字" * 40, "é" * 30])
def test_names_fit(text: str) -> None:
    shown = fitting(text, 200)
    wide = sum(2 if character in "漢字" else 1 for character in shown)
    assert wide <= 23
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]) and wide >= 22)


def test_a_graph_without_nodes_has_no_drawing() -> None:
    drawing = layout(JobGraph())
    assert (drawing.boxes, drawing.wires, drawing.height) == ((), (), 0)
