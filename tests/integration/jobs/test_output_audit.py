"""`clonos verify`: the output is compared with the markers, on real jobs and a real broker."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

import clonos
from clonos.agent.settings import AgentSettings
from clonos.audit.output_audit import audit_output
from clonos.formats import Json
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.truncation import truncate
from clonos.resources.hosts import HostTask, TaskResult
from clonos.resources.verification import Verification, VerifyTask
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually

MakeTopic = Callable[..., str]


def feed(kafka: KafkaSettings, topic: str, start: int, count: int = 10) -> None:
    producer = Producer(client_config(kafka))
    for number in range(start, start + count):
        producer.produce(topic, f"{number}".encode(), f"k{number}".encode(), partition=number % 2)
    assert producer.flush(30) == 0


def copying(source: str, out: str) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source).select("key", "value", F.lit("a").alias("header"))
        ctx.sink(records.drop("header"), topic=out, name="out")

    return job


@pytest.fixture(params=["driver", "partition"])
def lanes(request: pytest.FixtureRequest) -> None:
    if request.param == "partition":
        request.getfixturevalue("partition_lanes")


@pytest.mark.usefixtures("lanes")
def test_epochs_are_verified_through_failures(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, fail_at: Any
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    job = copying(source, out)
    feed(kafka, source, 0)
    run_job(job, name)
    fail_at("epoch-committed")
    feed(kafka, source, 10)
    run_job(job, name)
    result = audit_output(kafka, name, seconds=1)
    assert result.clean, result
    assert (result.verified, result.records) == ({"out": (0, 1)}, 20)


def test_the_task_of_a_host_verifies_the_output(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 0)
    run_job(copying(source, out), name)
    environment = {**os.environ, "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers}

    def verify(job: str) -> TaskResult:
        task = HostTask(task="t", kind="verify", arguments=VerifyTask(job=job, seconds=1).model_dump(mode="json"))
        ended = subprocess.run(
            AgentSettings.model_fields["task_command"].default,
            input=task.model_dump_json(),
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        return TaskResult.model_validate_json(ended.stdout)

    result = Verification.model_validate(verify(name).result)
    assert (result.clean, result.verified, result.records) == (True, {"out": (0, 0)}, 10)
    missing = verify(f"{name}-never").failure
    assert missing is not None
    assert missing.error == "causal-log-missing"


def test_more_and_fewer_records_than_the_markers_say(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(2, "out")
    feed(kafka, source, 0)
    run_job(copying(source, out), name)
    producer = Producer(client_config(kafka))
    producer.produce(out, b"3", b"k3", partition=1)  # as Spark's own sink does after a crash
    assert producer.flush(30) == 0
    result = audit_output(kafka, name, seconds=1)
    assert not result.clean
    assert (result.verified, result.distance) == ({}, 1)
    assert "1 record more than" in result.reason


@pytest.mark.turn
def test_a_record_that_is_repeated_while_the_job_is_observed(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """Epochs before and after it fit each other, and the beginning does not fit them."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    job = copying(source, out)
    feed(kafka, source, 0)
    run_job(job, name)
    assert audit_output(kafka, name, seconds=1).clean
    producer = Producer(client_config(kafka))
    producer.produce(out, b"3", b"k3")
    assert producer.flush(30) == 0
    for epoch in (1, 2):
        feed(kafka, source, 10 * epoch)
        run_job(job, name)
    result = audit_output(kafka, name, seconds=1)
    assert not result.clean
    assert result.distance == 1


def test_a_record_with_other_content_is_found(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out, changed = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "changed")
    feed(kafka, source, 0)
    run_job(copying(source, out), name)
    producer = Producer(client_config(kafka))
    for number in range(10):
        producer.produce(changed, b"x" if number == 7 else f"{number}".encode(), f"k{number}".encode())
    assert producer.flush(30) == 0
    result = audit_output(kafka, name, topics=[changed], seconds=1)
    assert (result.clean, result.distance) == (False, 0)
    assert "with other content" in result.reason


def test_an_output_with_records_of_others_is_not_verified(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out, other = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "other")
    feed(kafka, source, 0)
    run_job(copying(source, out), name)
    feed(kafka, source, 10)
    run_job(copying(source, out), f"{name}-other", checkpoint="other")
    for topic in (other, source):
        result = audit_output(kafka, name, topics=[topic], seconds=1)
        assert not result.clean
    assert not audit_output(kafka, name, seconds=1).clean, "another job writes to the topic"


