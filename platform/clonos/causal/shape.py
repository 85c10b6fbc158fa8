"""Refuses queries in which a replay could assign recorded determinants to the wrong rows.

Determinants belong to (operator, task). So a query must evaluate an operator once, over one partition in each task, and
a replay must send the same rows to the same tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from clonos.causal.naming import shown_in_plans
from clonos.errors import SpecError

_UDF = "org.apache.spark.sql.catalyst.expressions.PythonUDF"
# The children of these nodes run in tasks of an earlier stage.
_SHUFFLING = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroups",
    "FlatMapCoGroups",
    "RepartitionByExpression",
    "TransformWithState",
)
_TIMED = ("TransformWithState", "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState")


class _Node:
    """One node of a logical plan."""

    def __init__(self, fields: dict[str, Any], children: list[_Node]) -> None:
        self.kind = str(fields["class"]).rsplit(".", 1)[-1]
        self.fields = fields
        self.children = children

    def all(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.all()

    def streams(self) -> bool:
        """Whether the rows of this node come from a streaming source."""
        return any(node.kind.startswith("Streaming") for node in self.all())

    def operators(self) -> Iterator[tuple[str, int]]:
        """Name and expression id of each operator that this node evaluates."""
        shown = shown_in_plans()
        return (udf for udf in _udfs(self.fields) if udf[0] in shown)

    def in_its_tasks(self) -> Iterator[_Node]:
        """This node and its descendants that run in the same tasks, without a shuffle between them."""
        yield self
        if not self.kind.startswith(_SHUFFLING) and not self.fields.get("shuffle", False):
            for child in self.children:
                yield from child.in_its_tasks()


def check_shape(frame: DataFrame) -> None:
    """Refuse a query that a replay could not repeat.

    Raises:
        SpecError: The query sorts or partitions by range, evaluates an operator twice or on a static DataFrame, or
            coalesces the partitions that an operator runs on.
    """
    root = _plan(frame)
    for node in root.all():
        if (node.kind == "Sort" and node.fields.get("global")) or (
            node.kind == "RepartitionByExpression" and _has(node.fields["partitionExpressions"], "SortOrder")
        ):
            raise SpecError(
                "The query sorts all of its rows, or partitions them by range.",
                hint="Spark samples the rows to find the ranges, so a replay could send them to other tasks: partition "
                "by columns or number instead, and sort where the output is read.",
            )
    evaluations = Counter(udf for node in root.all() for udf in node.operators())
    for (name, _), times in evaluations.items():
        if times > 1:
            raise SpecError(
                f"The operator {name} would be evaluated {times} times for one use, with one set of determinants.",
                hint="put its result into a column first (withColumn) and use that; where a frame is joined or united "
                "with itself, call it on each branch.",
            )
    for node in root.all():
        operator = None if node.streams() else next(node.operators(), None)
        if operator is not None:
            raise SpecError(
                f"The operator {operator[0]} runs on a DataFrame that is no stream: Spark computes it outside of the "
                "epochs, where answers of services are not recorded.",
                hint="join first and call it on the result, or compute the column before the job and read it.",
            )
    for node in root.all():
        if node.kind == "Repartition" and not node.fields["shuffle"]:
            below = [
                name
                for child in node.children
                for descendant in child.in_its_tasks()
                for name, _ in descendant.operators()
            ]
            if below:
                raise SpecError(
                    f"coalesce would put several partitions of the operator {below[0]} into one task.",
                    hint="coalesce before the operator, or use repartition.",
                )


def runs_without_input(frame: DataFrame) -> bool:
    """Whether Spark may start epochs of the query without new input, because processing-time timers or timeouts
    can expire.
    """
    return any(node.kind.startswith(_TIMED) and _has(node.fields, "ProcessingTime") for node in _plan(frame).all())


def has_rows_without_input(frame: DataFrame) -> bool:
    """Whether the query returns a row even if its input is empty, as an aggregate without grouping does."""
    return any(node.kind == "Aggregate" and not node.fields["groupingExpressions"] for node in _plan(frame).all())


def _plan(frame: DataFrame) -> _Node:
    """The analysed logical plan."""
    return _tree(iter(json.loads(frame._jdf.queryExecution().analyzed().toJSON())))


def _tree(fields: Iterator[dict[str, Any]]) -> _Node:
    """The tree of nodes that Spark lists parents first."""
    node = next(fields)
    return _Node(node, [_tree(fields) for _ in range(node["num-children"])])


def _udfs(value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        if value.get("class") == _UDF:
            yield (value["name"], value["resultId"]["id"])
        for inner in value.values():
            yield from _udfs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _udfs(inner)


def _has(value: Any, kind: str) -> bool:
    return kind in json.dumps(value)
