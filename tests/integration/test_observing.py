"""Looking at real jobs: their logs, their events, and replays of recorded epochs in a unit test's manner."""

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
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import clonos
from clonos.cli.app import app
from clonos.errors import JobUnknown
from clonos.job import Job, JobContext
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.history import History
from clonos.log.records import Determinants, Entry, encode
from clonos.runner.lag import LagMeter
from clonos.runner.open_transactions import OpenTransactions
from clonos.settings import KafkaSettings
from clonos.spec import JobSpec, Metadata
from clonos.testing import abort, replay, run_through, script
from collecting import collecting
from observe import eventually, read_committed

pytestmark = pytest.mark.broad

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
    """A verdict as Spark's to_json shows it."""

    def shown(value: Any) -> Any:
        return (
            value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
            if isinstance(value, dt.datetime)
            else value
        )

    return {name: shown(value) for name, value in verdict.items()}


def test_a_recorded_epoch_is_replayed_in_a_unit_test(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, command: Callable[..., str], tmp_path: Path
) -> None:
    source, out = make_topic(3, "in"), make_topic(1, "out")
    feed(kafka, source, 3, 60)
    run_job(judging(source, out), name)
    exported = tmp_path / "epoch0.json"
    exported.write_text(command("log", "cat", name, "--epoch", "0", "-o", "json"))
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
    assert sorted(scripted.calls) == sorted(2 * [(letter,) for letter in "abcde"]), "once in each of two tasks"
    assert spark.sparkContext.getLocalProperty("clonos.standins") is None


def test_counts_are_those_of_the_query(kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic) -> None:
    source, lots, stamps = make_topic(2, "in"), make_topic(1, "lots"), make_topic(1, "stamps")
    feed(kafka, source, 2, 20)

    def job(ctx: JobContext) -> None:
        judging(source, lots)(ctx)
        words = ctx.source(source).select(stamped(F.col("value").cast("string")).alias("value"))
        ctx.sink(words, topic=stamps, name="stamped")

    run_job(job, name)
    recorded = {event["query"]: event["recorded"] for event in run_job.told("epoch")}
    # Five letters and ten words in each of two tasks; one reading of the clock in each.
    assert recorded == {"judged": 30, "stamped": 2}
    assert {event["query"]: event["read"] for event in run_job.told("epoch")} == {"judged": 20, "stamped": 20}


def test_an_abort_in_the_driver_is_recovered_from(
    kafka: KafkaSettings, spark: SparkSession, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 20)
    job = Job(judging(source, out), JobSpec(metadata=Metadata(name=name)), "1")
    with abort("end-committed", epoch=0, query="judged") as aborted:
        events = run_through(job, spark=spark, kafka=kafka, checkpoint=tmp_path)
    assert aborted.reached
    restarts = [event for event in events if event["event"] == "restart"]
    assert [(one["error"], one["attempt"]) for one in restarts] == [("epoch-failed", 1)]
    assert "aborted at end-committed" in restarts[0]["what"]
    assert events[-1]["event"] == "finished"
    assert len(published(kafka, out)) == 20


