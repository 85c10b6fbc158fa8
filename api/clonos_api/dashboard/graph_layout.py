"""Places the nodes of a job's graph: topics that are read, queries with their operators, topics that are written.

The three columns have fixed widths, so that texts keep their size; a narrow page scrolls. A topic that one query writes
and another reads is drawn on both sides, so that no line runs backwards.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from clonos.resources.figures import number
from clonos.resources.job_graph import GraphEdge, JobGraph, OperatorNode, QueryNode, TopicNode
from clonos_api.dashboard.rendering import rate

Side = Literal["in", "out"]

# All lengths are in pixels.
_TOPIC: Final = 220  # width of a topic
_LABEL: Final = 110  # length of the straight part of a line, with its texts
_CURVE: Final = 60
_QUERY: Final = 300  # width of a query
_SLOT: Final = 46  # height of a line's end at a topic
_PAD: Final = 10
_LINE: Final = 18  # height of a line of text
_OPERATOR: Final = 44
_GAP: Final = 8
_BAND_GAP: Final = 26
_CHARACTER: Final = 8.6  # mean width in a bold name
# What is drawn.
_TOPICS: Final = 8
_OPERATORS: Final = 12
_QUERIES: Final = 20
_LEFT: Final = _TOPIC + _LABEL + _CURVE
WIDTH: Final = 2 * _LEFT + _QUERY
_RECEIVES: Final = {"columns": "columns", "batches": "batches", "groups": "groups", "state": "rows and state", None: ""}


@dataclass(frozen=True)
class Label:
    """A text in the drawing.

    Attributes:
        style: CSS class; empty: plain text.
        anchor: Where `x` is: ``start``, ``middle`` or ``end`` of the text.
    """

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"


@dataclass(frozen=True)
class Box:
    """A node: its rectangle, texts, and the whole name as a tooltip."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    tooltip: str
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Wire:
    """An edge: the path of its line, and texts at the topic's end."""

    kind: str
    path: str
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Flow:
    """A line: the names at its ends, and its figures."""

    source: str
    target: str
    kind: str
    records_per_s: float | None
    lag: int | None


@dataclass(frozen=True)
class Layout:
    """A drawing.

    Attributes:
        graph: The graph.
        flows: What the lines stand for, as a table.
        operators: The operators that are drawn, each with the name of its query.
        queries_left_out: Number of queries that are not drawn.
    """

    graph: JobGraph
    width: int
    height: int
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    flows: tuple[Flow, ...]
    operators: tuple[tuple[str, OperatorNode], ...]
    queries_left_out: int = 0


@dataclass
class _Topic:
    """A topic at one side of the queries, with one slot for each line."""

    name: str
    kind: str
    slots: int = 0
    used: int = 0
    y: float = 0.0

    @property
    def height(self) -> float:
        return self.slots * _SLOT - _GAP


@dataclass(frozen=True)
class _Line:
    """An edge that is drawn, to a topic or to the sum of those left out."""

    edge: GraphEdge
    topic: _Topic


def layout(graph: JobGraph) -> Layout:
    """Place the nodes and edges of `graph`."""
    queries = [node for node in graph.nodes if isinstance(node, QueryNode)]
    operators: dict[str, list[OperatorNode]] = defaultdict(list)
    for node in graph.nodes:
        if isinstance(node, OperatorNode):
            operators[node.query].append(node)
    lines = _Lines(graph)
    drawn = [(query, lines.of("in", query), lines.of("out", query)) for query in queries[:_QUERIES]]
    boxes: list[Box] = []
    wires: list[Wire] = []
    placed: set[int] = set()
    top = 0.0
    ports: list[tuple[Side, list[_Line], float, float]] = []
    for query, inputs, outputs in drawn:
        box_height = _query_height(query, operators[query.id])
        new = {
            side: [topic for topic in _distinct(side_lines) if id(topic) not in placed]
            for side, side_lines in (("in", inputs), ("out", outputs))
        }
        heights = [sum(topic.slots * _SLOT for topic in topics) - _GAP for topics in new.values()]
        height = max(box_height, *heights)
        for (side, topics), stack in zip(new.items(), heights, strict=True):
            y = top + (height - stack) / 2
            for topic in topics:
                placed.add(id(topic))
                topic.y = y
                boxes.append(_topic_box(topic, 0 if side == "in" else WIDTH - _TOPIC))
                y += topic.slots * _SLOT
        y = top + (height - box_height) / 2
        boxes += _query_boxes(query, operators[query.id], y, box_height)
        ports += [("in", inputs, y, box_height), ("out", outputs, y, box_height)]
        top += height + _BAND_GAP
    for side, side_lines, y, box_height in ports:
        wires += _wires(side, side_lines, y, box_height)
    flows = [
        flow
        for query, inputs, outputs in drawn
        for flow in (
            *(_flow(line, line.topic.name, query.name) for line in inputs),
            *(_flow(line, query.name, line.topic.name) for line in outputs),
        )
    ]
    shown = [(query.name, operator) for query, _, _ in drawn for operator in operators[query.id][:_OPERATORS]]
    height = round(max(top - _BAND_GAP, 0))
    left_out = len(queries) - len(drawn)
    return Layout(graph, WIDTH, height, tuple(boxes), tuple(wires), tuple(flows), tuple(shown), left_out)


