"""The wordcount example on plain Spark, for comparison: Spark's own Kafka sink and direct HTTP calls, without Clonos.

One query publishes the words and a random sample of them, another one the totals. Each task calls the HTTP server once
per word. The outputs are those of the Clonos job, so the same checker computes the verdict. Only the session is that of
Clonos, because it provides Java and the Kafka connector. The demo runs the job as ``python -m clonos_demo.plain``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from clonos.kafka import spark_options
from clonos.settings import KafkaSettings, Settings
from clonos.spark.session import build_session

WINDOW_MS = 5_000
SAMPLE_SHARE = 0.1

Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _batch_id() -> int:
    context = TaskContext.get()
    return int((context.getLocalProperty("streaming.sql.batchId") if context else None) or 0)


def _ask(server: str, word: str) -> dict[str, Any]:
    connection = HTTPConnection(urlsplit(server).netloc, timeout=5.0)
    try:
        connection.request("GET", f"/banned?word={quote(word)}")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def _judge(server: str, words: str, sample: str) -> Judge:
    schema = pa.schema([("topic", pa.string()), ("key", pa.string()), ("value", pa.string())])

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answers: dict[str, dict[str, Any]] = {}
        epoch = _batch_id()
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                word = row.pop("word")
                verdict = answers.get(word) or answers.setdefault(word, _ask(server, word))
                at = int(time.time() * 1000)
                sampled = random.random() < SAMPLE_SHARE
                value = json.dumps(
                    {
                        "source": row,
                        "word": word,
                        "id": str(uuid.uuid4()),
                        "answer": verdict["answer"],
                        "banned": verdict["banned"],
                        "sampled": sampled,
                        "at": at,
                        "window": at - at % WINDOW_MS,
                        "epoch": epoch,
                    }
                )
                rows += [
                    {"topic": topic, "key": word, "value": value} for topic in ([words, sample] if sampled else [words])
                ]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return judge


def _source(spark: SparkSession, kafka: KafkaSettings, topic: str) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .options(**spark_options(kafka))
        .options(**{"kafka.isolation.level": "read_committed", "startingOffsets": "earliest", "subscribe": topic})
        .load()
    )


def _publish(frame: DataFrame, kafka: KafkaSettings, name: str, checkpoints: Path, mode: str) -> None:
    (
        frame.writeStream.queryName(name)
        .format("kafka")
        .options(**spark_options(kafka))
        .option("checkpointLocation", str(checkpoints / name))
        .outputMode(mode)
        .start()
    )


def _words(lines: DataFrame, server: str, words: str, sample: str) -> DataFrame:
    split: Column = F.expr('regexp_extract_all(lower(cast(value AS string)), "[a-z\']+", 0)')
    return lines.select("topic", "partition", "offset", F.posexplode(split).alias("index", "word")).mapInArrow(
        _judge(server, words, sample), "topic string, key string, value string"
    )


def _totals(words: DataFrame, topic: str) -> DataFrame:
    epoch = F.udf(lambda _word: _batch_id(), "long")
    said = F.from_json(F.col("value").cast("string"), "word string, banned boolean, at long").alias("said")
    return (
        words.select(said)
        .select("said.word", "said.banned", F.timestamp_millis("said.at").alias("time"))
        .where("NOT banned")
        .withWatermark("time", "10 minutes")
        .groupBy(F.window("time", f"{WINDOW_MS} milliseconds").alias("span"), "word")
        .agg(F.count("*").alias("total"))
        .select(F.unix_millis("span.start").alias("window"), "word", "total", epoch("word").alias("epoch"))
        .select(
            F.lit(topic).alias("topic"),
            F.concat_ws("|", "word", F.col("window").cast("string")).alias("key"),
            F.to_json(F.struct("window", "word", "total", "epoch")).alias("value"),
        )
    )


def main() -> None:
    """Run both queries until the process is killed."""
    parser = argparse.ArgumentParser(description="The demo's job on plain Spark.")
    for name in ("server", "lines", "words", "sample", "totals"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    arguments = parser.parse_args()
    settings = Settings()
    kafka = settings.kafka
    spark = build_session("plain-wordcount", settings=settings).spark
    words = _words(_source(spark, kafka, arguments.lines), arguments.server, arguments.words, arguments.sample)
    _publish(words, kafka, "words", arguments.checkpoints, "append")
    _publish(
        _totals(_source(spark, kafka, arguments.words), arguments.totals),
        kafka,
        "totals",
        arguments.checkpoints,
        "update",
    )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