def test_void_and_foreign_records_are_shown_as_such(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, command: Callable[..., str]
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 5)
    run_job(judging(source, out), name)
    admin = AdminClient(client_config(kafka))  # kept: one that goes away takes its requests with it

    def known() -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups().result(15).valid}

    # The job's own, by which its progress is told, may come after its end.
    eventually(lambda: f"clonos.{name}.judged" in known(), "its progress is told")
    groups = known()
    before = claim(kafka, name)
    older = before.owner
    before.control.dispose()
    newer = claim(kafka, name)
    newer.control.dispose()
    late = Determinants(older, "judged", 1, "judged", 0, (Entry(b"k" * 16, b"\xc0", service="late"),))
    producer = Producer(client_config(kafka))
    producer.produce(newer.topic, encode(late), partition=1)
    producer.produce(newer.topic, b"hello", partition=0)
    assert producer.flush(15) == 0

    text = command("log", "cat", name)
    lines = text.splitlines()
    assert sum("  void: " in line for line in lines) == 1
    void = next(line for line in lines if "  void: " in line)
    assert f"{older}" in void
    assert f"void: {newer.owner} owned the partition since" in void
    assert any("foreign" in line and "Starts 68656c6c6f." in line for line in lines)
    assert [line.split()[4] for line in lines if "@" in line][:3] == ["claim", "allot", "claim"]

    told = [json.loads(line) for line in command("log", "cat", name, "-o", "json").splitlines()]
    assert [one["kind"] for one in told if one["void"]] == ["determinants"]
    assert len([one for one in told if one["kind"] == "marker"]) == 1
    tail = command("log", "cat", name, "--partition", "1", "--kind", "determinants", "--tail", "1", "-o", "json")
    assert [json.loads(line)["entries"][0]["service"] for line in tail.splitlines()] == ["late"]

    overview = next(
        one for one in map(json.loads, command("log", "ls", "-o", "json").splitlines()) if one["job"] == name
    )
    assert (overview["lineage"], overview["generation"]) == (newer.owner.lineage, newer.owner.generation)
    assert overview["queries"] == {"judged": {"lanes": 1, "planned": 0, "ended": 0, "in_doubt": 0}}
    assert overview["foreign"] == 1
    assert 0 < overview["determinants_bytes"] < overview["bytes"]
    assert name in command("log", "ls")

    # Those of earlier tests may have gone meanwhile: the broker looks for empty ones now and then.
    assert known() <= groups, "no group was made"


def test_what_comes_is_followed(kafka: KafkaSettings, name: str) -> None:
    owned = claim(kafka, name)
    owned.control.dispose()
    history = History(kafka, name)
    assert [one.kind for one in history.read(lambda _: True)] == ["claim"]
    assert history.read(lambda _: True) == [], "told already"
    again = claim(kafka, name)
    again.ensure_lanes("out", 2)  # the log grows
    again.control.dispose()

    class UntilAll:
        """A stop that comes with the last record, or in time."""

        def __init__(self) -> None:
            self.deadline = time.monotonic() + 30

        def wait(self, seconds: float) -> bool:
            return len(found) >= 4 or time.monotonic() > self.deadline

    found: list[tuple[int, str]] = []
    for entered in history.follow(lambda _: True, UntilAll()):  # type: ignore[arg-type]
        found.append((entered.partition, entered.kind))
    history.close()
    assert sorted(found) == [(0, "allot"), (0, "claim"), (1, "claim"), (2, "claim")]


def test_an_unknown_job_is_told_with_those_there_are(kafka: KafkaSettings, name: str) -> None:
    claim(kafka, name).control.dispose()
    with pytest.raises(JobUnknown, match="'nosuch'") as raised:
        History(kafka, "nosuch")
    assert name in raised.value.hint


