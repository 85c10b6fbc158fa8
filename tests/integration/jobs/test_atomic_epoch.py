"""``delivery="atomic-epoch"``: one transaction for the whole epoch, over several topics."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.errors import CheckpointMismatch, RestartsExhausted
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.reading import shared_reader
from clonos.log.records import Marker
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import end_offsets, eventually, read_committed

pytestmark = pytest.mark.full

MakeTopic = Callable[..., str]


def feed(kafka: KafkaSettings, topic: str, partitions: int, count: int) -> Counter[str]:
    producer = Producer(client_config(kafka))
    words = [f"{chr(97 + number % 5)}{number}" for number in range(count)]
    for number, word in enumerate(words):
        producer.produce(topic, word.encode(), partition=number % partitions)
    assert producer.flush(30) == 0
    return Counter(words)


@clonos.service
def ask(letter: str) -> str:
    return f"{letter}-{secrets.token_hex(6)}"


@clonos.udf("struct<answer:string,epoch:long>")
def judge(word: str) -> dict[str, Any]:
    return {"answer": ask(word[0]), "epoch": clonos.epoch()}


def job_to(source: str, topics: list[str], *, delivery: str = "atomic-epoch", rate: int | None = None) -> Any:
    """Every record goes to one of several topics, by the column `topic`."""

    def job(ctx: JobContext) -> None:
        records = ctx.source(source, max_per_epoch=rate).withColumn("word", F.col("value").cast("string"))
        where = F.element_at(F.array(*map(F.lit, topics)), (F.col("offset") % len(topics) + 1).cast("int"))
        value = F.to_json(F.struct("word", F.col("partition").alias("from"), "offset", judge("word").alias("verdict")))
        ctx.sink(records.select(where.alias("topic"), value.alias("value")), name="out", delivery=delivery)

    return job


def published(kafka: KafkaSettings, topics: list[str]) -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"{}") for topic in topics for message in read_committed(kafka, topic)]


def words(kafka: KafkaSettings, topics: list[str]) -> Counter[str]:
    return Counter(record["word"] for record in published(kafka, topics))


def test_a_reader_never_sees_a_part_of_an_epoch(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """A read_committed reader polls all partitions: each shows all records of an epoch or none."""
    source, topics = make_topic(3, "in"), [make_topic(2, "a"), make_topic(1, "b")]
    sent = feed(kafka, source, 3, 1200)
    looks: list[Counter[tuple[str, int | None, int]]] = []

    def look() -> Counter[tuple[str, int | None, int]]:
        messages = [message for topic in topics for message in read_committed(kafka, topic)]
        return Counter(
            (str(message.topic()), message.partition(), json.loads(message.value() or b"{}")["verdict"]["epoch"])
            for message in messages
        )

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_job, job_to(source, topics, rate=120), name)
        while not running.done():
            looks.append(look())
        running.result()
    final = look()
    assert sum(final.values()) == 1200
    assert words(kafka, topics) == sent
    assert len({epoch for _, _, epoch in final}) >= 8
    assert len({sum(seen.values()) for seen in looks}) > 3, "the reader polled while epochs were published"
    for seen in looks:
        assert {place: (count, final[place]) for place, count in seen.items() if count != final[place]} == {}
    lanes = [report["skipped_lanes"] for report in run_job.events_of("epoch")]
    assert lanes
    assert len(end_offsets(kafka, log_topic(name))) == 2, "one lane beside control"


@pytest.mark.turn
def test_nothing_is_visible_before_the_commit(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The driver pauses with all rows and the marker sent, to several topics; then the epoch fails."""
    source, topics = make_topic(3, "in"), [make_topic(1, "a"), make_topic(1, "b")]
    sent = feed(kafka, source, 3, 60)
    log = tmp_path / "faults"
    injected = faults.injecting("lane-marked,lane=0:hold;lane-marked,epoch=0:raise", log)
    with injected, ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_job, job_to(source, topics), name)
        try:
            eventually(log.exists, "all rows are sent", timeout_s=60)
            assert published(kafka, topics) == []
        finally:
            Path(f"{log}.go").touch()
        running.result()
    assert words(kafka, topics) == sent
    replay = next(event for event in run_job.events_of("epoch") if event["replay"])
    assert replay["replayed_determinants"] > 0, "answers of the tasks before the lane were recorded, and replayed"
    answers: dict[tuple[int, int, str], set[str]] = {}
    for record in published(kafka, topics):
        task = (record["verdict"]["epoch"], record["from"], record["word"][0])
        answers.setdefault(task, set()).add(record["verdict"]["answer"])
    assert all(len(replies) == 1 for replies in answers.values())


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Make the driver (not its workers) fail once at a named point."""

    def arm(fault: str) -> None:
        monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / f"faults-{secrets.token_hex(2)}"))
        monkeypatch.setattr(faults, "_FAULTS", faults.parse(f"{fault}:raise"))

    return arm


@pytest.mark.ci
@pytest.mark.parametrize("point", ["plan-committed", "epoch-committed", "epoch-done"])
def test_a_failing_driver(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any, point: str
) -> None:
    source, topics = make_topic(3, "in"), [make_topic(1, "a"), make_topic(1, "b")]
    sent = feed(kafka, source, 3, 60)
    fail_at(point)
    run_job(job_to(source, topics), name)
    assert words(kafka, topics) == sent
    assert [event["attempt"] for event in run_job.events_of("restart")] == [1]
    reader = shared_reader(kafka, log_topic(name))
    low, end = reader.bounds(1)
    markers = [record for _, record in reader.read(1, low, end) if isinstance(record, Marker)]
    assert [marker.records for marker in markers if marker.records] == [60]
    assert {str(marker.input_slice) for marker in markers} == {"all 3 partitions"}


def test_order_of_each_source_partition_is_kept(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, topics = make_topic(3, "in"), [make_topic(1, "out")]
    feed(kafka, source, 3, 3000)
    run_job(job_to(source, topics), name)
    records = published(kafka, topics)
    for partition in range(3):
        assert [record["offset"] for record in records if record["from"] == partition] == list(range(1000))


MODES = ("exactly-once", "atomic-epoch", "at-least-once")


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in MODES for new in MODES if old != new])
def test_the_delivery_of_an_epoch_in_doubt_cannot_change(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any, old: str, new: str
) -> None:
    source, topics = make_topic(1, "in"), [make_topic(1, "out")]
    sent = feed(kafka, source, 1, 20)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(job_to(source, topics, delivery=old), name, restart_policy={"attempts": 0})
    with pytest.raises(CheckpointMismatch, match=f"planned for {old} delivery, the sink is now {new}") as refused:
        run_job(job_to(source, topics, delivery=new), name)
    assert old in refused.value.hint
    assert words(kafka, topics) == Counter()
    run_job(job_to(source, topics, delivery=old), name)
    assert words(kafka, topics) == sent
    feed(kafka, source, 1, 5)
    run_job(job_to(source, topics, delivery=new), name)  # no epoch is in doubt
    assert len(published(kafka, topics)) == 25
