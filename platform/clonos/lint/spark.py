"""Which of Spark's functions and methods are not repeatable, in Python and in SQL text."""

from __future__ import annotations

SEEDED: dict[str, int] = {
    "rand": 0,
    "randn": 0,
    "random": 0,
    "uuid": 0,
    "shuffle": 1,
    "randstr": 1,
    "uniform": 2,
}
"""Draws a seed of its own (CL101) unless it gets more arguments than this (CL102)."""

CODES: dict[str, str] = {
    **dict.fromkeys(SEEDED, "CL101"),
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), "CL101"),
    **dict.fromkeys(
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        "CL102",
    ),
    **dict.fromkeys(
        (
            "first",
            "first_value",
            "last",
            "last_value",
            "any_value",
            "collect_list",
            "collect_set",
            "array_agg",
            "listagg",
            "listagg_distinct",
            "string_agg",
            "string_agg_distinct",
        ),
        "CL103",
    ),
    **dict.fromkeys(("mode", "percentile_approx", "approx_percentile", "histogram_numeric"), "CL104"),
    **dict.fromkeys(
        (
            "std",
            "stddev",
            "stddev_pop",
            "stddev_samp",
            "variance",
            "var_pop",
            "var_samp",
            "skewness",
            "kurtosis",
            "corr",
            "covar_pop",
            "covar_samp",
            "regr_avgx",
            "regr_avgy",
            "regr_intercept",
            "regr_r2",
            "regr_slope",
            "regr_sxx",
            "regr_sxy",
            "regr_syy",
        ),
        "CL105",
    ),
}

SUMS = frozenset({"sum", "avg", "mean", "try_sum", "try_avg", "sum_distinct"})
"""Order-sensitive where they add floating-point numbers (CL105)."""

SORTS = frozenset({"sort_array", "array_sort"})
"""Around a collected list they make its order repeatable."""

SAMPLES: dict[str, int] = {"sample": 2, "randomSplit": 1}
"""Methods of a DataFrame that draw a seed unless they get more positional arguments than this."""

SHUFFLES = frozenset(
    {
        "groupBy",
        "groupby",
        "rollup",
        "cube",
        "join",
        "crossJoin",
        "repartition",
        "repartitionByRange",
        "coalesce",
        "distinct",
        "dropDuplicates",
        "drop_duplicates",
        "dropDuplicatesWithinWatermark",
        "intersect",
        "intersectAll",
        "subtract",
        "exceptAll",
        "orderBy",
        "sort",
    }
)
"""Methods of a DataFrame after which rows may come in another order."""

FRAME_METHODS = SHUFFLES | {
    "select",
    "selectExpr",
    "withColumn",
    "withColumns",
    "withColumnRenamed",
    "withColumnsRenamed",
    "withWatermark",
    "where",
    "filter",
    "drop",
    "dropna",
    "fillna",
    "agg",
    "pivot",
    "limit",
    "sample",
    "union",
    "unionAll",
    "unionByName",
    "toDF",
    "transform",
    "mapInPandas",
    "mapInArrow",
    "applyInPandas",
    "applyInArrow",
    "applyInPandasWithState",
    "transformWithState",
    "transformWithStateInPandas",
}
"""Methods whose result is a DataFrame (or a grouped one)."""

PYTHON_METHODS = frozenset(
    {
        "mapInPandas",
        "mapInArrow",
        "applyInPandas",
        "applyInArrow",
        "applyInPandasWithState",
        "transformWithState",
        "transformWithStateInPandas",
        "foreachBatch",
        "foreach",
        "foreachPartition",
        "mapPartitions",
        "mapPartitionsWithIndex",
        "flatMap",
    }
)
"""Methods whose function arguments run on rows."""

UDF_MAKERS = frozenset(
    f"pyspark.sql.functions.{name}" for name in ("udf", "pandas_udf", "arrow_udf", "udtf", "arrow_udtf", "pandas_udtf")
)

SQL_METHODS = frozenset({"selectExpr", "where", "filter", "sql", "expr"})
"""Methods whose text arguments are SQL."""

FUNCTIONS = "pyspark.sql.functions."