def _flow(line: _Line, source: str, target: str) -> Flow:
    return Flow(source, target, line.edge.kind, line.edge.records_per_s, line.edge.lag)


class _Lines:
    """The lines of each query. Queries share the topics of a side."""

    def __init__(self, graph: JobGraph) -> None:
        self._edges = graph.edges
        self._nodes = {node.id: node for node in graph.nodes if isinstance(node, TopicNode)}
        self._topics: dict[tuple[Side, str], _Topic] = {}

    def of(self, side: Side, query: QueryNode) -> list[_Line]:
        if side == "in":
            ends = [(edge, edge.source) for edge in self._edges if edge.target == query.id]
        else:
            ends = [(edge, edge.target) for edge in self._edges if edge.source == query.id]
            ends.sort(key=lambda end: end[0].kind != "dead-letters")  # always drawn
        shown = ends if len(ends) <= _TOPICS else ends[: _TOPICS - 1]
        lines = [_Line(edge, self._topic(side, self._nodes[end])) for edge, end in shown]
        if rest := [edge for edge, _ in ends[len(shown) :]]:
            lines.append(_Line(_sum(rest), _Topic(f"{len(rest)} more topics", "more", slots=1)))
        return lines

    def _topic(self, side: Side, node: TopicNode) -> _Topic:
        topic = self._topics.setdefault((side, node.id), _Topic(node.name, node.kind))
        topic.slots += 1
        return topic


def _sum(edges: Sequence[GraphEdge]) -> GraphEdge:
    rates = [edge.records_per_s for edge in edges if edge.records_per_s is not None]
    lags = [edge.lag for edge in edges if edge.lag is not None]
    first = edges[0]
    return GraphEdge(
        kind=first.kind,
        source=first.source,
        target=first.target,
        records_per_s=sum(rates) if len(rates) == len(edges) else None,
        lag=sum(lags) if len(lags) == len(edges) else None,
    )


def _distinct(lines: Sequence[_Line]) -> list[_Topic]:
    return list({id(line.topic): line.topic for line in lines}.values())


def _topic_box(topic: _Topic, x: float) -> Box:
    kinds = {"pattern": "pattern", "sink": "sink", "rows": "", "more": "", "topic": ""}
    middle = topic.y + topic.height / 2 + 5
    small = kinds[topic.kind]
    labels = [Label(x + _PAD, middle - (_LINE / 2 if small else 0), fitting(topic.name, _TOPIC - 2 * _PAD), "name")]
    if small:
        labels.append(Label(x + _PAD, middle + _LINE / 2, small, "small"))
    return Box("topic", x, topic.y, _TOPIC, topic.height, topic.name, tuple(labels))


def _facts(query: QueryNode) -> list[str]:
    facts = [f"{rate(query.records_in_per_s)} read, {rate(query.records_out_per_s)} published"]
    if query.state:
        facts.append(f"state: {', '.join(query.state)}")
    return facts


def _query_height(query: QueryNode, operators: Sequence[OperatorNode]) -> float:
    rows = min(len(operators), _OPERATORS)
    more = _LINE if len(operators) > _OPERATORS else 0
    return 2 * _PAD + _LINE * (1 + len(_facts(query))) + rows * (_OPERATOR + _GAP) + more


