"""Refuses queries in which a replay could assign recorded determinants to the wrong rows.

Determinants belong to (operator, task). So a query must evaluate an operator once, over one partition in each task, and
a replay must send the same rows to the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyspark.sql import DataFrame

from clonos.causal.logical_plan import PlanNode, logical_plan, mentions
from clonos.errors import SpecError

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


def check_shape(frame: DataFrame) -> None:
    """Refuse a query that a replay could not repeat.

    Raises:
        SpecError: The query sorts or partitions by range, evaluates an operator twice or on a static DataFrame, or
            coalesces the partitions that an operator runs on.
    """
    root = logical_plan(frame)
    for node in root.all():
        if (node.kind == "Sort" and node.fields.get("global")) or (
            node.kind == "RepartitionByExpression" and mentions(node.fields["partitionExpressions"], "SortOrder")
        ):
            raise SpecError(
                "The query sorts all of its rows, or partitions them by range.",
                hint="Spark samples the rows to find the ranges, so a replay could send them to other tasks: partition "
                "by columns or number instead, and sort where the output is read.",
            )
    evaluations = Counter(udf for node in root.all() for udf in node.operators())
    for operator, times in evaluations.items():
        if times > 1:
            raise SpecError(
                f"The operator {operator.name} would be evaluated {times} times for one use, with one set of "
                "determinants.",
                hint="put its result into a column first (withColumn) and use that; where a frame is joined or united "
                "with itself, call it on each branch.",
            )
    for node in root.all():
        outside = None if node.streams() else next(node.operators(), None)
        if outside is not None:
            raise SpecError(
                f"The operator {outside.name} runs on a DataFrame that is not a stream. Spark computes it outside of "
                "the epochs, where answers of services are not recorded.",
                hint="join first and call it on the result, or compute the column before the job and read it.",
            )
    for node in root.all():
        if node.kind == "Repartition" and not node.fields["shuffle"]:
            below = [
                operator.name
                for child in node.children
                for descendant in _in_its_tasks(child)
                for operator in descendant.operators()
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
    return any(
        node.kind.startswith(_TIMED) and mentions(node.fields, "ProcessingTime") for node in logical_plan(frame).all()
    )


def has_rows_without_input(frame: DataFrame) -> bool:
    """Whether the query returns a row even if its input is empty, as an aggregate without grouping does."""
    return any(
        node.kind == "Aggregate" and not node.fields["groupingExpressions"] for node in logical_plan(frame).all()
    )


def has_operators(frame: DataFrame) -> bool:
    """Whether functions of the query may record determinants."""
    return any(any(node.operators()) for node in logical_plan(frame).all())


def python_workers(frame: DataFrame) -> int:
    """Return the largest number of Python workers that one task of a query uses at the same time: one for each node of
    the plan between two shuffles that calls Python functions. The branches of unions and joins have tasks of their own.
    """

    def of_tasks(top: PlanNode) -> int:
        below = () if _shuffles(top) else map(of_tasks, top.children)
        return any(top.functions()) + max(below, default=0)

    return max(map(of_tasks, logical_plan(frame).all()))


def _shuffles(node: PlanNode) -> bool:
    """Whether the children of a node run in tasks of an earlier stage."""
    return node.kind.startswith(_SHUFFLING) or bool(node.fields.get("shuffle", False))


def _in_its_tasks(node: PlanNode) -> Iterator[PlanNode]:
    """Yield a node and its descendants that run in the same tasks, without a shuffle between them."""
    yield node
    if not _shuffles(node):
        for child in node.children:
            yield from _in_its_tasks(child)
