"""Failures, replays and refusals, on real Spark and Kafka, in one warm session."""

from __future__ import annotations

import json
import random
import re
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.errors import (
    CausalLogDamaged,
    CheckpointMismatch,
    JobCodeError,
    ReplayDivergence,
    RestartsExhausted,
    ServiceError,
    SourceOffsetsExpired,
)
from clonos.extend.sink import LaneReport, Sink, SinkEpoch, SinkLane
from clonos.jobs.context import JobContext, Query
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.truncation import truncate
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed
from support.lost_worker import lose_worker_once

MakeTopic = Callable[..., str]


def feed(kafka: KafkaSettings, topic: str, partitions: int, count: int, start: int = 0) -> Counter[str]:
    producer = Producer(client_config(kafka))
    words = [f"{chr(97 + i % 5)}{i}" for i in range(start, start + count)]
    for i, word in enumerate(words):
        producer.produce(topic, word.encode(), partition=i % partitions)
    assert producer.flush(30) == 0
    return Counter(words)


def published(kafka: KafkaSettings, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"{}") for message in read_committed(kafka, topic)]


def words(kafka: KafkaSettings, topic: str) -> Counter[str]:
    return Counter(record["word"] for record in published(kafka, topic))


@clonos.service
def ask(letter: str) -> str:
    return f"{letter}-{secrets.token_hex(6)}"


@clonos.udf("struct<answer:string,draw:double,uuid:string,epoch:long>")
def causal(topic: str, partition: int, offset: int, word: str, flag: str, out: str) -> dict[str, Any]:
    lose_worker_once(flag, out, partition)
    key = (topic, partition, offset)
    return {
        "answer": ask(word[0]),
        "draw": clonos.random(key),
        "uuid": str(clonos.uuid4(key)),
        "epoch": clonos.epoch(),
    }


@clonos.udf("struct<answer:string,draw:double,uuid:string,epoch:long>")
def raw(topic: str, partition: int, offset: int, word: str, flag: str, out: str) -> dict[str, Any]:
    lose_worker_once(flag, out, partition)
    return {"answer": word, "draw": random.random(), "uuid": "", "epoch": clonos.epoch()}


def job_with(udf: Any, source: str, out: str, flag: Path, sink: Sink | None = None) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        verdict = udf("topic", "partition", "offset", "word", F.lit(str(flag)), F.lit(out))
        frame = records.withColumn("verdict", verdict).select(
            F.to_json(F.struct("word", "partition", "offset", "verdict")).alias("value")
        )
        if sink is None:
            ctx.sink(frame, topic=out, name="out")
        else:
            ctx.queries.append(Query(sink, frame))

    return job


def plain_job(source: str, out: str, **sink: Any) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source, max_per_epoch=(ctx.params.get("rate") and int(ctx.params["rate"])) or None)
        value = F.to_json(F.struct(F.col("value").cast("string").alias("word"))).alias("value")
        ctx.sink(records.select("key", value), topic=out, name="out", **sink)

    return job


