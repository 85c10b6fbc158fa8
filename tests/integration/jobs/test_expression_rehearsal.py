"""A standby evaluates the built-in expressions of its queries, and calls no function of the user."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of
from clonos.standby.rehearsal import Rehearsal

SAMPLES = 2
RECORD = "word string, at long, time timestamp, tags array<string>, counts map<string, int>"


@pytest.fixture
def lines(spark: SparkSession) -> DataFrame:
    """A stream with the columns of the Kafka source that the tests use."""
    text = F.col("value").cast("string")
    return spark.readStream.format("rate").load().select(text.alias("key"), text.cast("binary").alias("value"))


@pytest.fixture
def evaluated(spark: SparkSession, kafka: KafkaSettings, tmp_path: Path) -> Any:
    def evaluate(frame: DataFrame) -> int:
        query: Any = SimpleNamespace(name="out", frame=frame)
        return Rehearsal(spark, kafka, "evaluates", tmp_path).evaluate_expressions(query)

    return evaluate


def test_expressions_on_columns_are_evaluated(lines: DataFrame, evaluated: Any) -> None:
    before: int = evaluated(lines)
    assert evaluated(lines.select(F.lower("key"), F.upper("key"))) == before + 2 * SAMPLES
    # Also inside of what Spark alone can compute, and behind a function of the user.
    counted = lines.groupBy(F.lower("key")).agg(F.max(F.upper("key")).alias("newest"))
    assert evaluated(counted) == before + 3 * SAMPLES, "the key is also a column of the result"


def test_a_parser_gets_a_record_of_its_schema(lines: DataFrame, evaluated: Any, spark: SparkSession) -> None:
    before: int = evaluated(lines)
    parsed = lines.select(F.from_json(F.col("value").cast("string"), RECORD).alias("record"))
    assert evaluated(parsed) == before + 2 * SAMPLES, "the parser, and the conversion of its input"
    fields = parsed.select("record.word", F.to_json("record"), F.explode("record.tags"))
    assert evaluated(fields) == before + (2 + 3) * SAMPLES


def test_no_function_of_the_user_is_called(
    lines: DataFrame, evaluated: Any, spark: SparkSession, tmp_path: Path
) -> None:
    called = tmp_path / "called"

    @F.udf("string", useArrow=False)
    def touch(_: str) -> str:
        called.touch()
        return "x"

    before: int = evaluated(lines)
    assert evaluated(lines.select(F.upper(touch("key")))) == before + SAMPLES
    reflected = lines.select(F.expr("reflect('java.lang.System', 'setProperty', 'clonos.test.called', key)"))
    assert evaluated(reflected) == before + SAMPLES, "only the name of the column"
    assert not called.exists()
    assert jvm_of(spark).java.lang.System.getProperty("clonos.test.called") is None


def test_an_expression_that_refuses_its_sample_is_not_an_error(lines: DataFrame, evaluated: Any) -> None:
    before: int = evaluated(lines)
    assert evaluated(lines.select(F.col("key").cast("int"), F.raise_error("key"))) == before + 1, "'1' is a number"


def test_a_sequence_up_to_a_sample_is_not_computed(lines: DataFrame, evaluated: Any) -> None:
    """One element for each second since 1970 would not fit into the heap."""
    before: int = evaluated(lines)
    numbers = F.expr("sequence(timestamp'1970-01-01', cast(key AS timestamp), interval 1 second)")
    assert evaluated(lines.select(F.size(numbers))) <= before + 2 * SAMPLES
