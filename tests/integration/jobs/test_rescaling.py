"""Jobs that continue with another number of shuffle partitions: nothing is doubled, lost or out of order per key.

These tests also pin what Clonos uses of Spark's offline repartition of state, which is experimental.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from test_replay import MakeTopic, published

import clonos
from clonos import faults
from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import JobOwner
from clonos.errors import RescaleRefused, RestartsExhausted
from clonos.faults import RESCALE_POINTS
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark.local_folder import LocalFolder
from clonos.testing.harness import eventually

KEYS = 7
PARTITIONS = 3


class Fed:
    """A source topic whose rows have a key and a number, unique in the topic and ascending for each key."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.topic = topic
        self.sent: dict[str, int] = Counter()
        self._producer = Producer(client_config(kafka))
        self._next = 0

    def feed(self, rows: int = 42) -> None:
        for n in range(self._next, self._next + rows):
            key = f"k{n % KEYS}"
            self.sent[key] += 1
            row = json.dumps({"key": key, "n": n}).encode()
            self._producer.produce(self.topic, row, partition=n % KEYS % PARTITIONS)
        self._next += rows
        assert self._producer.flush(30) == 0


@pytest.fixture
def fed(kafka: KafkaSettings, make_topic: MakeTopic) -> Fed:
    return Fed(kafka, make_topic(PARTITIONS, "in"))