def _query_boxes(query: QueryNode, operators: Sequence[OperatorNode], top: float, height: float) -> list[Box]:
    left, width = _LEFT + _PAD, _QUERY - 2 * _PAD
    y = top + _PAD + 13
    labels = [Label(left, y, fitting(query.name, width), "name")]
    for fact in _facts(query):
        y += _LINE
        labels.append(Label(left, y, fitting(fact, width), "small"))
    boxes = []
    y += _GAP + 1
    for operator in operators[:_OPERATORS]:
        boxes.append(_operator_box(operator, left, y, width))
        y += _OPERATOR + _GAP
    if len(operators) > _OPERATORS:
        labels.append(Label(left, y + 10, f"{len(operators) - _OPERATORS} more operators", "small"))
    return [Box("query", _LEFT, top, _QUERY, height, query.name, tuple(labels)), *boxes]


def _operator_box(operator: OperatorNode, x: float, y: float, width: float) -> Box:
    per_second = rate(operator.recorded_per_s) if operator.recorded else ""
    receives = f"{_RECEIVES[operator.takes]}{', timers' if operator.timers else ''}"
    recorded = f"{number(operator.recorded)} determinants" if operator.recorded else "no determinants"
    free = width - 2 * _PAD - _CHARACTER * (len(per_second) + 1 if per_second else 0)
    labels = [
        Label(x + _PAD, y + 18, fitting(operator.name, free), "name"),
        Label(x + _PAD, y + 35, " · ".join(filter(None, (receives, recorded))), "small"),
    ]
    if per_second:
        labels.append(Label(x + width - _PAD, y + 18, per_second, "rate", "end"))
    return Box("operator", x, y, width, _OPERATOR, operator.name, tuple(labels))


def _wires(side: Side, lines: Sequence[_Line], top: float, height: float) -> list[Wire]:
    """The lines at one side of a query, whose ends at the query are in the order of those at the topics."""
    ends = []
    for line in lines:
        ends.append((line.topic.y + line.topic.used * _SLOT + (_SLOT - _GAP) / 2, line))
        line.topic.used += 1
    ends.sort(key=lambda end: end[0])
    wires = []
    for index, (y, line) in enumerate(ends, 1):
        port = top + height * index / (len(ends) + 1)
        if side == "in":
            begin, bend, end = _TOPIC, _TOPIC + _LABEL, _LEFT
            path = f"M{begin} {y:g}H{bend}C{bend + _CURVE / 2:g} {y:g} {bend + _CURVE / 2:g} {port:g} {end} {port:g}"
        else:
            begin, bend, end = _LEFT + _QUERY, _LEFT + _QUERY + _CURVE, WIDTH - _TOPIC
            path = f"M{begin} {port:g}C{begin + _CURVE / 2:g} {port:g} {begin + _CURVE / 2:g} {y:g} {bend} {y:g}H{end}"
        middle = (_TOPIC if side == "in" else WIDTH - _TOPIC - _LABEL) + _LABEL / 2
        wires.append(Wire(line.edge.kind, path, _wire_labels(line.edge, middle, y)))
    return wires


def _wire_labels(edge: GraphEdge, x: float, y: float) -> tuple[Label, ...]:
    labels = []
    if edge.records_per_s is not None:
        labels.append(Label(x, y - 5, rate(edge.records_per_s) or "", "rate", "middle"))
    if edge.lag is not None:
        labels.append(Label(x, y + 15, f"lag {number(edge.lag)}", "behind" if edge.lag else "small", "middle"))
    elif edge.kind == "dead-letters":
        labels.append(Label(x, y + 15, "dead letters", "small", "middle"))
    return tuple(labels)


def fitting(text: str, width: float) -> str:
    """`text`, shortened to `width` pixels.

    Example:
        >>> fitting("payments", 200)
        'payments'
        >>> fitting("a-topic-with-a-long-name", 80)
        'a-topic-…'
    """
    room = int(width / _CHARACTER)
    if _columns(text) <= room:
        return text
    while text and _columns(text) > room - 1:
        text = text[:-1]
    return f"{text}…"


def _columns(text: str) -> int:
    """The width of a text in characters of the usual width."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