@pytest.mark.usefixtures("partition_lanes")
def test_lost_worker_with_a_lane_published(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The replay skips and audits the published lane, and replays the recorded answers without new calls."""
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 60)
    run_job(job_with(causal, source, out, tmp_path / "flag"), name)
    assert words(kafka, out) == sent
    replay = next(event for event in run_job.events_of("epoch") if event["replay"])
    assert replay["skipped_lanes"] >= 1
    assert replay["diverged_lanes"] == 0
    assert replay["replayed_determinants"] >= 1
    answers: dict[tuple[int, int, str], set[str]] = {}
    for record in published(kafka, out):
        task = (record["verdict"]["epoch"], record["partition"], record["word"][0])
        answers.setdefault(task, set()).add(record["verdict"]["answer"])
    assert all(len(replies) == 1 for replies in answers.values())


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_audit_catches_raw_random(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    feed(kafka, source, 3, 60)
    with pytest.raises(ReplayDivergence, match="differs from the published lanes"):
        run_job(job_with(raw, source, out, tmp_path / "flag"), name)
    contradicted = {record["partition"] for record in published(kafka, out)}
    assert contradicted == {0}, "no other lane was published on top of the contradiction"


@pytest.mark.parametrize("point", ["lane-committed", pytest.param("epoch-committed", marks=pytest.mark.turn)])
def test_audit_of_the_drivers_lane_catches_raw_random(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path, fail_at: Any, point: str
) -> None:
    """The replay of the whole epoch has as many records as the published one, and others."""
    source, out = make_topic(3, "in"), make_topic(1, "out")
    (tmp_path / "flag").touch()  # no worker is lost
    feed(kafka, source, 3, 12)
    fail_at(point)
    with pytest.raises(ReplayDivergence, match="differs from the published lanes"):
        run_job(job_with(raw, source, out, tmp_path / "flag"), name)
    assert len(published(kafka, out)) == 12


class NoDedupSink:
    """A mutant: it publishes every lane of every attempt, as a sink without markers would."""

    name, output_mode, delivery = "out", "append", "exactly-once"

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def check(self, kafka: KafkaSettings) -> None:
        """Nothing can be wrong."""

    def check_frame(self, frame: DataFrame) -> None:
        """All columns are known."""

    def published(self, _epoch: SinkEpoch) -> list[int]:
        return []

    def write_lane(self, epoch: SinkEpoch, lane: SinkLane, batches: Iterator[pa.RecordBatch]) -> LaneReport:
        producer, count = Producer(client_config(epoch.kafka)), 0
        for batch in batches:
            for value in batch.column("value").to_pylist():
                producer.produce(self.topic, value.encode())
                count += 1
        assert producer.flush(30) == 0
        return LaneReport(lane.number, "published", count, b"")


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_the_checker_fails_without_dedup(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 60)
    run_job(job_with(causal, source, out, tmp_path / "flag", NoDedupSink(out)), name)
    assert words(kafka, out) != sent
    assert words(kafka, out) > sent


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Make the driver (not its workers) fail once at a named point."""

    def arm(fault: str) -> None:
        monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / f"faults-{secrets.token_hex(2)}"))
        monkeypatch.setattr(faults, "_FAULTS", faults.parse(f"{fault}:raise"))

    return arm


@pytest.mark.parametrize(
    "point", ["offsets-logged", "plan-committed", "epoch-committed", "epoch-done", "claim-checked"]
)
def test_warm_restart_is_a_new_owner(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any, point: str
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    fail_at(point)
    if point == "claim-checked":
        with pytest.raises(faults.FaultInjected):
            run_job(plain_job(source, out), name)
        run_job(plain_job(source, out), name)
    else:
        run_job(plain_job(source, out), name)
        assert [event["attempt"] for event in run_job.events_of("restart")] == [1]
    assert words(kafka, out) == sent


def test_lost_offset_entry_is_restored_from_the_plan(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any, tmp_path: Path
) -> None:
    """A host crash lost Spark's entry of the epoch in doubt, and more input has arrived since the plan."""
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 30)
    fail_at("epoch-committed")
    with pytest.raises(RestartsExhausted):
        run_job(plain_job(source, out), name, restart_policy={"attempts": 0})
    offsets = tmp_path / "checkpoint" / "out" / "offsets"
    planned = (offsets / "0").read_text()
    shutil.rmtree(offsets)
    sent += feed(kafka, source, 3, 30, start=30)
    run_job(plain_job(source, out), name)
    assert words(kafka, out) == sent
    assert (offsets / "0").read_text() == planned
    assert any("restored offsets/0" in event["done"] for event in run_job.events_of("reconciled"))


