"""Observation of real jobs: their logs, events and lag, and replays of recorded epochs as in a unit test."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import clonos
from clonos.cli.app import app
from clonos.driver.lag import LagMeter
from clonos.driver.watches import OpenTransactions, TaskProgress
from clonos.errors import CausalLogMissing
from clonos.jobs.context import JobContext
from clonos.jobs.definition import Job
from clonos.jobs.spec import JobSpec, Metadata
from clonos.kafka import client_config, java_options
from clonos.log.claiming import claim
from clonos.log.control import lane_id
from clonos.log.history import History
from clonos.log.records import Determinant, Determinants, encode
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.telemetry.driver_events import DriverEvent, Finished, Lag, Restart
from clonos.testing import abort, replay, run_through, script
from clonos.testing.harness import eventually, read_committed
from clonos_sinks.kafka.clients import JvmProducer
from support.collecting import collecting
from support.event_fields import into

pytestmark = pytest.mark.full

MakeTopic = Callable[..., str]


@clonos.service
def draw_lot(letter: str) -> dict[str, Any]:
    logging.getLogger("lots").info("asked for %s", letter)
    return {"letter": letter, "lot": secrets.token_hex(6)}


@clonos.udf("struct<lot:string,uuid:string,draw:double,unkeyed:double,clock:timestamp,now:timestamp,epoch:long>")
def judged(topic: str, partition: int, offset: int, word: str) -> dict[str, Any]:
    key = (topic, partition, offset)
    return {
        "lot": draw_lot(word[0])["lot"],
        "uuid": str(clonos.uuid4(key)),
        "draw": clonos.random(key),
        "unkeyed": clonos.random(),
        "clock": clonos.clock(word),
        "now": clonos.now(),
        "epoch": clonos.epoch(),
    }


@clonos.udf("string")
def stamped(word: str) -> str:
    return f"{word} {clonos.clock('once').isoformat()}"


def judging(source: str, out: str) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        words = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        verdict = judged("topic", "partition", "offset", "word")
        value = F.to_json(F.struct("word", "topic", "partition", "offset", verdict.alias("verdict")))
        ctx.sink(words.select(value.alias("value")), topic=out, name="judged")

    return job


def feed(kafka: KafkaSettings, topic: str, partitions: int, count: int) -> None:
    producer = Producer(client_config(kafka))
    for number in range(count):
        producer.produce(topic, f"{chr(97 + number % 5)}{number}", partition=number % partitions)
    assert producer.flush(30) == 0


def published(kafka: KafkaSettings, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"{}") for message in read_committed(kafka, topic)]


@pytest.fixture
def command(kafka: KafkaSettings) -> Callable[..., str]:
    """The output of a `clonos` command."""

    def invoke(*arguments: str) -> str:
        environment = {"CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        result = CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def as_shown(verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict as Spark's to_json formats it."""

    def shown(value: Any) -> Any:
        return (
            value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
            if isinstance(value, dt.datetime)
            else value
        )

    return {name: shown(value) for name, value in verdict.items()}


