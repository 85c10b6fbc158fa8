"""A driver reports with its claim what its queries read, run and write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

import clonos
from clonos.formats import Json
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import Graph

pytestmark = pytest.mark.turn


@clonos.service
def fraud_score(word: str) -> int:
    return len(word)


@clonos.udf("string")
def judged(word: str) -> str:
    return str(fraud_score(word))


class Totals(StatefulProcessor):
    """Returns the number of rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(value=f"{key[0]} {sum(1 for _ in rows)}")

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        yield from ()

    def close(self) -> None:
        pass


def feed(kafka: KafkaSettings, topic: str, values: list[bytes]) -> None:
    producer = Producer(client_config(kafka))
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def test_the_graph_names_topics_operators_and_state(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: Callable[..., str]
) -> None:
    cards, transfers, orders = make_topic(1, "cards"), make_topic(1, "transfers"), make_topic(1, "orders")
    scored, large, small, dead, totals = (make_topic(1, kind) for kind in ("scored", "large", "small", "dead", "all"))
    feed(kafka, cards, [b"ada", b"grace"])
    feed(kafka, transfers, [b"alan"])
    feed(kafka, orders, [json.dumps({"n": number}).encode() for number in range(4)] + [b"\xff"])

    def define(ctx: JobContext) -> None:
        words = ctx.source(cards).union(ctx.source(transfers)).withColumn("word", F.col("value").cast("string"))
        judged("word")  # used nowhere
        twice = words.withColumn("score", judged("word")).withColumn("again", judged("word"))
        ctx.sink(twice.select(F.to_json(F.struct("word", "score", "again")).alias("value")), topic=scored, name="score")
        decoded = ctx.decode(
            ctx.source(pattern=f"{orders}|absent"),
            Json(),
            schema="n int",
            on_poison="dead-letter",
            dead_letters=dead,
        )
        value = F.to_json("record")
        outputs = {large: clonos.Output(value, where="record.n > 2"), small: clonos.Output(value)}
        ctx.sink(clonos.fan_out(decoded, outputs), name="split")
        counted = words.groupBy("word").transformWithState(
            clonos.operator(Totals(), name="totals"), "value string", "append", "processingTime"
        )
        ctx.sink(counted, topic=totals, name="totals")
        by_rows = (
            words.groupBy("word")
            .count()
            .select(F.col("word").alias("value"), F.when(F.col("count") > 1, scored).otherwise(totals).alias("topic"))
        )
        ctx.sink(by_rows, name="counts", mode="update")

    run_job(define, name)
    # A busy machine may restart the query with the processor: Spark waits ten seconds for its worker.
    graph, *later = [claimed["queries"] for claimed in run_job.events_of("claimed")]
    assert all(again == graph for again in later)
    assert msgspec.to_builtins(msgspec.convert(graph, Graph)) == graph
    assert {query.pop("interval_ms") for query in graph.values()} == {0}
    both = {"topics": sorted([cards, transfers]), "patterns": [], "dead_letters": [], "sink": "KafkaSink"}
    # One of three uses of the function is in no plan, so its name in plans stands for the others.
    judge = {"name": "judged", "takes": "columns", "timers": False}
    assert graph["score"] == {**both, "operators": [judge], "state": [], "outputs": [scored], "more_outputs": False}
    assert graph["split"] == {
        "sink": "KafkaSink",
        "topics": [],
        "patterns": [f"{orders}|absent"],
        "operators": [{"name": "clonos.decode", "takes": "columns", "timers": False}],
        "state": [],
        "outputs": sorted([large, small]),
        "more_outputs": False,
        "dead_letters": [dead],
    }
    processor = {"name": "totals", "takes": "state", "timers": True}
    assert graph["totals"] == {
        **both,
        "operators": [processor],
        "state": [],
        "outputs": [totals],
        "more_outputs": False,
    }
    assert graph["counts"] == {
        **both,
        "operators": [],
        "state": ["aggregate"],
        "outputs": sorted([scored, totals]),
        "more_outputs": False,
    }

    epochs = {(event["query"], event["epoch"]): event for event in run_job.events_of("epoch")}
    read: dict[str, Counter[str]] = {}
    for (query, _), event in epochs.items():
        assert event["records_in"] == sum(event["topics_in"].values())
        read.setdefault(query, Counter()).update(event["topics_in"])
    words = {cards: 2, transfers: 1}
    assert read == {"score": words, "totals": words, "counts": words, "split": {orders: 5}}
    recorded = {operator for (query, _), event in epochs.items() if query == "score" for operator in event["operators"]}
    assert recorded == {"judged#2", "judged#3"}


def test_each_use_of_a_function_has_its_name(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: Callable[..., str]
) -> None:
    source, out, other = make_topic(1, "in"), make_topic(1, "out"), make_topic(1, "other")
    feed(kafka, source, [b"ada"])

    def define(ctx: JobContext) -> None:
        words = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        first, second, third = judged("word"), judged("word"), judged("word")
        ctx.sink(words.select(third.alias("value")), topic=other, name="b")
        ctx.sink(words.select(F.concat_ws(" ", second, first).alias("value")), topic=out, name="a")

    run_job(define, name)
    graph = run_job.events_of("claimed")[0]["queries"]
    assert {query: {operator["name"] for operator in graph[query]["operators"]} for query in graph} == {
        "a": {"judged", "judged#2"},
        "b": {"judged#3"},
    }
    for event in run_job.events_of("epoch"):
        if event["records_in"]:
            assert set(event["operators"]) == {operator["name"] for operator in graph[event["query"]]["operators"]}
