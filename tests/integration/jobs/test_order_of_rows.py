"""Queries under another order of fetched shuffle blocks: repeatable ones are repeated, the others are detected.

Each job fails after its epoch is published. The first attempt reads the map outputs in ascending order, the replay in
descending order.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_replay import MakeTopic, published

import clonos
from clonos.errors import ReplayDivergence, RestartsExhausted
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.lint import lint
from clonos.settings import KafkaSettings
from support.fetch_order import fetching
from support.linting import HEAD, codes, in_job

PARTITIONS = 4
ROWS = 80
# Sums of these depend on their order, in floating point.
AMOUNTS = ("1e16", "3.0", "-1e16", "0.5")


@pytest.fixture
def source(kafka: KafkaSettings, make_topic: MakeTopic) -> str:
    """A topic with rows of each letter and amount in each partition."""
    topic = make_topic(PARTITIONS, "in")
    producer = Producer(client_config(kafka))
    for n in range(ROWS):
        partition = n % PARTITIONS
        row = {"letter": "abcde"[n // PARTITIONS % 5], "n": n, "amount": AMOUNTS[partition]}
        producer.produce(topic, json.dumps(row).encode(), partition=partition)
    assert producer.flush(30) == 0
    return topic


def rows_of(ctx: JobContext, source: str) -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), "letter string, n long, amount string").alias("row")
    return ctx.source(source).select("topic", "partition", "offset", parsed).select("*", "row.*").drop("row")


# Queries that are repeatable


def count_and_sum(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.count("*"), F.sum("n"), F.sum(F.col("amount").cast("decimal(38, 4)")))


def smallest(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.min_by("amount", "n"), F.max("n"))


def sorted_list(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.sort_array(F.collect_list("n")))


def whole_rows_once(rows: DataFrame) -> DataFrame:
    return rows.select("letter", "amount").dropDuplicates()


def round_robin(rows: DataFrame) -> DataFrame:
    return rows.repartition(4).select("letter", "n")


def joined(rows: DataFrame) -> DataFrame:
    at = F.timestamp_seconds("n")
    left, right = rows.select("letter", at.alias("at"), F.col("n").alias("l")), rows.select("n", at.alias("until"))
    return left.withWatermark("at", "1 hour").join(right.withWatermark("until", "1 hour"), F.col("l") == F.col("n"))


@clonos.operator
def in_group(letter: tuple[str], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"letter": letter[:1], "words": [" ".join(map(str, rows["n"]))], "draw": [clonos.random()]})


def grouped(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").applyInPandas(in_group, "letter string, words string, draw double")


Ask = Callable[[DataFrame], DataFrame]
Replayed = Callable[[Ask, str], str]
REPEATABLE: list[tuple[Ask, str, str]] = [
    (count_and_sum, "update", "core"),
    (smallest, "update", "full"),
    (sorted_list, "update", "full"),
    (whole_rows_once, "append", "full"),
    (round_robin, "append", "full"),
    (joined, "append", "full"),
    (grouped, "append", "core"),
]


# Queries that depend on the order, each with the rule of the linter that reports it


def first_row(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.first("n"))


def last_row(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.last("n"))


def list_as_it_comes(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.collect_list("n"))


def sum_of_doubles(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.sum(F.col("amount").cast("double")))


def tie(rows: DataFrame) -> DataFrame:
    return rows.groupBy("letter").agg(F.min_by("n", "letter"))


def one_of_duplicates(rows: DataFrame) -> DataFrame:
    return rows.select("letter", "n").dropDuplicates(["letter"])


def limited(rows: DataFrame) -> DataFrame:
    return rows.repartition("n").select("n").limit(7)


DEPENDENT: list[tuple[Ask, str, str, str]] = [
    (first_row, "update", "core", "CL103"),
    (last_row, "update", "full", "CL103"),
    (list_as_it_comes, "update", "full", "CL103"),
    (sum_of_doubles, "update", "full", "CL105"),
    (tie, "update", "full", ""),  # the linter does not know whether an order has ties
    (one_of_duplicates, "append", "core", "CL106"),
    (limited, "append", "full", "CL106"),
]


def in_suites(queries: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The queries; the core ones run in each CI."""
    return [
        pytest.param(query, mode, marks=() if suite == "core" else (pytest.mark.full,), id=query.__name__)
        for query, mode, suite, *_ in queries
    ]


@pytest.fixture
def replayed(
    spark: SparkSession,
    run_job: Any,
    name: str,
    source: str,
    make_topic: MakeTopic,
    fail_at: Any,
    partition_lanes: None,
) -> Replayed:
    """Publish an epoch of a query, fail, and replay it with the other fetch order; returns the output topic.

    The tasks publish a lane for each partition.
    """

    def run(query: Ask, mode: str) -> str:
        out = make_topic(2, "out")

        def job(ctx: JobContext) -> None:
            frame = query(rows_of(ctx, source))
            ctx.sink(frame.select(F.to_json(F.struct("*")).alias("value")), topic=out, name="out", mode=mode)

        fail_at("epoch-committed")
        with fetching(spark, "ascending"), pytest.raises(RestartsExhausted):
            run_job(job, name, restart_policy={"attempts": 0})
        with fetching(spark, "descending"):
            run_job(job, name, restart_policy={"attempts": 0})
        return out

    return run


@pytest.mark.turn
@pytest.mark.parametrize(("query", "mode"), in_suites(REPEATABLE))
def test_a_repeatable_query_gives_the_same_rows(
    kafka: KafkaSettings, run_job: Any, replayed: Replayed, query: Ask, mode: str
) -> None:
    out = replayed(query, mode)
    replay = next(event for event in run_job.events_of("epoch") if event["replay"])
    assert replay["skipped_lanes"] >= 1
    assert replay["diverged_lanes"] == 0
    rows = published(kafka, out)
    assert rows
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == len(rows)


@pytest.mark.turn
@pytest.mark.parametrize(("query", "mode"), in_suites(DEPENDENT))
def test_a_query_that_depends_on_the_order_is_detected(replayed: Replayed, query: Ask, mode: str) -> None:
    with pytest.raises(ReplayDivergence):
        replayed(query, mode)


@pytest.mark.parametrize(("query", "code"), [(query, code) for query, _, _, code in DEPENDENT])
def test_the_linter_reports_queries_that_depend_on_the_order(tmp_path: Path, query: Ask, code: str) -> None:
    file = tmp_path / "job.py"
    imports = "from __future__ import annotations\nfrom pyspark.sql import DataFrame\n"
    job = in_job(f"rows = {query.__name__}(rows)")
    file.write_text(imports + HEAD + inspect.getsource(query) + "\n\n" + job)
    assert codes(lint([file])) == ([code] if code else [])
