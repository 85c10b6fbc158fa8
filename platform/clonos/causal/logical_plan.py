"""The analysed logical plan of a DataFrame, as Spark writes it in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from clonos.causal.naming import shown_in_plans

_UDF = "org.apache.spark.sql.catalyst.expressions.PythonUDF"


class PythonFunction(NamedTuple):
    """A Python function in a plan: one use of it."""

    name: str
    expression: int  # Spark's id of the expression
    eval_type: int  # pyspark.util.PythonEvalType


class PlanNode:
    """One node of a logical plan, or of an expression in it."""

    def __init__(self, fields: dict[str, Any], children: list[PlanNode]) -> None:
        self.kind = str(fields["class"]).rsplit(".", 1)[-1]  # name of the node's class in Spark, such as ``Project``
        self.fields = fields  # the node's fields; an expression among them is a list of its nodes, parents first
        self.children = children  # the nodes whose rows this one reads; of an expression, its arguments

    def all(self) -> Iterator[PlanNode]:
        """Yield this node and its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.all()

    def streams(self) -> bool:
        """Whether the rows of this node come from a streaming source."""
        return any(node.kind.startswith("Streaming") for node in self.all())

    @staticmethod
    def expression(fields: list[dict[str, Any]]) -> PlanNode:
        """Return the root of an expression, from a field of a node."""
        return _tree(iter(fields))

    def functions(self) -> Iterator[PythonFunction]:
        """Yield the Python functions that this node evaluates."""
        for udf in _udfs(self.fields):
            yield PythonFunction(udf["name"], udf["resultId"]["id"], udf["evalType"])

    def results(self) -> Iterator[tuple[str, Any]]:
        """Name and declared type of each Python function that this node evaluates; the type as Spark's JSON."""
        yield from ((udf["name"], udf["dataType"]) for udf in _udfs(self.fields))

    def operators(self) -> Iterator[PythonFunction]:
        """Return the functions of this node that belong to operators."""
        shown = shown_in_plans()
        return (function for function in self.functions() if function.name in shown)


def logical_plan(frame: DataFrame) -> PlanNode:
    """Return the root of the analysed logical plan of a DataFrame."""
    return _tree(iter(json.loads(frame._jdf.queryExecution().analyzed().toJSON())))


def mentions(value: Any, kind: str) -> bool:
    """Whether a part of a plan contains this text, such as the name of a class."""
    return kind in json.dumps(value)


def _tree(fields: Iterator[dict[str, Any]]) -> PlanNode:
    """Return the tree of nodes that Spark lists parents first."""
    node = next(fields)
    return PlanNode(node, [_tree(fields) for _ in range(node["num-children"])])


def _udfs(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("class") == _UDF:
            yield value
        for inner in value.values():
            yield from _udfs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _udfs(inner)
