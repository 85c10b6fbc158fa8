"""Poison records (input that cannot be decoded), and the policies for them.

With the policy ``dead-letter`` each row has a column ``poison``: null, or the whole record with the cause. A sink
publishes such records to the dead-letter topic, in the transaction of their lane.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from clonos.causal.scope import current_epoch
from clonos.errors import SpecError

Policy = Literal["fail", "dead-letter", "drop"]

COLUMN: Final = "poison"
FANNED_OUT: Final = "_fanned_out"  # the records of a row in `clonos.fan_out`
HEADERS: Final = T.ArrayType(
    T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
)
POISON: Final = T.StructType(
    [
        T.StructField("key", T.BinaryType()),
        T.StructField("value", T.BinaryType()),
        T.StructField("headers", HEADERS),
        T.StructField("timestamp", T.TimestampType()),
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField("error", T.StringType()),
        T.StructField("message", T.StringType()),
        T.StructField("dead_letters", T.StringType()),
    ]
)
UDF_NAME: Final = "clonos_decode_"
VERDICT: Final = "_verdict_"  # the column with what a decode returned
_VERDICT: Final = re.compile(rf"(?:.*\.)?{VERDICT}\d+")
# Plan nodes that keep all rows of their input.
_KEEPING: Final = {
    "Project",
    "SubqueryAlias",
    "Union",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
}


def same_columns(kind: T.DataType) -> bool:
    """Whether `kind` is the type of the column ``poison``, apart from nullability."""
    return isinstance(kind, T.StructType) and _names_and_types(kind) == _names_and_types(POISON)


def _names_and_types(struct: T.StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in struct.fields]


def with_dead_letters(frame: DataFrame, decoded: DataFrame) -> DataFrame:
    """Add the poison records of `decoded` to `frame`, as rows whose other columns are null.

    Raises:
        SpecError: `decoded` has no column ``poison``, or `frame` has one.
    """
    if COLUMN not in decoded.columns:
        raise SpecError(
            "dead_letters= got a DataFrame without the column 'poison'.",
            hint="pass the DataFrame that ctx.decode(…, on_poison='dead-letter') returned.",
        )
    if COLUMN in frame.columns:
        raise SpecError(
            "The sink gets poison records twice.", hint="remove the column 'poison', or the argument dead_letters=."
        )
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    letters = decoded.where(F.col(COLUMN).isNotNull()).select(*nulls, COLUMN)
    return frame.withColumn(COLUMN, F.lit(None).cast(POISON)).unionByName(letters)


def carried(frame: DataFrame) -> tuple[set[str], set[str]]:
    """Find the calls of `ctx.decode` whose poison records are all among the rows of `frame`.

    Returns:
        The UDF names of these calls (``clonos_decode_<number>``), and the types of the plan nodes that may lose poison
            records of other calls.
    """
    losing: set[str] = set()
    plan: Any = frame._jdf.queryExecution().analyzed()
    return (_reaching(plan, losing) if COLUMN in frame.columns else set()), losing


def _reaching(node: Any, losing: set[str]) -> set[str]:
    kind: str = node.getClass().getSimpleName()
    side = _outer_side(node) if kind == "Join" else None
    if side is not None:
        return _reaching(side, losing)
    keeps = kind in _KEEPING or (kind == "Filter" and _keeps_poison(node.condition())) or _is_fan_out(node, kind)
    if not keeps:
        if UDF_NAME in node.toString():
            losing.add(kind)
        return set()
    decodes = set(re.findall(rf"\b{UDF_NAME}\d+", node.expressions().mkString(" ")))
    children = node.children()
    for index in range(children.size()):
        decodes |= _reaching(children.apply(index), losing)
    return decodes


def _keeps_poison(condition: Any) -> bool:
    """``poison IS NOT NULL``, alone or as one side of an OR."""
    kind = condition.getClass().getSimpleName()
    if kind == "Or":
        return _keeps_poison(condition.left()) or _keeps_poison(condition.right())
    if kind != "IsNotNull":
        return False
    return _is_poison(condition.child())


def _is_poison(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference" and expression.name() == COLUMN)


def _outer_side(join: Any) -> Any:
    """Return the stream whose poison rows an outer join with a table keeps, each once: they match no row of the table.

    None: the join may lose some or repeat some.
    """
    sides = {"LeftOuter": (join.left(), join.right()), "RightOuter": (join.right(), join.left())}
    kept, table = sides.get(join.joinType().toString(), (None, None))
    if kept is None or table.isStreaming() or join.condition().isEmpty():
        return None
    null = _null_in_poison(kept)
    matches = any(_is_null(part, null) or _is_poison_null(part) for part in _conjuncts(join.condition().get()))
    return kept if matches else None


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.getClass().getSimpleName() == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _is_poison_null(condition: Any) -> bool:
    """``poison IS NULL``."""
    return condition.getClass().getSimpleName() == "IsNull" and _is_poison(condition.child())


def _null_in_poison(node: Any) -> set[int]:
    """Return the ids of a plan's columns that are null in poison rows: those of the decoded record."""
    children = node.children()
    null: set[int] = set()
    for index in range(children.size()):
        null |= _null_in_poison(children.apply(index))
    if node.getClass().getSimpleName() == "Project":
        columns = node.projectList()
        for index in range(columns.size()):
            column = columns.apply(index)
            if column.getClass().getSimpleName() == "Alias" and _is_null(column.child(), null):
                null.add(column.exprId().id())
    return null