def test_lag_is_what_is_not_read_yet(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    one, two = make_topic(2, "one"), make_topic(1, "two")
    feed(kafka, one, 2, 10)
    told: list[dict[str, Any]] = []
    meter = LagMeter(kafka, lambda event, **fields: told.append({"event": event, **fields}))
    admin = AdminClient(client_config(kafka))
    meter.note("q", {one: {0: 2, 1: 5}, two: {0: 0}})
    meter.look(admin)
    meter.look(admin)
    behind = {"topics": {one: 3, two: 0}, "partitions": {one: {0: 3}}}
    assert told == [{"event": "lag", "query": "q", **behind}], "told when it changes"
    meter.note("q", {one: {0: 5, 1: 5}, two: {0: 0}})
    meter.look(admin)
    nothing = {"topics": {one: 0, two: 0}, "partitions": {}}
    assert told[1:] == [{"event": "lag", "query": "q", **nothing}]


def test_a_transaction_that_stays_open_is_told(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    topic = make_topic(2, "out")
    admin = AdminClient(client_config(kafka))
    told: list[dict[str, float]] = []
    open_ones = OpenTransactions(kafka, lambda _event, topics: told.append(topics), old_s=0.3)
    open_ones.look(admin)  # nothing is known of yet
    open_ones.watch([topic])
    producer = Producer(client_config(kafka, transactional_id=f"{topic}-open"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=1)
    producer.flush(10)
    began = time.time()

    def looked() -> list[dict[str, float]]:
        open_ones.look(admin)
        return told

    eventually(looked, "it is open for long enough")
    (since,) = told[0].values()
    assert list(told[0]) == [topic]
    assert abs(since - began) < 5
    assert len(looked()) == 2, "told again: a claim forgets what was told before it"
    assert told[1][topic] == pytest.approx(since, abs=1)
    producer.commit_transaction(10)
    eventually(lambda: {} in looked(), "it is over")
    count = len(told)
    assert len(looked()) == count, "told once"


def test_retention_that_comes_close_is_told(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    topic = make_topic(1, "in")
    feed(kafka, topic, 1, 1000)
    told: list[dict[str, Any]] = []
    meter = LagMeter(kafka, lambda event, **fields: told.append({"event": event, **fields}))
    admin = AdminClient(client_config(kafka))

    def looked() -> list[dict[str, Any]]:
        told.clear()
        for _ in range(10):  # it is asked for less often than for the lag
            meter.look(admin)
        return [one["topics"] for one in told if one["event"] == "retention"]

    meter.note("q", {topic: {0: 150}})
    assert looked() == [], "nothing was deleted yet"
    for future in admin.delete_records([TopicPartition(topic, 0, 100)]).values():
        future.result(10)
    assert looked() == [{topic: 94}]
    assert looked() == [], "told when it changes"
    meter.note("q", {topic: {0: 900}})
    assert looked() == [{}], "it is over"


def test_input_that_waits_without_progress_is_a_stall(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    one = make_topic(1, "one")
    feed(kafka, one, 1, 10)
    stalls: list[tuple[str, float]] = []
    meter = LagMeter(kafka, lambda *_, **__: None, stalled=lambda *how: stalls.append(how), stalled_s=0.5, every_s=0.05)
    meter.note("idle", {one: {0: 10}})
    meter.note("slow", {one: {0: 3}})
    meter.start()
    eventually(lambda: len(stalls) > 3, "the stall is told")
    meter.note("slow", {one: {0: 4}})
    meter.stop()
    assert {query for query, _ in stalls} == {"slow"}
    assert 0.5 < stalls[0][1] < 5


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
    """Standard output holds events and nothing else; every log line says what it is about."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 3)
    (tmp_path / "job.py").write_text(JOB)
    body = {"main": "job.py", "master": "local[2]", "driverMemoryMb": 512, "params": {"input": source, "output": out}}
    specification = tmp_path / "job.yaml"
    specification.write_text(
        yaml.safe_dump({"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": name}, "spec": body})
    )
    with collecting() as told:
        ran = subprocess.run(
            [sys.executable, "-m", "clonos", "run", str(specification), "-o", "json"],
            env={
                **os.environ,
                "CLONOS_HOME": str(tmp_path),
                "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "CLONOS_LOG_FORMAT": "json",
                "CLONOS_TRACES__ENDPOINT": f"{told.url}/v1/traces",
                "CLONOS_LINEAGE__URL": told.url,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {event["job"] for event in events} == {name}
    assert [event["event"] for event in events if event["event"] not in ("lag", "state")] == [
        "claimed",
        "epoch",
        "finished",
        "summary",
    ]
    assert (events[-1]["state"], events[-1]["epochs"], events[-1]["read"], events[-1]["records"]) == (
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
    traced = [ExportTraceServiceRequest.FromString(one.body) for one in told.posted if one.path == "/v1/traces"]
    spans = [span.name for request in traced for span in request.resource_spans[0].scope_spans[0].spans]
    assert sorted(spans) == ["epoch", "epoch.commit", "epoch.plan", "epoch.publish"]
    flows = [json.loads(one.body) for one in told.posted if one.path == "/api/v1/lineage"]
    assert [one["eventType"] for one in flows] == ["START", "COMPLETE"]
    for one in flows:
        assert ([flow["name"] for flow in one["inputs"]], [flow["name"] for flow in one["outputs"]]) == (
            [source],
            [out],
        )