@pytest.mark.ci
def test_a_recorded_epoch_is_replayed_in_a_unit_test(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, command: Callable[..., str], tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    feed(kafka, source, 3, 60)
    run_job(judging(source, out), name)
    exported = tmp_path / "epoch0.json"
    exported.write_text(command("causal-log", "cat", name, "--epoch", "0", "-o", "json"))
    plan = next(json.loads(line) for line in exported.read_text().splitlines() if '"kind":"plan"' in line)
    records = published(kafka, out)
    assert len(records) == 60
    for task, held in enumerate(plan["scans"][0]):
        rows = sorted(
            (row for row in records if row["partition"] == held["partition"]), key=lambda row: int(row["offset"])
        )
        assert len(rows) == held["until"] - held["start"]
        with replay(exported, operator="judged", task=task) as scope:
            for index, row in enumerate(rows):
                with scope.row(index):
                    again = judged.function(row["topic"], row["partition"], row["offset"], row["word"])
                assert as_shown(again) == row["verdict"]


def test_scripts_answer_in_workers_too(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, spark: SparkSession
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 20)
    answers = {letter: {"letter": letter, "lot": f"scripted {letter}"} for letter in "abcde"}
    with script(draw_lot, answers) as scripted:
        run_job(judging(source, out), name)
    assert {row["verdict"]["lot"] for row in published(kafka, out)} == {f"scripted {letter}" for letter in "abcde"}
    assert sorted(scripted.calls) == sorted(2 * [(letter,) for letter in "abcde"]), (
        "one call per letter in each of two tasks"
    )
    assert spark.sparkContext.getLocalProperty("clonos.standins") is None


def test_each_query_has_its_own_counts(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, lots, stamps = make_topic(2, "in"), make_topic(1, "lots"), make_topic(1, "stamps")
    feed(kafka, source, 2, 20)

    def job(ctx: JobContext) -> None:
        judging(source, lots)(ctx)
        words = ctx.source(source).select(stamped(F.col("value").cast("string")).alias("value"))
        ctx.sink(words, topic=stamps, name="stamped")

    run_job(job, name)
    recorded = {event["query"]: event["recorded_determinants"] for event in run_job.events_of("epoch")}
    # Five letters and ten words in each of two tasks; one reading of the clock in each.
    assert recorded == {"judged": 30, "stamped": 2}
    assert {event["query"]: event["records_in"] for event in run_job.events_of("epoch")} == {
        "judged": 20,
        "stamped": 20,
    }


def test_an_abort_in_the_driver_is_recovered_from(
    kafka: KafkaSettings, spark: SparkSession, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 20)
    job = Job(judging(source, out), JobSpec(metadata=Metadata(name=name)), "1")
    with abort("epoch-committed", epoch=0, query="judged") as aborted:
        events = run_through(job, spark=spark, kafka=kafka, checkpoint=tmp_path)
    assert aborted.reached
    (restart,) = [event for event in events if isinstance(event, Restart)]
    assert (restart.error, restart.attempt) == ("epoch-failed", 1)
    assert "aborted at epoch-committed" in restart.what
    assert isinstance(events[-1], Finished)
    assert len(published(kafka, out)) == 20


def test_void_and_foreign_records_are_shown_as_such(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, command: Callable[..., str]
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 5)
    run_job(judging(source, out), name)
    admin = AdminClient(client_config(kafka))  # stays open: closing a client cancels its requests

    def known() -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups().result(60).valid}

    # The consumer group with the job's progress may appear after the job has finished.
    eventually(lambda: f"clonos.{name}.judged" in known(), "the job's progress is reported")
    groups = known()
    before = claim(kafka, name)
    older = before.owner
    before.control.dispose()
    newer = claim(kafka, name)
    newer.control.dispose()
    late = Determinants(older, "judged", 1, "judged", 0, (Determinant(b"k" * 16, b"\xc0", service="late"),))
    producer = Producer(client_config(kafka))
    producer.produce(newer.topic, encode(late), partition=1)
    producer.produce(newer.topic, b"hello", partition=0)
    assert producer.flush(15) == 0

    text = command("causal-log", "cat", name)
    lines = text.splitlines()
    assert sum("  void: " in line for line in lines) == 1
    void = next(line for line in lines if "  void: " in line)
    assert f"{older}" in void
    assert f"void: {newer.owner} owned the partition since" in void
    assert any("foreign" in line and "Starts 68656c6c6f." in line for line in lines)
    assert [line.split()[4] for line in lines if "@" in line][:3] == ["claim", "assign-lanes", "claim"]

    entries = [json.loads(line) for line in command("causal-log", "cat", name, "-o", "json").splitlines()]
    assert [entry["kind"] for entry in entries if entry["void"]] == ["determinants"]
    assert len([entry for entry in entries if entry["kind"] == "marker"]) == 1
    tail = command("causal-log", "cat", name, "--partition", "1", "--kind", "determinants", "--tail", "1", "-o", "json")
    assert [json.loads(line)["determinants"][0]["service"] for line in tail.splitlines()] == ["late"]

    overview = next(
        row for row in map(json.loads, command("causal-log", "ls", "-o", "json").splitlines()) if row["job"] == name
    )
    assert (overview["lineage"], overview["generation"]) == (newer.owner.lineage, newer.owner.generation)
    assert overview["queries"] == {"judged": {"lanes": 1, "planned": 0, "committed": 0, "in_doubt": 0}}
    assert overview["foreign"] == 1
    assert 0 < overview["determinants_bytes"] < overview["bytes"]
    assert name in command("causal-log", "ls")

    # The broker periodically removes empty groups, so groups of earlier tests may be missing.
    assert known() <= groups, "the commands created no group"


def test_history_follows_new_records(kafka: KafkaSettings, name: str) -> None:
    owned = claim(kafka, name)
    owned.control.dispose()
    history = History(kafka, name)
    assert [entry.kind for entry in history.read(lambda _: True)] == ["claim"]
    assert history.read(lambda _: True) == [], "each record is returned once"
    again = claim(kafka, name)
    again.ensure_lanes("out", 2)  # the log grows
    again.control.dispose()

    class UntilAll:
        """A stop event that is set after the last record or the deadline."""

        def __init__(self) -> None:
            self.deadline = time.monotonic() + 30

        def wait(self, seconds: float) -> bool:
            return len(entries) >= 4 or time.monotonic() > self.deadline

    entries: list[tuple[int, str]] = []
    for entered in history.follow(lambda _: True, UntilAll()):  # type: ignore[arg-type]
        entries.append((entered.partition, entered.kind))
    history.close()
    assert sorted(entries) == [(0, "assign-lanes"), (0, "claim"), (1, "claim"), (2, "claim")]


def test_the_error_of_an_unknown_job_names_the_known_jobs(kafka: KafkaSettings, name: str) -> None:
    claim(kafka, name).control.dispose()
    with pytest.raises(CausalLogMissing, match="'nosuch'") as raised:
        History(kafka, "nosuch")
    assert name in raised.value.hint


@pytest.mark.ci
def test_lag_counts_the_unread_records(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    first, second = make_topic(2, "one"), make_topic(1, "two")
    feed(kafka, first, 2, 10)
    reports: list[DriverEvent] = []
    meter = LagMeter(OffsetClient(kafka), reports.append)
    meter.note("q", {first: {0: 2, 1: 5}, second: {0: 0}})
    meter.poll_once()
    meter.poll_once()
    assert reports == [Lag("q", {first: 3, second: 0}, {first: {0: 3}})], "lag is reported when it changes"
    meter.note("q", {first: {0: 5, 1: 5}, second: {0: 0}})
    meter.poll_once()
    assert reports[1:] == [Lag("q", {first: 0, second: 0})]


@pytest.mark.ci
def test_partitions_of_deleted_topics_have_no_offsets(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    """If no partition of a request exists, librdkafka reports only that it has no leader."""
    kept, deleted = make_topic(1, "kept"), make_topic(1, "deleted")
    feed(kafka, kept, 1, 3)
    offsets = OffsetClient(kafka)
    partitions = [*offsets.partitions(kept), *offsets.partitions(deleted)]
    assert offsets.ends(partitions) == {(kept, 0): 3, (deleted, 0): 0}
    admin = AdminClient(client_config(kafka))
    admin.delete_topics([deleted])[deleted].result(60)
    eventually(lambda: not offsets.partitions(deleted), "the topic is gone")
    assert offsets.ends(partitions) == {(kept, 0): 3}
    assert OffsetClient(kafka).bounds([TopicPartition(deleted, 0)]) == ({}, {})
    # A topic that was created again may have fewer partitions.
    assert OffsetClient(kafka).bounds([TopicPartition(kept, 0), TopicPartition(kept, 1)]) == (
        {(kept, 0): 0},
        {(kept, 0): 3},
    )
    assert OffsetClient(kafka).bounds([TopicPartition(kept, 1)]) == ({}, {})


@pytest.mark.parametrize("role", ["read", "written"])
def test_a_transaction_that_stays_open_is_reported(kafka: KafkaSettings, make_topic: MakeTopic, role: str) -> None:
    """In a source topic the job itself waits for it, although its lag is 0."""
    topic = make_topic(2, "out")
    reports: list[dict[str, float]] = []
    transactions = OpenTransactions(OffsetClient(kafka), lambda event: reports.append(event.topics), old_s=0.3)
    transactions.poll_once()  # no topic is watched yet
    transactions.watch(**{"read": [], "written": [], role: [topic]})
    producer = Producer(client_config(kafka, transactional_id=f"{topic}-open"))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=1)
    producer.flush(60)
    began = time.time()

    def polled() -> list[dict[str, float]]:
        transactions.poll_once()
        return reports

    eventually(polled, "the open transaction is reported")
    (since,) = reports[0].values()
    assert list(reports[0]) == [topic]
    assert -5 < since - began < 120
    assert len(polled()) == 2, "each poll reports it again: a claim discards earlier reports"
    assert reports[1][topic] == pytest.approx(since, abs=1)
    producer.commit_transaction(60)
    eventually(lambda: {} in polled(), "the end of the transaction is reported")
    count = len(reports)
    assert len(polled()) == count, "the end is reported once"


def test_retention_close_to_unread_records_is_reported(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    topic = make_topic(1, "in")
    feed(kafka, topic, 1, 1000)
    reports: list[dict[str, Any]] = []
    meter = LagMeter(OffsetClient(kafka), into(reports))
    admin = AdminClient(client_config(kafka))

    def polled() -> list[dict[str, Any]]:
        reports.clear()
        for _ in range(10):  # the meter reads retention less often than lag
            meter.poll_once()
        return [report["topics"] for report in reports if report["event"] == "retention"]

    meter.note("q", {topic: {0: 150}})
    assert polled() == [], "no record was deleted yet"
    for future in admin.delete_records([TopicPartition(topic, 0, 100)]).values():
        future.result(60)
    assert polled() == [{topic: 94}]
    assert polled() == [], "retention is reported when it changes"
    meter.note("q", {topic: {0: 900}})
    assert polled() == [{}], "retention is no longer close"


@pytest.mark.ci
def test_input_that_waits_without_progress_is_a_stall(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    source = make_topic(1, "one")
    feed(kafka, source, 1, 10)
    stalls: list[tuple[str, float]] = []
    meter = LagMeter(
        OffsetClient(kafka), lambda *_, **__: None, stalled=lambda *how: stalls.append(how), stalled_s=0.5, every_s=0.05
    )
    meter.note("idle", {source: {0: 10}})
    meter.note("slow", {source: {0: 3}})
    meter.start()
    eventually(lambda: len(stalls) > 3, "the stall is reported")
    meter.note("slow", {source: {0: 4}})
    meter.stop()
    assert {query for query, _ in stalls} == {"slow"}
    assert 0.5 < stalls[0][1] < 120


def test_a_long_epoch_that_makes_progress_is_not_a_stall(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    source = make_topic(1, "one")
    feed(kafka, source, 1, 10)
    stalls: list[str] = []
    asked: list[str] = []

    def moved(query: str) -> bool:
        asked.append(query)
        return query == "long"

    meter = LagMeter(
        OffsetClient(kafka),
        lambda *_, **__: None,
        stalled=lambda query, _: stalls.append(query),
        stalled_s=0.5,
        every_s=0.05,
    )
    for query in ("long", "stuck"):
        meter.note(query, {source: {0: 3}})
    meter.start(lambda: ["long", "stuck"], moved)
    eventually(lambda: stalls.count("stuck") > 3 and asked.count("long") > 5, "the stuck query is reported")
    meter.stop()
    assert set(stalls) == {"stuck"}


def test_tasks_that_end_are_progress(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def wait(task: int) -> int:
        gate = Path(folder) / f"gate-{task}"
        (Path(folder) / f"began-{task}").touch()
        while not gate.exists():
            time.sleep(0.01)
        return task

    def run() -> None:
        spark.sparkContext.setJobGroup("the-run", "an epoch")
        spark.sparkContext.parallelize(range(2), 2).map(wait).collect()

    progress = TaskProgress(spark, "job", {"out": "the-run"}.get)
    thread = InheritableThread(target=run)
    thread.start()
    try:
        eventually(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-0").exists(), "the tasks run")
        progress.moved("out")
        assert not progress.moved("out")
        assert not progress.moved("another")
        (tmp_path / "gate-0").touch()
        eventually(lambda: progress.moved("out"), "the end of a task is progress")
        assert not progress.moved("out")
    finally:
        for task in range(2):
            (tmp_path / f"gate-{task}").touch()
        thread.join(60)


def test_only_the_records_of_its_own_lane_are_progress(
    spark: SparkSession, kafka: KafkaSettings, make_topic: MakeTopic
) -> None:
    """Otherwise a query that hangs in its commit moves while another query publishes."""
    topic, runs = make_topic(1), {"out": "a-run", "other": "another-run"}
    progress = TaskProgress(spark, "lanes-of-queries", runs.get)
    producer = JvmProducer(spark, {**java_options(kafka), "client.id": lane_id("lanes-of-queries", "out", 0)})
    try:
        for query in runs:
            progress.moved(query)
        producer.mark(topic, 0, b"a record")
        producer.flush()
        assert not progress.moved("other")
        assert progress.moved("out")
    finally:
        producer.close()


JOB = """
import logging
from pyspark.sql import functions as F
import clonos

@clonos.udf("string")
def loud(word):
    logging.getLogger("loud").info("row", extra={"word": word})
    return word.upper()

@clonos.job(name="overwritten", trigger={"available_now": True})
def job(ctx):
    print("printed by the job")
    words = ctx.source(ctx.params["input"]).select(loud(F.col("value").cast("string")).alias("value"))
    ctx.sink(words, topic=ctx.params["output"], name="loud")
"""


def test_a_run_as_json(kafka: KafkaSettings, name: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Standard output holds only events; each log line has the fields of its job, epoch and task."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 3)
    (tmp_path / "job.py").write_text(JOB)
    body = {
        "main": "job.py",
        "master": "local[2]",
        "driver": {"memory": "512m"},
        "params": {"input": source, "output": out},
    }
    specification = tmp_path / "job.yaml"
    specification.write_text(
        yaml.safe_dump({"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": name}, "spec": body})
    )
    with collecting() as collector:
        ran = subprocess.run(
            [sys.executable, "-m", "clonos", "run", str(specification), "-o", "json"],
            env={
                # A JVM reports JAVA_TOOL_OPTIONS on its standard error.
                **{variable: value for variable, value in os.environ.items() if variable != "JAVA_TOOL_OPTIONS"},
                "CLONOS_HOME": str(tmp_path),
                "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "CLONOS_LOG_FORMAT": "json",
                "CLONOS_TRACES__ENDPOINT": f"{collector.url}/v1/traces",
                "CLONOS_LINEAGE__URL": collector.url,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {event["job"] for event in events} == {name}
    assert [event["event"] for event in events if event["event"] not in ("lag", "state", "kafka", "ready")] == [
        "session",
        "claimed",
        "epoch",
        "finished",
        "summary",
    ]
    session = next(event for event in events if event["event"] == "session")
    assert (session["master"], session["ui"], session["cluster"]) == ("local[2]", "", "")
    assert session["application_id"].startswith("local-")
    assert (events[-1]["state"], events[-1]["epochs"], events[-1]["records_in"], events[-1]["records_out"]) == (
        "FINISHED",
        1,
        3,
        3,
    )
    lines = ran.stderr.splitlines()
    assert "printed by the job" in lines
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert set(lines) == {"printed by the job", *(line for line in lines if line.startswith("{"))}, ran.stderr
    rows = [line for line in logged if line["event"] == "row"]
    assert len(rows) == 3
    about = {"job": name, "generation": 1, "query": "loud", "epoch": 0, "task": 0, "logger": "loud", "level": "info"}
    assert all(row.items() >= about.items() for row in rows)
    assert all(line["job"] == name for line in logged)
    traced = [
        ExportTraceServiceRequest.FromString(request.body)
        for request in collector.posted
        if request.path == "/v1/traces"
    ]
    spans = [span.name for request in traced for span in request.resource_spans[0].scope_spans[0].spans]
    assert sorted(spans) == ["epoch", "epoch.commit", "epoch.plan", "epoch.publish"]
    flows = [json.loads(request.body) for request in collector.posted if request.path == "/api/v1/lineage"]
    assert [flow["eventType"] for flow in flows] == ["START", "COMPLETE"]
    for flow in flows:
        assert ([data["name"] for data in flow["inputs"]], [data["name"] for data in flow["outputs"]]) == (
            [source],
            [out],
        )