class Counting(StatefulProcessor):
    """Counts the rows of a key, in a value, a list and a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")
        self._numbers = handle.getListState("numbers", "n long")
        self._seen = handle.getMapState("seen", "n long", "seen boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            assert not self._seen.containsKey((row["n"],)), "a row is counted twice"
            self._seen.updateValue((row["n"],), (True,))
            self._numbers.appendValue((row["n"],))
            count += 1
        self._count.update((count,))
        assert len(list(self._numbers.get())) == count
        yield Row(key=key[0], count=count)

    def close(self) -> None:
        pass


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("count"))


def processed(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(
        clonos.operator(Counting(), name="counting"), "key string, count long", "update", "none"
    )


@clonos.operator
def in_group(key: tuple[str], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"key": key[0], "n": rows["n"], "draw": clonos.random()})


def grouped(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").applyInPandas(in_group, "key string, n long, draw double")


def once(rows: DataFrame) -> DataFrame:
    return rows.union(rows).dropDuplicates(["key", "n"])


def joined(rows: DataFrame) -> DataFrame:
    at = F.timestamp_seconds(F.col("n") + 1)  # a row at 0 is late: the first watermark is 0
    left = rows.select("key", "n", at.alias("at")).withWatermark("at", "1 hour")
    right = rows.select(F.col("n").alias("m"), at.alias("until")).withWatermark("until", "1 hour")
    return left.join(right, F.expr("n = m AND at = until")).select("key", "n")


# The query, its output mode, and whether it has state.
QUERIES = {
    "counted": (counted, "update", True),
    "processed": (processed, "update", True),
    "once": (once, "append", True),
    "joined": (joined, "append", True),
    "grouped": (grouped, "append", False),
}
COUNTS = {"counted", "processed"}
# The others spread the rows of a key over several partitions, or have no order after a join.
ORDERED = {*COUNTS, "grouped"}


@pytest.fixture
def run(run_job: Any, name: str, fed: Fed, make_topic: MakeTopic) -> Callable[..., str]:
    """Runs a query over the input so far; returns the output topic."""
    out = make_topic(2, "out")

    def start(query: str, partitions: int | None, **options: Any) -> str:
        transform, mode, _ = QUERIES[query]

        def job(ctx: JobContext) -> None:
            parsed = F.from_json(F.col("value").cast("string"), "key string, n long").alias("row")
            frame = transform(ctx.source(fed.topic).select(parsed).select("row.*"))
            value = F.to_json(F.struct("*")).alias("value")
            ctx.sink(frame.select(F.col("key"), value), topic=out, name="out", mode=mode)

        run_job(job, name, shuffle_partitions=partitions, **options)
        return out

    return start


def check(kafka: KafkaSettings, out: str, query: str, fed: Fed) -> None:
    """Each row was published once, or counted once; the rows of a key are in order."""
    rows = published(kafka, out)
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row["count"] if query in COUNTS else row["n"])
    assert by_key.keys() == fed.sent.keys()
    for key, numbers in by_key.items():
        if query in COUNTS:
            assert numbers[-1] == fed.sent[key]
        else:
            assert len(numbers) == len(set(numbers)) == fed.sent[key]
        if query in ORDERED:
            assert all(before < after for before, after in pairwise(numbers)), (key, numbers)


def tasks(run_job: Any) -> int:
    """The number of lanes of the newest epoch with output is at most the number of partitions."""
    return int(max(event["published_lanes"] for event in run_job.events_of("epoch")[-1:]))


@pytest.mark.usefixtures("partition_lanes")
@pytest.mark.parametrize(
    "query", [pytest.param(query, marks=() if query == "counted" else pytest.mark.full) for query in QUERIES]
)
def test_a_query_continues_with_more_and_with_fewer_partitions(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, fed: Fed, query: str
) -> None:
    fed.feed()
    run(query, 2)
    lanes = [tasks(run_job)]
    for partitions in (5, 1):
        fed.feed()
        out = run(query, partitions)
        lanes.append(tasks(run_job))
    assert [(event["partitions_before"], event["partitions"]) for event in run_job.events_of("rescaled")] == [
        (2, 5),
        (5, 1),
    ]
    assert lanes == [2, 5, 1] or (lanes[2] == 1 and 2 < lanes[1] <= 5), "KEYS may leave a partition empty"
    check(kafka, out, query, fed)
    # Later starts keep the number, with the specification and without.
    fed.feed()
    run(query, 1)
    run(query, None)
    assert len(run_job.events_of("rescaled")) == 2
    check(kafka, out, query, fed)


@pytest.mark.turn
@pytest.mark.parametrize("point", RESCALE_POINTS)
@pytest.mark.parametrize("query", ["counted", pytest.param("grouped", marks=pytest.mark.full)])
def test_a_crash_while_rescaling_is_repeated(
    kafka: KafkaSettings,
    run: Callable[..., str],
    run_job: Any,
    fed: Fed,
    fail_at: Any,
    point: str,
    query: str,
    tmp_path: Path,
) -> None:
    fed.feed()
    run(query, 2)
    fail_at(point)
    fed.feed()
    with pytest.raises(faults.FaultInjected):
        run(query, 4)
    # Another number is requested before the restart: what the log has planned is finished first.
    out = run(query, 3)
    rescaled = [(event["epoch"], event["partitions"]) for event in run_job.events_of("rescaled")]
    assert rescaled == ([(1, 4), (2, 3)] if point == "rescale-committed" else [(1, 3)])
    check(kafka, out, query, fed)
    assert not list((tmp_path / "checkpoint").glob(".rescale-*"))


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
@pytest.mark.parametrize("point", ["plan-committed", pytest.param("epoch-committed", marks=pytest.mark.full)])
def test_an_epoch_in_doubt_is_finished_with_the_partitions_of_its_plan(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, fed: Fed, fail_at: Any, point: str
) -> None:
    fed.feed()
    run("counted", 2)
    fail_at(point)
    fed.feed()
    with pytest.raises(RestartsExhausted):
        run("counted", 2, restart_policy={"attempts": 0})
    fed.feed()
    out = run("counted", 5, restart_policy={"attempts": 0})
    assert [event["epoch"] for event in run_job.events_of("epoch") if event["replay"]] == [1]
    assert [(event["epoch"], event["partitions"]) for event in run_job.events_of("rescaled")] == [(2, 5)]
    check(kafka, out, "counted", fed)


@pytest.mark.turn
def test_a_first_epoch_in_doubt_is_finished_first(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, fed: Fed, fail_at: Any
) -> None:
    fed.feed()
    fail_at("offsets-logged")
    with pytest.raises(RestartsExhausted):
        run("counted", 2, restart_policy={"attempts": 0})
    run("counted", 5)
    fed.feed()
    out = run("counted", 5)
    assert [event["partitions"] for event in run_job.events_of("rescaled")] == [5]
    check(kafka, out, "counted", fed)


@pytest.mark.turn
def test_an_older_checkpoint_replays_the_epochs_around_a_rescale(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, fed: Fed, tmp_path: Path
) -> None:
    fed.feed()
    run("counted", 2)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    for partitions in (2, 4):
        fed.feed()
        run("counted", partitions)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "older").rename(tmp_path / "checkpoint")
    fed.feed()
    out = run("counted", 4)
    assert [event["epoch"] for event in run_job.events_of("rescaled")] == [2, 2]
    assert [event["epoch"] for event in run_job.events_of("epoch") if event["replay"]] == [1, 3]
    check(kafka, out, "counted", fed)


@pytest.mark.turn
def test_a_savepoint_is_restored_with_other_partitions(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, name: str, fed: Fed, tmp_path: Path
) -> None:
    fed.feed()
    run("counted", 2)
    saved = LocalFolder(str(tmp_path / "savepoint"))
    savepoint.take(LocalFolder(str(tmp_path / "checkpoint")), saved, owner=JobOwner(name))
    savepoint.restore(saved, LocalFolder(str(tmp_path / "restored")), JobOwner(name))
    fed.feed()
    out = run("counted", 6, checkpoint="restored", new_lineage=True)
    assert [event["partitions"] for event in run_job.events_of("rescaled")] == [6]
    check(kafka, out, "counted", fed)


def test_a_state_that_cannot_be_repartitioned_is_refused(
    kafka: KafkaSettings,
    run: Callable[..., str],
    run_job: Any,
    fed: Fed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark cannot read the state of a limit; the job continues with the partitions that it has."""
    monkeypatch.setitem(QUERIES, "limited", (lambda rows: rows.limit(60), "append", True))
    fed.feed(30)
    run("limited", 2)
    before = sorted(str(file) for file in (tmp_path / "checkpoint").rglob("*"))
    fed.feed(90)
    with pytest.raises(RescaleRefused, match="from 2 to 4 partitions"):
        run("limited", 4)
    assert sorted(str(file) for file in (tmp_path / "checkpoint").rglob("*")) == before
    out = run("limited", None)
    assert len(published(kafka, out)) == 60
    assert run_job.events_of("rescaled") == []