def _is_null(expression: Any, null: set[int]) -> bool:
    """Whether an expression is null in poison rows; `null` are the columns that are."""
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        return expression.exprId().id() in null
    if kind == "GetStructField" and _VERDICT.fullmatch(expression.child().sql().strip("`")) is not None:
        return bool(expression.extractFieldName() == "record")
    children = expression.children()
    return bool(expression.nullIntolerant()) and any(
        _is_null(children.apply(index), null) for index in range(children.size())
    )


def _is_fan_out(node: Any, kind: str) -> bool:
    """`clonos.fan_out` generates no record for a poison row, and keeps the row."""
    return kind == "Generate" and node.outer() and node.generatorOutput().head().name() == FANNED_OUT


class _Sums(AccumulatorParam[dict[str, int]]):
    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802  # Spark's name
        # A new dict: the driver may be reading the old one.
        summed = dict(value1)
        for key, number in value2.items():
            summed[key] = summed.get(key, 0) + number
        return summed


class DropCount:
    """Counts the poison records that tasks dropped, in a Spark accumulator.

    The count is per attempt, so that a replay does not add the drops of a failed attempt.
    """

    def __init__(self) -> None:
        self._sums: Accumulator[dict[str, int]] | None = None

    def attach(self, context: SparkContext) -> None:
        """Create the accumulator, before the job's columns are built."""
        self._sums = context.accumulator({}, _Sums())

    def for_pickling(self) -> Any:
        """Return the accumulator object, which a UDF's closure carries to the tasks."""
        return self._sums

    @staticmethod
    def add(sums: Any, dropped: int) -> None:
        """In a task: add `dropped` records to the count of the task's attempt at its epoch.

        `sums` is the accumulator that `for_pickling` returned; None outside a job.
        """
        scope = current_epoch()
        if sums is not None and scope is not None and dropped:
            epoch = scope.identity
            sums.add({_attempt(epoch.query, epoch.epoch, str(epoch.owner)): dropped})

    def take(self, query: str, epoch: int, owner: str) -> int:
        """In the driver: the number of records that one attempt at `epoch` dropped; `owner` is its `Owner` as text.

        All counts of the query are removed.
        """
        if self._sums is None:
            return 0
        sums = self._sums.value
        taken = sums.get(_attempt(query, epoch, owner), 0)
        for key in list(sums):
            if key.startswith(f"{query} "):
                sums.pop(key, None)
        return taken


def _attempt(query: str, epoch: int, owner: str) -> str:
    return f"{query} {epoch} {owner}"


drops = DropCount()