def test_each_epoch_of_an_older_checkpoint_is_that_of_its_plan_within_one_claim(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """The log has the plans of three epochs, the checkpoint none of them, and Spark would now read other ranges."""
    source, out = make_topic(1, "in"), make_topic(1, "out")

    def limited(rate: int) -> Callable[[JobContext], None]:
        def job(ctx: JobContext) -> None:
            value = F.to_json(F.struct(F.col("value").cast("string").alias("word"))).alias("value")
            ctx.sink(ctx.source(source, max_per_epoch=rate).select(value), topic=out, name="out")

        return job

    sent = feed(kafka, source, 1, 12)
    run_job(limited(4), name)
    claims = len(run_job.events_of("claimed"))
    feed(kafka, source, 1, 5, start=12)
    run_job(limited(5), name, checkpoint="older")
    assert len(run_job.events_of("claimed")) == claims + 1
    assert run_job.events_of("restart") == []
    reconciled = [event["done"] for event in run_job.events_of("reconciled")]
    assert [text for text in reconciled if "from the plan" in text] == [
        f"restored offsets/{epoch} from the plan" for epoch in range(3)
    ]
    assert words(kafka, out) == sent + Counter(f"{chr(97 + i % 5)}{i}" for i in range(12, 17))


def test_foreign_offset_entry_yields_to_the_plan(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any, tmp_path: Path
) -> None:
    """A zombie left entries for the epoch in doubt and the next one: the plan in the log overrides them."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(plain_job(source, out), name, restart_policy={"attempts": 0})
    offsets = tmp_path / "checkpoint" / "out" / "offsets"
    sent += feed(kafka, source, 2, 20, start=20)
    entry = (offsets / "0").read_text().splitlines()
    entry[2] = entry[2].replace('"0":10', '"0":20').replace('"1":10', '"1":20')
    for number in ("0", "1"):
        (offsets / f".{number}.crc").unlink(missing_ok=True)
        (offsets / number).write_text("\n".join(entry))
    run_job(plain_job(source, out), name)
    assert words(kafka, out) == sent


def test_changed_code_in_doubt_is_refused_until_accepted(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(plain_job(source, out), name, code="old", restart_policy={"attempts": 0})
    with pytest.raises(CheckpointMismatch, match="code changed"):
        run_job(plain_job(source, out), name, code="new")
    assert words(kafka, out) == Counter()
    run_job(plain_job(source, out), name, code="new", accept_new_code=True)
    assert words(kafka, out) == sent
    feed(kafka, source, 2, 2, start=20)
    run_job(plain_job(source, out), name, code="newer")  # no epoch is in doubt: code may change


@pytest.mark.turn
def test_two_codes_finish_their_own_epochs_in_doubt(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any
) -> None:
    """No code may replay both epochs; one after the other finishes its own, and publishes nothing else."""
    of_a, of_b, first, second = (make_topic(1, topic) for topic in ("a", "b", "out-a", "out-b"))

    def define(ctx: JobContext) -> None:
        ctx.sink(ctx.source(of_b).select("value"), topic=second, name="b")
        # It starts after b, whose output it reads: it has begun nothing when b fails.
        ctx.sink(ctx.source([of_a, second]).where(F.col("topic") == of_a).select("value"), topic=first, name="a")

    def read(topic: str) -> Counter[str]:
        return Counter(str(message.value(), "utf-8") for message in read_committed(kafka, topic))

    run_job(define, name, code="old")  # the first epoch of each query, which also reads nothing
    sent_a = feed(kafka, of_a, 1, 10)
    fail_at("plan-committed,query=a")
    with pytest.raises(RestartsExhausted):
        run_job(define, name, code="old", restart_policy={"attempts": 0})
    sent_b = feed(kafka, of_b, 1, 10)
    with pytest.raises(CheckpointMismatch, match=r"while epoch \d+ of a was in doubt") as refused:
        run_job(define, name, code="new")
    (old,) = refused.value.codes
    assert (read(first), read(second)) == (Counter(), Counter()), "b began no epoch that would be in doubt now"
    fail_at("plan-committed,query=b")
    epoch = re.findall(r"epoch (\d+) of a", refused.value.what)[0]
    with pytest.raises(RestartsExhausted):
        run_job(define, name, code="new", resolve=[f"a:{epoch}=new-code"], restart_policy={"attempts": 0})

    with pytest.raises(CheckpointMismatch, match=r"epoch \d+ of b and epoch \d+ of a were in doubt") as refused:
        run_job(define, name, code="newer")
    assert len(refused.value.codes) == 2
    assert refused.value.codes[1] == old
    assert "--finish-in-doubt` with the old files, once for each version" in refused.value.hint
    sent_a += feed(kafka, of_a, 1, 5, start=10)
    sent_b += feed(kafka, of_b, 1, 5, start=10)
    run_job(define, name, code="old", finish_in_doubt=True)
    assert (read(first).total(), read(second).total()) == (10, 0)
    run_job(define, name, code="new", finish_in_doubt=True)
    assert (read(first).total(), read(second).total()) == (10, 10)
    run_job(define, name, code="newer")
    assert (read(first), read(second)) == (sent_a, sent_b)


def test_other_code_computes_an_epoch_without_published_output(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 1, 10)
    fail_at("plan-committed")
    with pytest.raises(RestartsExhausted):
        run_job(plain_job(source, out), name, code="old", restart_policy={"attempts": 0})
    run_job(plain_job(source, out), name, code="new", accept_unpublished=True)
    assert words(kafka, out) == sent
    sent += feed(kafka, source, 1, 10, start=10)
    fail_at("lane-committed")
    with pytest.raises(RestartsExhausted):
        run_job(plain_job(source, out), name, code="new", restart_policy={"attempts": 0})
    with pytest.raises(CheckpointMismatch, match="code changed"):
        run_job(plain_job(source, out), name, code="newer", accept_unpublished=True)
    run_job(plain_job(source, out), name, code="new", finish_in_doubt=True)
    run_job(plain_job(source, out), name, code="newer")
    assert words(kafka, out) == sent


@pytest.mark.turn
@pytest.mark.parametrize("lanes", ["driver", "partition"])
def test_older_checkpoint_replays_its_plans_and_is_refused_once_they_are_gone(
    kafka: KafkaSettings,
    run_job: Any,
    name: str,
    make_topic: MakeTopic,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    lanes: str,
) -> None:
    if lanes == "partition":
        request.getfixturevalue("partition_lanes")
    source, out = make_topic(2, "in"), make_topic(1, "out")
    job = plain_job(source, out)
    sent = feed(kafka, source, 2, 10)
    run_job(job, name)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    for start in (10, 20, 30):
        sent += feed(kafka, source, 2, 10, start=start)
        run_job(job, name)
    assert words(kafka, out) == sent
    shutil.copytree(tmp_path / "older", tmp_path / "oldest")
    sent += feed(kafka, source, 2, 10, start=40)
    run_job(job, name, checkpoint="older")
    assert words(kafka, out) == sent, "published epochs were replayed from their plans and skipped"
    truncate(claim(kafka, name), retained=1)
    with pytest.raises(CheckpointMismatch, match="no longer holds the plan"):
        run_job(job, name, checkpoint="oldest")
    assert words(kafka, out) == sent


def test_lost_log_is_refused(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 1, 10)
    run_job(plain_job(source, out), name)
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([f"clonos.{name}.log"])[f"clonos.{name}.log"].result(60)
    eventually(lambda: f"clonos.{name}.log" not in admin.list_topics(timeout=60).topics, "the log topic is deleted")
    with pytest.raises(CausalLogDamaged, match="topic of the causal log, does not exist"):
        run_job(plain_job(source, out), name)
    assert words(kafka, out) == sent


def test_expired_source_offsets_are_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 1, 10)
    run_job(plain_job(source, out), name)
    feed(kafka, source, 1, 10, start=10)
    admin = AdminClient(client_config(kafka))
    gone = TopicPartition(source, 0, 15)
    admin.delete_records([gone])[TopicPartition(source, 0)].result(60)
    with pytest.raises(SourceOffsetsExpired, match="needs 10, has 15"):
        run_job(plain_job(source, out), name)
    assert words(kafka, out) == sent


@pytest.mark.turn
def test_truncation_keeps_what_a_replay_needs(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    (tmp_path / "flag").touch()
    job = job_with(causal, source, out, tmp_path / "flag")
    sent: Counter[str] = Counter()
    for start in range(0, 40, 10):
        sent += feed(kafka, source, 2, 10, start=start)
        run_job(job, name)
    own = claim(kafka, name)
    shortened = truncate(own, retained=1)
    assert set(shortened) == {0, 1}
    sent += feed(kafka, source, 2, 10, start=40)
    run_job(job, name)
    assert words(kafka, out) == sent


def test_progress_is_an_ordinary_consumer_group(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 20)
    run_job(plain_job(source, out), name)
    admin = AdminClient(client_config(kafka))
    group = f"clonos.{name}.out"

    def offsets() -> dict[tuple[str, int], int]:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
        return {(tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions}

    eventually(lambda: offsets() == {(source, 0): 10, (source, 1): 10}, "lag tools see the job")


def test_users_error_is_reported_and_not_retried(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 10)

    @clonos.udf("string")
    def broken(value: str) -> str:
        raise ValueError(f"no way to handle {value}")

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select(broken(F.col("value").cast("string")).alias("value")), topic=out)

    with pytest.raises(JobCodeError, match="no way to handle"):
        run_job(job, name)
    assert run_job.events_of("restart") == []
    assert read_committed(kafka, out) == []


def test_failing_service_is_reported(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 10)

    @clonos.service(name="never", retries=1, on_outage="fail")
    def never(word: str) -> str:
        raise ConnectionError("nobody there")

    @clonos.udf("string")
    def call(value: str) -> str:
        return never(value)

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select(call(F.col("value").cast("string")).alias("value")), topic=out)

    with pytest.raises(ServiceError, match="nobody there"):
        run_job(job, name)
    assert read_committed(kafka, out) == []


def call_for_each(service: Callable[[str], str], source: str, out: str) -> Callable[[JobContext], None]:
    @clonos.udf("string")
    def call(value: str) -> str:
        return service(value)

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source).select(call(F.col("value").cast("string")).alias("value")), topic=out)

    return job


def test_an_error_in_the_code_of_a_service_fails_the_job(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 10)

    @clonos.service(name="changed", retries=5, on_outage="record")
    def score_of(word: str) -> str:
        return {"value": "x"}["score"]

    with pytest.raises(JobCodeError, match=r"KeyError: 'score', in score_of"):
        run_job(call_for_each(score_of, source, out), name)
    assert run_job.events_of("restart") == []
    assert read_committed(kafka, out) == []


@pytest.mark.turn
def test_a_job_waits_for_the_end_of_an_outage_of_a_service(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """First in the call, then, after 10 s, in the driver; what was answered is not asked again."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 1, 10)
    calls, back = tmp_path / "calls", tmp_path / "back"

    @clonos.service(name="rates", retries=1)
    def rate_of(word: str) -> str:
        if word.endswith("5") and not back.exists():
            raise ConnectionRefusedError("nobody there")
        with calls.open("a") as log:
            log.write(f"{word}\n")
        return word

    def end_the_outage() -> None:
        eventually(lambda: run_job.events_of("waiting"), "the driver waits", timeout_s=120)
        back.touch()

    ending = threading.Thread(target=end_the_outage)
    ending.start()
    try:
        run_job(call_for_each(rate_of, source, out), name)
    finally:
        ending.join()
    waiting = run_job.events_of("waiting")[0]
    assert waiting["error"] == "service-unavailable"
    assert waiting["what"] == "The service rates failed: ConnectionRefusedError: nobody there."
    states = [event["state"] for event in run_job.events_of("state")]
    assert states[states.index("WAITING") - 1] == "RUNNING"
    assert states[-1] == "FINISHED"
    assert run_job.events_of("restart") == []
    assert Counter((message.value() or b"").decode() for message in read_committed(kafka, out)) == sent
    assert Counter(calls.read_text().split()) == sent


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_output_modes_headers_and_timestamps(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, mode: str
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    sent = feed(kafka, source, 2, 20)

    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        if mode != "append":
            letter = F.substring("word", 1, 1).alias("letter")
            records = records.groupBy(letter).agg(F.count("*").alias("n"), F.min("timestamp").alias("timestamp"))
            records = records.withColumn("word", F.concat("letter", F.lit(":"), "n"))
        header = F.struct(F.lit("kind").alias("key"), F.lit(mode).cast("binary").alias("value"))
        frame = records.select(
            F.col("word").alias("key"),
            F.to_json(F.struct("word")).alias("value"),
            "timestamp",
            F.array(header).alias("headers"),
        )
        ctx.sink(frame, topic=out, name="out", mode=mode)

    run_job(job, name)
    messages = read_committed(kafka, out)
    expected = (
        sent if mode == "append" else Counter(f"{letter}:{n}" for letter, n in Counter(w[0] for w in sent).items())
    )
    assert Counter((message.key() or b"").decode() for message in messages) == expected
    assert all(message.headers() == [("kind", mode.encode())] for message in messages)


def test_at_least_once_needs_no_transaction(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    run_job(plain_job(source, out, delivery="at-least-once"), name)
    assert words(kafka, out) == sent
    assert [message.offset() for message in read_committed(kafka, out)] == list(range(20)), (
        "no commit marker in between"
    )


@pytest.mark.parametrize("depth", ["0", "1", "full"])
def test_sharing_depth(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path, depth: str
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)
    (tmp_path / "flag").touch()
    run_job(job_with(causal, source, out, tmp_path / "flag"), name, sharing_depth=depth)
    assert words(kafka, out) == sent
    recorded = sum(event["recorded_determinants"] for event in run_job.events_of("epoch"))
    assert recorded == (0 if depth == "0" else 10)


def test_a_udf_is_evaluated_once(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    """A filter and the output use the same answer; Spark would evaluate a deterministic UDF twice."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 40)

    @clonos.service(name="coin")
    def coin(word: str) -> bool:
        return secrets.randbelow(2) == 1

    @clonos.udf("struct<keep:boolean>")
    def judge(word: str) -> dict[str, bool]:
        return {"keep": coin(word)}

    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        judged = records.withColumn("verdict", judge("word")).where("verdict.keep")
        ctx.sink(judged.select(F.to_json(F.struct("word", "verdict.keep")).alias("value")), topic=out, name="out")

    run_job(job, name)
    records = published(kafka, out)
    assert 0 < len(records) < 40
    assert all(record["keep"] for record in records)


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
def test_two_uses_of_a_udf_have_answers_of_their_own(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)

    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        arguments = ("topic", "partition", "offset", "word", F.lit(str(tmp_path / "flag")), F.lit(out))
        twice = records.withColumn("one", causal(*arguments)).withColumn("two", causal(*arguments))
        ctx.sink(twice.select(F.to_json(F.struct("word", "one", "two")).alias("value")), topic=out, name="out")

    run_job(job, name)
    assert words(kafka, out) == sent
    assert any(event["replay"] and event["skipped_lanes"] for event in run_job.events_of("epoch"))
    assert all(record["one"]["answer"] != record["two"]["answer"] for record in published(kafka, out))


def test_a_user_requests_a_new_lineage(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    """A new lineage continues from its checkpoint; with an empty checkpoint it publishes all records again."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 10)
    run_job(plain_job(source, out), name)
    sent += feed(kafka, source, 2, 10, start=10)
    run_job(plain_job(source, out), name, new_lineage=True)
    assert words(kafka, out) == sent
    assert run_job.events_of("claimed")[-1]["lineage"] == 2
    elsewhere = make_topic(1, "out")
    run_job(plain_job(source, elsewhere), name, new_lineage=True, checkpoint="new")
    assert words(kafka, elsewhere) == sent
    assert words(kafka, out) == sent


@pytest.mark.turn
@pytest.mark.usefixtures("partition_lanes")
@pytest.mark.parametrize(
    "shape",
    ["union", *(pytest.param(shape, marks=pytest.mark.full) for shape in ("split", "grown", "pattern", "assign"))],
)
def test_partition_order_of_other_shapes(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path, shape: str
) -> None:
    """Each shape of source keeps the partition order after a lost worker."""
    source, other, out = make_topic(3, f"{name}-in"), make_topic(2, f"{name}-other"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 30)
    if shape in {"union", "pattern"}:
        sent += feed(kafka, other, 2, 20, start=30)
    if shape == "assign":
        sent = Counter({word: count for word, count in sent.items() if int(word[1:]) % 3 != 1})

    def job(ctx: JobContext) -> None:
        options = {"minPartitions": "7"} if shape == "split" else {}
        if shape == "pattern":
            records = ctx.source(pattern=f"{name}-(in|other)-.*")
        elif shape == "assign":
            records = ctx.source(assign={source: [2, 0]})
        else:
            records = ctx.source(source, options=options)
        if shape == "union":
            records = records.unionByName(ctx.source(other))
        records = records.withColumn("word", F.col("value").cast("string"))
        verdict = causal("topic", "partition", "offset", "word", F.lit(str(tmp_path / "flag")), F.lit(out))
        made = records.withColumn("verdict", verdict)
        ctx.sink(made.select(F.to_json(F.struct("word", "verdict")).alias("value")), topic=out, name="out")

    if shape == "grown":
        (tmp_path / "flag").touch()
        run_job(job, name)
        (tmp_path / "flag").unlink()
        admin = AdminClient(client_config(kafka))
        admin.create_partitions([NewPartitions(source, 5)])[source].result(60)
        eventually(lambda: len(admin.list_topics(source, timeout=60).topics[source].partitions) == 5, "it grew")
        sent += feed(kafka, source, 5, 25, start=50)
    run_job(job, name)
    assert (tmp_path / "flag").exists(), "a worker was lost"
    assert words(kafka, out) == sent
    assert any(event["replay"] for event in run_job.events_of("epoch"))