@pytest.mark.turn
@pytest.mark.parametrize("point", ["plan-committed", "epoch-committed"])
def test_a_source_topic_grows_while_an_epoch_is_in_doubt(
    kafka: KafkaSettings, run: Callable[..., str], run_job: Any, fed: Fed, fail_at: Any, point: str
) -> None:
    """The epoch in doubt reads the partitions of its plan; the new ones are read from the next epoch on."""
    fed.feed()
    fail_at(point)
    with pytest.raises(RestartsExhausted):
        run("counted", 2, restart_policy={"attempts": 0})
    admin = AdminClient(client_config(kafka))
    admin.create_partitions([NewPartitions(fed.topic, PARTITIONS + 2)])[fed.topic].result(30)

    def grown() -> bool:
        return len(admin.list_topics(fed.topic, timeout=10).topics[fed.topic].partitions) == PARTITIONS + 2

    eventually(grown, "the topic has five partitions")
    producer = Producer(client_config(kafka))
    for n in range(10_000, 10_014):
        key = f"k{n % KEYS}"
        producer.produce(fed.topic, json.dumps({"key": key, "n": n}).encode(), partition=PARTITIONS + n % 2)
        fed.sent[key] += 1
    assert producer.flush(30) == 0
    out = run("counted", 2)
    assert [event["epoch"] for event in run_job.events_of("epoch") if event["replay"]] == [0]
    check(kafka, out, "counted", fed)
