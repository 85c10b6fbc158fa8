"""Poison records: input that cannot be decoded, and what becomes of it.

With the policy ``dead-letter`` each row has a column ``poison``: null, or everything that the record was and why
it could not be decoded. A sink publishes such rows to the dead-letter topic, in the transaction of their lane.
"""

from __future__ import annotations

import re
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
# Plan nodes that hand on every row they get.
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
    """Whether `kind` is that of the column ``poison``, whatever may be null in it."""
    return isinstance(kind, T.StructType) and [(one.name, _bare(one.dataType)) for one in kind.fields] == [
        (one.name, _bare(one.dataType)) for one in POISON.fields
    ]


def _bare(kind: T.DataType) -> str:
    return kind.simpleString()


def with_dead_letters(frame: DataFrame, decoded: DataFrame) -> DataFrame:
    """`frame`, and the poison rows of `decoded` with all other columns null.

    Raises:
        SpecError: `decoded` has no poison rows to give, or `frame` has a column for them already.
    """
    if COLUMN not in decoded.columns:
        raise SpecError(
            "dead_letters= got a DataFrame without the column 'poison'.",
            hint="pass what ctx.decode(…, on_poison='dead-letter') returned.",
        )
    if COLUMN in frame.columns:
        raise SpecError(
            "The sink gets poison records twice.", hint="leave out the column 'poison', or the argument dead_letters=."
        )
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    letters = decoded.where(F.col(COLUMN).isNotNull()).select(*nothing, COLUMN)
    return frame.withColumn(COLUMN, F.lit(None).cast(POISON)).unionByName(letters)


def carried(frame: DataFrame) -> tuple[set[str], set[str]]:
    """Which decodes' poison rows all reach the end of `frame`, and which plan nodes may lose others."""
    losing: set[str] = set()
    plan: Any = frame._jdf.queryExecution().analyzed()
    return (_reaching(plan, losing) if COLUMN in frame.columns else set()), losing


def _reaching(node: Any, losing: set[str]) -> set[str]:
    kind: str = node.getClass().getSimpleName()
    if kind not in _KEEPING and not (kind == "Filter" and _keeps_poison(node.condition())):
        losing.update({kind} if _below(node) else set())
        return set()
    found = set(re.findall(rf"\b{UDF_NAME}\d+", node.expressions().mkString(" ")))
    children = node.children()
    for index in range(children.size()):
        found |= _reaching(children.apply(index), losing)
    return found


def _below(node: Any) -> bool:
    return UDF_NAME in node.toString()


def _keeps_poison(condition: Any) -> bool:
    """``poison IS NOT NULL``, alone or as one side of an OR."""
    kind = condition.getClass().getSimpleName()
    if kind == "Or":
        return _keeps_poison(condition.left()) or _keeps_poison(condition.right())
    if kind != "IsNotNull":
        return False
    child = condition.child()
    return bool(child.getClass().getSimpleName() == "AttributeReference" and child.name() == COLUMN)


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
    """How many records the tasks of each attempt at an epoch dropped.

    Counted per attempt, so that what a failed attempt dropped is not added to its replay's.
    """

    def __init__(self) -> None:
        self._sums: Accumulator[dict[str, int]] | None = None

    def attach(self, context: SparkContext) -> None:
        """Make the accumulator; before the job's columns are built."""
        self._sums = context.accumulator({}, _Sums())

    def for_pickling(self) -> Any:
        """What a UDF's closure carries to its tasks."""
        return self._sums

    @staticmethod
    def add(sums: Any, dropped: int) -> None:
        """In a task: add to the count of the attempt that it belongs to."""
        epoch = current_epoch()
        if sums is not None and epoch is not None and dropped:
            sums.add({_attempt(epoch.query, epoch.epoch, str(epoch.owner)): dropped})

    def take(self, query: str, epoch: int, owner: str) -> int:
        """In the driver: what this attempt dropped; older ones of the query are forgotten."""
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
