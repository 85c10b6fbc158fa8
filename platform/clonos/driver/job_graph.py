"""The graph of a job: what each query reads, the operators that it runs, and where it writes.

A driver reports the graph with each claim, for people. No more than the order in which queries start depends on it:
what this cannot read in a plan of Spark, it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from clonos.causal.logical_plan import PlanNode, PythonFunction, logical_plan, mentions
from clonos.causal.naming import defined_operators
from clonos.driver.repeatable import StreamingScan, streaming_scans
from clonos.formats.poison import COLUMN, FANNED_OUT, UDF_NAME
from clonos.jobs.context import Query
from clonos.telemetry.driver_events import Graph, GraphOperator, GraphQuery

# What an operator's function receives, by the beginning of the plan node's name; other nodes have columns.
_TAKES: Final = {
    "MapIn": "batches",
    "PythonMapIn": "batches",
    "FlatMapGroupsInPandasWithState": "state",
    "TransformWithState": "state",
    "FlatMapGroups": "groups",
    "FlatMapCoGroups": "groups",
}
_STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "deduplicate",
    "DeduplicateWithinWatermark": "deduplicate",
    "Distinct": "deduplicate",
    "Join": "join",
    "FlatMapGroupsInPandasWithState": "function with state",
    "FlatMapGroupsWithState": "function with state",
    "TransformWithState": "function with state",
    "TransformWithStateInPySpark": "function with state",
}
_TIMED: Final = ("ProcessingTime", "EventTime")
# A pattern as `clonos_connectors.kafka` passes it to Spark.
_PATTERN: Final = re.compile(r"\^\(\?!clonos\\\.\)\(\?:(.*)\)\$")
_MOST_NAMES: Final = 100
_LONGEST_BYTES: Final = 200_000
_log = structlog.get_logger("clonos")


def dead_letter_topics(graph: Graph, query: str) -> frozenset[str]:
    """Return the topics to which a query publishes poison records."""
    return frozenset(graph.get(query, GraphQuery()).dead_letters)


def published_topics(graph: Graph, query: Query) -> frozenset[str]:
    """Return the topics that a query is known to write, topics of poison records included."""
    topic = getattr(query.sink, "topic", None)
    named = frozenset({topic} if isinstance(topic, str) else ())
    return named | frozenset(graph.get(query.name, GraphQuery()).outputs) | dead_letter_topics(graph, query.name)


def job_graph(queries: Sequence[Query], dead_letters: Mapping[str, str]) -> Graph:
    """Describe the queries of a job.

    Args:
        queries: The queries.
        dead_letters: Name of a decoding function in Spark's plans → its dead-letter topic.

    Returns:
        The graph; empty if the plans have an unknown form, or if the whole is too long for an event.
    """
    try:
        plans = {query.name: logical_plan(query.frame) for query in queries}
        names = _operator_names(list(plans.values()))
        graph = {query.name: _query(query, plans[query.name], names, dead_letters) for query in queries}
    except Exception as error:  # the job must start with a plan of any form
        _log.warning("no-job-graph", why=f"{type(error).__name__}: {error}")
        return {}
    size = len(msgspec.json.encode(graph))
    if size > _LONGEST_BYTES:
        # An agent skips a longer event, and this one begins a generation.
        _log.warning("no-job-graph", why=f"It has {size} bytes, and at most {_LONGEST_BYTES} are reported.")
        return {}
    return graph


def _query(
    query: Query, plan: PlanNode, names: Mapping[PythonFunction, str], dead_letters: Mapping[str, str]
) -> GraphQuery:
    scans = streaming_scans(query.frame)
    default = getattr(query.sink, "topic", None)
    by_row = hasattr(query.sink, "topic") and "topic" in query.frame.columns
    outputs, complete = _topics(plan) if by_row else (set[str](), True)
    decoded = {function.name for node in plan.all() for function in node.functions()} & dead_letters.keys()
    publishes = COLUMN in query.frame.columns and getattr(query.sink, "publishes_dead_letters", False)
    return GraphQuery(
        sink=type(query.sink).__name__,
        topics=_names(topic for scan in scans for topic in scan.topics()),
        patterns=_names(pattern for scan in scans if (pattern := _pattern(scan))),
        operators=_operators(plan, names)[:_MOST_NAMES],
        state=_names(step for node in plan.all() if (step := _state(node))),
        outputs=_names(outputs | ({default} if isinstance(default, str) else set())),
        more_outputs=not complete,
        interval_ms=query.interval_ms,
        dead_letters=_names(dead_letters[name] for name in decoded) if publishes else [],
    )


def _names(names: Iterable[str]) -> list[str]:
    return sorted(set(names))[:_MOST_NAMES]


def _pattern(scan: StreamingScan) -> str:
    pattern = scan.options.get("subscribepattern", "")
    whole = _PATTERN.fullmatch(pattern)
    return whole[1] if whole else pattern


def _operators(plan: PlanNode, names: Mapping[PythonFunction, str]) -> list[GraphOperator]:
    """Return the operators of a query, those nearest to the sources first."""
    operators: dict[str, GraphOperator] = {}
    for node in reversed(list(plan.all())):
        takes = next((takes for kind, takes in _TAKES.items() if node.kind.startswith(kind)), "columns")
        timers = takes == "state" and any(mentions(_times(node), kind) for kind in _TIMED)
        for function in node.functions():
            if function in names:
                operators.setdefault(names[function], GraphOperator(names[function], takes, timers))
            elif function.name.startswith(UDF_NAME):
                number = function.name.removeprefix(UDF_NAME)
                name = "clonos.decode" if number == "1" else f"clonos.decode#{number}"
                operators.setdefault(name, GraphOperator(name))
    return list(operators.values())


def _times(node: PlanNode) -> list[Any]:
    """Return the fields with the time mode of a processor, and with the timeout of a function with state."""
    return [node.fields.get("timeMode"), node.fields.get("timeout")]


def _operator_names(plans: Sequence[PlanNode]) -> dict[PythonFunction, str]:
    """Return the operator of each Python function in the plans of a job.

    Several operators may have one name in plans. Spark numbers expressions in the order of the operators' uses. If a
    use is in no plan, its number is missing, and the name in plans stands for the operator.
    """
    evaluated: dict[tuple[str, ...], set[PythonFunction]] = {}
    candidates: dict[tuple[str, ...], list[str]] = {}
    for operator, shown in defined_operators().items():
        candidates.setdefault(shown, []).append(operator)
    by_name = {name: shown for shown in candidates for name in shown}
    for plan in plans:
        for node in plan.all():
            for function in node.operators():
                evaluated.setdefault(by_name[function.name], set()).add(function)
    names: dict[PythonFunction, str] = {}
    for shown, functions in evaluated.items():
        in_order = sorted(functions, key=lambda function: function.expression)
        operators = candidates[shown]
        if len(operators) == 1:
            names |= dict.fromkeys(in_order, operators[0])
        elif len(operators) == len(in_order):
            names |= dict(zip(in_order, operators, strict=True))
        else:
            names |= {function: function.name for function in in_order}
    return names


def _state(node: PlanNode) -> str | None:
    """Return what a node of Spark keeps state for; None: it keeps none, or it is an operator of Clonos."""
    step = _STATEFUL.get(node.kind)
    if step is None or any(True for _ in node.operators()):
        return None
    streams = sum(child.streams() for child in node.children)
    return step if streams == (2 if node.kind == "Join" else 1) else None


def _topics(node: PlanNode) -> tuple[set[str], bool]:
    """Return the topics that the column ``topic`` of a plan may contain, and whether these are all."""
    column = _column(node, "topic")
    if column is not None:
        value = column.children[0]
        if value.kind == "GetStructField" and any(each.fields.get("name") == FANNED_OUT for each in value.all()):
            return _fanned_out(node), True
        topics = _literals(value)
        return (topics, True) if topics is not None else (set(), False)
    if not node.children:
        return set(), not mentions(node.fields, '"name": "topic"')
    parts = [_topics(child) for child in node.children]
    return set[str]().union(*(topics for topics, _ in parts)), all(complete for _, complete in parts)


def _fanned_out(plan: PlanNode) -> set[str]:
    """Return the topics of the records of `clonos.fan_out`."""
    topics: set[str] = set()
    for node in plan.all():
        column = _column(node, FANNED_OUT)
        for struct in column.all() if column is not None else ():
            if struct.kind == "CreateNamedStruct" and _literals(struct.children[0]) == {"topic"}:
                topics |= _literals(struct.children[1]) or set()
    return topics


def _column(node: PlanNode, name: str) -> PlanNode | None:
    """Return the expression of a column that a projection computes; None: the node computes no such column."""
    computed = (node.expression(nodes) for nodes in node.fields.get("projectList", []))
    return next((each for each in computed if each.kind == "Alias" and each.fields.get("name") == name), None)


def _literals(expression: PlanNode) -> set[str] | None:
    """Return the texts that an expression may result in; None: any."""
    match expression.kind:
        case "Literal":
            value = expression.fields.get("value")
            return {value} if isinstance(value, str) else set()
        case "Alias" | "Cast":
            return _literals(expression.children[0])
        case "CaseWhen":  # condition, value, condition, value, …, value of ELSE
            values = expression.children[1::2] + (expression.children[-1:] if len(expression.children) % 2 else [])
        case "If":
            values = expression.children[1:]
        case _:
            return None
    branches = [_literals(value) for value in values]
    return None if None in branches else set[str]().union(*(texts for texts in branches if texts))
