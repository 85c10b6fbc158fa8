"""Spark's functions and methods that are not repeatable: tables for Python, and the search in SQL text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clonos.lint import spark


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SEEDED: dict[str, int] = {"rand": 0, "randn": 0, "random": 0, "uuid": 0, "shuffle": 1, "randstr": 1, "uniform": 2}
"""Functions that draw a seed (CL101) unless they get more arguments than this number (CL102)."""

CODES: dict[str, str] = {
    **dict.fromkeys(SEEDED, "CL101"),
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), "CL101"),
    **dict.fromkeys(
        _names(
            "monotonically_increasing_id spark_partition_id input_file_name input_file_block_start "
            "input_file_block_length"
        ),
        "CL102",
    ),
    **dict.fromkeys(
        _names(
            "first first_value last last_value any_value collect_list collect_set array_agg listagg "
            "listagg_distinct string_agg string_agg_distinct"
        ),
        "CL103",
    ),
    **dict.fromkeys(("mode", "percentile_approx", "approx_percentile", "histogram_numeric"), "CL104"),
    **dict.fromkeys(
        _names(
            "std stddev stddev_pop stddev_samp variance var_pop var_samp skewness kurtosis corr covar_pop "
            "covar_samp regr_avgx regr_avgy regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy"
        ),
        "CL105",
    ),
}

SUMS = frozenset({"sum", "avg", "mean", "try_sum", "try_avg", "sum_distinct"})
"""Functions that are order-sensitive for floating-point numbers (CL105)."""

SORTS = frozenset({"sort_array", "array_sort"})
"""Functions that make the order of a collected list repeatable."""

SAMPLES: dict[str, int] = {"sample": 2, "randomSplit": 1}
"""Methods of a DataFrame that draw a seed unless they get more positional arguments than this number."""

FIRST_ROWS: dict[str, int] = {
    "dropDuplicates": 0,
    "drop_duplicates": 0,
    "dropDuplicatesWithinWatermark": 0,
    "limit": -1,
}
"""Methods of a DataFrame that keep the rows that arrive first, if they get more arguments than this number."""

SHUFFLES = _names(
    "groupBy groupby rollup cube join crossJoin repartition repartitionByRange coalesce distinct "
    "dropDuplicates drop_duplicates dropDuplicatesWithinWatermark intersect intersectAll subtract "
    "exceptAll orderBy sort"
)
"""Methods of a DataFrame after which rows may arrive in another order."""

FRAME_METHODS = SHUFFLES | _names(
    "select selectExpr withColumn withColumns withColumnRenamed withColumnsRenamed withWatermark where "
    "filter drop dropna fillna agg pivot limit sample union unionAll unionByName toDF transform "
    "mapInPandas mapInArrow applyInPandas applyInArrow applyInPandasWithState transformWithState "
    "transformWithStateInPandas"
)
"""Methods that return a DataFrame or a grouped DataFrame."""

PYTHON_METHODS = _names(
    "mapInPandas mapInArrow applyInPandas applyInArrow applyInPandasWithState transformWithState "
    "transformWithStateInPandas foreachBatch foreach foreachPartition mapPartitions "
    "mapPartitionsWithIndex flatMap"
)
"""Methods whose function arguments run on rows."""

UDF_MAKERS = _names("clonos.udf clonos.arrow_udf clonos.pandas_udf clonos.operator") | frozenset(
    f"pyspark.sql.functions.{name}" for name in ("udf", "pandas_udf", "arrow_udf", "udtf", "arrow_udtf", "pandas_udtf")
)
"""Functions and decorators that turn a function or class into a UDF."""

SQL_METHODS = frozenset({"selectExpr", "where", "filter", "sql", "expr"})
"""Methods whose text arguments are SQL."""

FUNCTIONS = "pyspark.sql.functions."


# Quoted text and comments, which are replaced before the search.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_SORTED = re.compile(r"(?:sort_array|array_sort)\s*\(\s*(?:distinct\s*)?$", re.IGNORECASE)
_SETTLED = re.compile(r"\s*(?:filter\s*\([^)]*\)\s*)?(?:(?:ignore|respect)\s+nulls\s*)?(?:over|within\s+group)\b", re.I)
_FLOAT = re.compile(r"\bas\s+(?:double|float|real)\s*\)|::\s*(?:double|float|real)\b|\b(?:double|float)\s*\(", re.I)
_EXACT = re.compile(
    r"^\s*(?:try_)?cast\s*\(.*\bas\s+(?:decimal|numeric|dec|bigint|int|long)\b[^)]*(?:\([^)]*\))?\s*\)\s*$", re.I | re.S
)


@dataclass(frozen=True, slots=True)
class SqlCall:
    """A call in SQL text that violates a rule: its text, and the code of the rule."""

    text: str
    code: str


def sql_calls(text: str, floats: frozenset[str] = frozenset()) -> Iterator[SqlCall]:
    """Yield the calls in an SQL expression or statement that violate a rule; `floats` are floating-point columns."""
    if "(" not in text:
        return
    blank = _QUOTED.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    for match in _CALL.finditer(blank):
        name = match[1].lower()
        if name not in spark.CODES and name not in spark.SUMS:
            continue
        end = _closing(blank, match.end())
        inside = blank[match.end() : end]
        written = " ".join(text[match.start() : end + 1].split())
        if name in spark.SUMS:
            if _EXACT.match(inside):
                continue
            column = inside.strip().rpartition(".")[2].strip("`")
            if _FLOAT.search(inside) or column in floats:
                yield SqlCall(written, "CL105")
            continue
        code = spark.CODES[name]
        if code in {"CL103", "CL104"} and (_SORTED.search(blank[: match.start()]) or _SETTLED.match(blank, end + 1)):
            continue
        if name in spark.SEEDED and _count(inside) > spark.SEEDED[name]:
            code = "CL102"
        yield SqlCall(written, code)


def _closing(text: str, start: int) -> int:
    depth = 1
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _count(arguments: str) -> int:
    if not arguments.strip():
        return 0
    depth = 0
    count = 1
    for character in arguments:
        depth += {"(": 1, ")": -1}.get(character, 0)
        count += character == "," and depth == 0
    return count
