"""The Clonos example: counts words in 5-second windows, without the words that an external server bans.

Three values do not follow from the input: the clock, a random draw, and the changing answers of an HTTP server. Each is
read through a causal service, so a replay after a crash gets the same values.

Two queries, each exactly once:

- ``words``: one record for each word of each line, with its verdict and its position in the source. A random sample of
  the words is also published to a second topic *in the same transaction*.
- ``totals``: reads the records of ``words`` and counts the words that are not banned, by window and word.

Run it with ``clonos run examples/wordcount/job.py -p server=http://127.0.0.1:8099``; the parameters name the topics.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark.sql import functions as F

import clonos

WINDOW_MS = 5_000
SAMPLE_SHARE = 0.1

WORD_SCHEMA = "word string, banned boolean, at long"


@clonos.service(timeout=2.0, retries=3, concurrency=8, outages=(OSError,))
def is_banned(word: str) -> dict[str, Any]:
    """The server's answer; it is recorded, and a replay gets the recorded answer."""
    connection = HTTPConnection(urlsplit(clonos.param("server")).netloc, timeout=2.0)
    try:
        connection.request("GET", f"/banned?word={quote(word)}")
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"the server answered {response.status} {response.reason}")
        answer: dict[str, Any] = json.loads(response.read())
        return answer
    finally:
        connection.close()


@clonos.udf("id string, answer string, banned boolean, sampled boolean, at long, window long, epoch long")
def judge(topic: str, partition: int, offset: int, index: int, word: str) -> dict[str, Any]:
    """The values of a word that do not follow from the input."""
    verdict = is_banned(word)
    key = (topic, partition, offset, index)
    at = int(clonos.now().timestamp() * 1000)
    return {
        "id": str(clonos.uuid4(key)),
        "answer": verdict["answer"],
        "banned": verdict["banned"],
        "sampled": clonos.random(key) < SAMPLE_SHARE,
        "at": at,
        "window": at - at % WINDOW_MS,
        "epoch": clonos.epoch(),
    }


@clonos.udf("long")
def current_epoch(word: str) -> int:
    """The epoch that publishes this row."""
    return clonos.epoch()


@clonos.job(
    name="wordcount",
    params={"lines": "lines", "words": "words", "sample": "sample", "totals": "totals"},
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
def wordcount(ctx: clonos.JobContext) -> None:
    """Build both queries."""
    lines, words, sample, totals = (ctx.params[name] for name in ("lines", "words", "sample", "totals"))

    judged = (
        ctx.source(lines)
        .select(
            F.struct("topic", "partition", "offset").alias("line"),
            F.posexplode(F.expr('regexp_extract_all(lower(cast(value AS string)), "[a-z\']+", 0)')).alias(
                "index", "word"
            ),
        )
        .withColumn("verdict", judge("line.topic", "line.partition", "line.offset", "index", "word"))
    )
    value = F.to_json(F.struct(F.struct("line.*", "index").alias("source"), "word", "verdict.*"))
    outputs = {
        words: clonos.Output(value, key="word"),
        sample: clonos.Output(value, key="word", where="verdict.sampled"),
    }
    ctx.sink(clonos.fan_out(judged, outputs), topic=words, name="words")

    allowed = (
        ctx.source(words)
        .select(F.from_json(F.col("value").cast("string"), WORD_SCHEMA).alias("record"))
        .select("record.word", "record.banned", F.timestamp_millis("record.at").alias("time"))
        .where("NOT banned")
    )
    counted = (
        # The watermark only lets Spark remove old windows; no record is ten minutes late here.
        allowed.withWatermark("time", "10 minutes")
        .groupBy(F.window("time", f"{WINDOW_MS} milliseconds").alias("span"), "word")
        .agg(F.count("*").alias("total"))
        .select(
            F.unix_millis("span.start").alias("window"), "word", "total", current_epoch(F.col("word")).alias("epoch")
        )
    )
    ctx.sink(
        counted.select(
            F.concat_ws("|", "word", F.col("window").cast("string")).alias("key"),
            F.to_json(F.struct("window", "word", "total", "epoch")).alias("value"),
        ),
        topic=totals,
        name="totals",
        mode="update",
    )