def test_values_that_rows_choose(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    """Rows may choose partition, timestamp and headers, some of them or all."""
    source, out = make_topic(2, "in"), make_topic(3, "out")
    feed(kafka, source, 0)

    def job(ctx: JobContext) -> None:
        records = ctx.source(source)
        header = F.array(F.struct(F.lit("trace").alias("key"), F.col("value").alias("value")))
        ctx.sink(
            records.select(
                F.when(F.col("offset") > 0, F.col("value")).alias("value"),
                F.when(F.col("offset") != 1, F.col("offset") % 3).cast("int").alias("partition"),
                F.when(F.col("offset") != 2, F.col("timestamp")).alias("timestamp"),
                header.alias("headers"),
            ),
            topic=out,
            name="out",
        )

    run_job(job, name)
    result = audit_output(kafka, name, seconds=1)
    assert result.clean, result
    assert result.records == 10


def test_dead_letters_of_the_platform_beside_rows_of_the_job(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """Poison records keep their timestamp; the job's own rows in the same topic have none."""
    source, out, dead = make_topic(2, "in"), make_topic(1, "out"), make_topic(1, "dead")
    producer = Producer(client_config(kafka))
    for value in ('{"n": 1}', "poison", '{"n": 2}', '{"n": 3}'):
        producer.produce(source, value, "k", partition=0)
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        numbers = ctx.decode(ctx.source(source), Json(), schema="n int", on_poison="dead-letter", dead_letters=dead)
        odd = F.col("record.n") % 2 == 1
        ctx.sink(
            clonos.fan_out(numbers, {out: clonos.Output("value", where=~odd), dead: clonos.Output("value", where=odd)}),
            topic=out,
            name="out",
        )

    run_job(job, name)
    for topics in ([out, dead], []):  # the log names the topic of the dead letters, too
        result = audit_output(kafka, name, topics=topics, seconds=1)
        assert result.clean, result
        assert result.records == 4
    assert f"{out}: 3 records less" in audit_output(kafka, name, topics=[out], seconds=1).reason


@pytest.mark.turn
def test_topics_with_and_without_chosen_values_of_queries_that_read_each_other(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, first, second = make_topic(2, "in"), make_topic(1, "first"), make_topic(1, "second")
    feed(kafka, source, 0)

    def job(ctx: JobContext) -> None:
        chosen = F.lit(0).alias("partition")
        ctx.sink(ctx.source(source).select("key", "value", chosen), topic=first, name="first")
        ctx.sink(ctx.source(first).select("value"), topic=second, name="second")

    run_job(job, name)
    run_job(job, name)  # the second query may have ended before the first one published
    assert "--topic" in audit_output(kafka, name, seconds=1).reason
    result = audit_output(kafka, name, topics=[first, second], seconds=1)
    assert result.clean, result
    assert result.verified.keys() == {"first", "second"}


@pytest.mark.turn
def test_epochs_after_a_truncation_are_verified_while_the_job_runs(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    job, numbers = copying(source, out), itertools.count(0, 10)

    def run_epoch() -> None:
        feed(kafka, source, next(numbers))
        run_job(job, name)

    for _ in range(4):
        run_epoch()
    own = claim(kafka, name)
    assert truncate(own, retained=1)
    own.control.dispose()
    admin = AdminClient(client_config(kafka))
    admin.delete_records([TopicPartition(out, 0, 5)])[TopicPartition(out, 0, 5)].result(30)
    result = audit_output(kafka, name, seconds=1)
    assert result.clean, result
    assert (result.verified, result.records) == ({"out": (3, 3)}, 10), "at rest, what the kept markers cover"

    def verified() -> bool:
        with ThreadPoolExecutor(1) as pool:
            auditing = pool.submit(audit_output, kafka, name, seconds=10)
            while not auditing.done():
                run_epoch()
            return auditing.result().clean

    eventually(verified, "two moments of the output fit the markers", timeout_s=300)


@pytest.mark.turn
def test_lanes_may_be_truncated_although_control_is_not(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    """The plans of another query may retain control from its first record on."""
    source, out = make_topic(2, "in"), make_topic(1, "out")
    for start in range(0, 30, 10):
        feed(kafka, source, start)
        run_job(copying(source, out), name)
    own = claim(kafka, name)
    own.control.dispose()
    cut = [TopicPartition(own.topic, partition, own.claimed[partition]) for partition in own.state.lanes.values()]
    admin = AdminClient(client_config(kafka))
    for future in admin.delete_records(cut).values():
        future.result(30)
    result = audit_output(kafka, name, seconds=1)
    assert not result.incomplete
    assert (result.clean, result.verified) == (True, {"out": (2, 2)})
    producer = Producer(client_config(kafka))
    producer.produce(out, b"29", b"k29")  # a second time
    assert producer.flush(30) == 0
    result = audit_output(kafka, name, seconds=1)
    assert (result.clean, result.verified) == (False, {})
