"""Live queries publish each record in a step, exactly once; a start continues behind the greatest marker."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.audit.output_audit import audit_output
from clonos.driver import live_epochs
from clonos.driver.live_epochs import LiveRunner
from clonos.driver.states import DriverState
from clonos.errors import SpecError, Superseded
from clonos.faults import STEP_POINTS
from clonos.formats import Json
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import known_control
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed
from support.copy_job import Copy
from support.driver_thread import DriverThread

MakeTopic = Callable[..., str]


def stop(thread: DriverThread) -> None:
    thread.driver.stop()
    thread.join(60)
    assert thread.failure is None
    assert thread.driver.state is DriverState.STOPPED


def test_records_are_published_while_their_epoch_lasts(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], name: str
) -> None:
    copy.send_numbers(30)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the first records are published")
    for _ in range(5):
        copy.send("x")  # it is read before the next record of its partition
        copy.send_numbers(7)
        thread.await_(copy.is_published, "later records are published in the same epoch")
    state = known_control(kafka, name)
    assert state is not None
    assert state.committed.get("out", -1) == -1, "the epoch lasts"
    assert copy.faults() == {}
    stop(thread)
    (reported,) = {event["epoch"] for event in thread.events if event["event"] == "epoch"}
    assert reported == 0
    epochs = [event for event in thread.events if event["event"] == "epoch"]
    assert sum(event["records_in"] for event in epochs) == len(copy.sent)
    assert sum(event["records_out"] for event in epochs) == len(copy.published())
    assert sum(sum(event["latencies"].values()) for event in epochs) == len(copy.sent)

    copy.send_numbers(10)
    again = live(copy.function)
    again.await_(copy.is_published, "the next start continues")
    stop(again)
    assert copy.faults() == {}
    state = known_control(kafka, name)
    assert state is not None
    assert state.committed["out"] == 1


@pytest.mark.turn
def test_partitions_that_are_added_are_read_before_the_time_of_the_epoch_is_over(
    copy: Copy, live: Callable[..., DriverThread]
) -> None:
    copy.send_numbers(3)
    thread = live(copy.function)
    thread.await_(copy.is_published, "the first records are published")
    copy.add_partitions()
    copy.send_numbers(10)
    thread.await_(copy.is_published, "the records of all partitions are published")
    stop(thread)
    assert copy.faults() == {}
    assert {event["epoch"] for event in thread.events if event["event"] == "epoch"} == {0, 1}


def test_the_commit_interval_is_the_shortest_pause_between_two_steps(
    copy: Copy, live: Callable[..., DriverThread]
) -> None:
    """Records of a backlog share them."""
    interval_s = 0.5
    thread = live(copy.function, commitInterval=f"{interval_s}s")
    copy.send_numbers(1)
    thread.await_(copy.is_published, "the first record is published")
    began = time.monotonic()
    while time.monotonic() < began + 4 * interval_s:
        copy.send_numbers(1)
    thread.await_(copy.is_published, "all is published")
    lasted_s = time.monotonic() - began
    copy.send_numbers(6_000)
    thread.await_(copy.is_published, "a backlog is published")
    stop(thread)
    assert copy.faults() == {}
    steps = sum(event["steps"] for event in thread.events if event["event"] == "epoch")
    # Besides: the first record's, the first one of the loop, the last ones, which a stop does not let wait, and those
    # of the backlog, whose fetches do not wait.
    assert 3 <= steps <= 8 + lasted_s / interval_s


def test_epochs_follow_each_other_and_the_log_is_truncated(
    kafka: KafkaSettings,
    copy: Copy,
    live: Callable[..., DriverThread],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LiveRunner, "epoch_s", 2)
    monkeypatch.setattr(live_epochs, "_STEPS_RETAINED", 0)
    thread = live(copy.function)

    def third_epoch() -> bool:
        copy.send_numbers(2)
        state = known_control(kafka, name)
        return state is not None and state.committed.get("out", -1) >= 1

    thread.await_(third_epoch, "two epochs have ended")
    thread.await_(copy.is_published, "all is published")
    stop(thread)
    assert copy.faults() == {}
    assert sum(event["event"] == "truncated" for event in thread.events) >= 2


@pytest.mark.parametrize("python", [False, pytest.param(True, marks=pytest.mark.turn)])
def test_the_time_of_an_epoch_ends_between_two_records(
    copy: Copy, live: Callable[..., DriverThread], monkeypatch: pytest.MonkeyPatch, python: bool
) -> None:
    """While records wait, the driver ends the epoch: the last one that was read is published in it."""
    monkeypatch.setattr(LiveRunner, "epoch_s", 1)

    @F.udf("string", useArrow=True)
    def same(value: str) -> str:
        return value

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.where(F.expr("reflect('java.lang.Thread', 'sleep', 2L)").isNotNull())
        ctx.sink(rows.withColumn("value", same("value")) if python else rows, topic=copy.out, name="out")

    copy.send_numbers(2_000)
    thread = live(function)
    thread.await_(copy.is_published, "all is published, in more than one epoch")
    stop(thread)
    assert copy.faults() == {}
    assert len({event["epoch"] for event in thread.events if event["event"] == "epoch"}) > 1
    assert not [event for event in thread.events if event["event"] == "restart"]


def test_the_cause_of_a_failure_before_a_function_in_python_is_named(
    copy: Copy, live: Callable[..., DriverThread]
) -> None:
    @F.udf("string", useArrow=True)
    def same(value: str) -> str:
        return value

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select(F.col("value").cast("string").cast("int").cast("string").alias("value"))
        ctx.sink(rows.select(same("value").alias("value")), topic=copy.out, name="out")

    copy.send("no number")
    thread = live(function)
    thread.join(90)
    assert thread.failure is not None
    assert "CAST_INVALID_INPUT" in str(thread.failure)


def test_the_steps_of_a_live_query_are_verified(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], name: str
) -> None:
    for _ in range(2):
        copy.send_numbers(20)
        thread = live(copy.function)
        thread.await_(copy.is_published, "the records are published")
        copy.send_numbers(5)
        thread.await_(copy.is_published, "more steps are published")
        running = audit_output(kafka, name, seconds=1)
        assert running.clean, running
        stop(thread)
    result = audit_output(kafka, name, seconds=1)
    assert result.clean, result
    assert (result.verified, result.records) == ({"out": (0, 1)}, 50)
    producer = Producer(client_config(kafka))
    producer.produce(copy.out, b"r7", b"1")
    assert producer.flush(30) == 0
    assert not audit_output(kafka, name, seconds=1).clean


@pytest.mark.parametrize("chained", [pytest.param(False, marks=pytest.mark.turn), True])
def test_results_of_python_do_not_wait_for_further_input(
    copy: Copy, live: Callable[..., DriverThread], chained: bool
) -> None:
    """With a filter before, between and after the functions: some records make no row."""

    @F.udf("string", useArrow=True)
    def shouted(value: str) -> str:
        return value.upper()

    @F.pandas_udf("string")  # type: ignore[call-overload, untyped-decorator]
    def whispered(values: pd.Series) -> pd.Series:
        return values.str.lower()

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.where(~F.col("value").startswith("x")).withColumn("value", shouted("value"))
        if chained:
            rows = rows.where(F.col("value").startswith("R")).withColumn("value", whispered("value"))
        ctx.sink(rows.select("key", F.lower("value").alias("value")), topic=copy.out, name="out")

    copy.send_numbers(30)
    thread = live(function)
    for _ in range(4):
        thread.await_(copy.is_published, "the records are published while the epoch lasts")
        copy.send("x", "x", "x")
        copy.send_numbers(9)
    thread.await_(copy.is_published, "the last records are published")
    stop(thread)
    assert copy.faults() == {}
    assert sum(event["records_in"] for event in thread.events if event["event"] == "epoch") == len(copy.sent)


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point == "step-marked" else pytest.mark.turn) for point in STEP_POINTS]
)
def test_a_step_that_fails_is_neither_lost_nor_repeated(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path, point: str
) -> None:
    """The driver claims again, ends the epoch at its greatest marker, and continues there."""
    copy.send_numbers(20)
    with faults.injecting(f"{point},lane=1:raise", tmp_path / "faults"):  # the second step
        thread = live(copy.function)
        thread.await_(copy.is_published, "the first records are published")
        copy.send_numbers(20)
        restarted = "a step fails, which the idle task notices"
        thread.await_(lambda: any(event["event"] == "restart" for event in thread.events), restarted)
        copy.send_numbers(20)
        thread.await_(copy.is_published, "the job continues")
    assert copy.faults() == {}
    assert [event["event"] for event in thread.events if event["event"] == "restart"] == ["restart"]
    assert any("ended the live epoch 0" in str(event) for event in thread.events if event["event"] == "reconciled")
    stop(thread)
    assert copy.faults() == {}


def test_a_step_after_two_functions_in_python_covers_all_of_its_records(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    """The second function gets the rows of many records at once. Its marker must not leave out any of them."""

    @F.udf("string", useArrow=True)
    def same(value: str) -> str:
        return value

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.withColumn("value", same("value")).where(F.length("value") > 0)
        ctx.sink(rows.withColumn("value", same(F.trim("value"))), topic=copy.out, name="out")

    copy.send_numbers(60)
    with faults.injecting("step-begun,lane=2:raise", tmp_path / "faults"):
        thread = live(function)
        thread.await_(copy.is_published, "the first records are published")
        copy.send_numbers(30)
        thread.await_(copy.is_published, "more are published")
        copy.send_numbers(30)
        thread.await_(copy.is_published, "the job continues after a step that failed")
    stop(thread)
    assert copy.faults() == {}


def test_an_answer_of_a_service_is_published_with_its_record(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    """A service is called again only for records that no reader saw. Nothing is recorded."""
    calls = tmp_path / "calls"

    @clonos.service(name="ids", timeout=5, retries=1, concurrency=4)
    def new_id(value: str) -> str:
        answer = uuid.uuid4().hex
        with calls.open("a") as file:
            file.write(f"{value} {answer}\n")
        return answer

    @clonos.udf("string")
    def identified(value: str) -> str:
        return f"{value} {new_id(value)} {clonos.uuid4()} {clonos.random()} {clonos.param('city', '-')}"

    @clonos.pandas_udf("string")
    def reluctant(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        """Keeps a batch until it has the next one."""
        kept = None
        for batch in batches:
            if kept is not None:
                yield kept
            kept = batch.map(lambda value: f"{value} {clonos.uuid4()}")
        if kept is not None:
            yield kept

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.where(~F.col("value").startswith("x")).withColumn("value", identified("value"))
        ctx.sink(rows.withColumn("value", reluctant("value")), topic=copy.out, name="out")

    copy.send_numbers(30)
    with faults.injecting("step-marked,lane=2:raise", tmp_path / "faults"):  # the third step
        thread = live(function)
        thread.await_(copy.is_published, "the first records are published")
        for _ in range(3):
            copy.send("x")
            copy.send_numbers(30)
            thread.await_(copy.is_published, "more records are published")
    stop(thread)
    assert copy.faults() == {}
    answers: dict[str, list[str]] = {}
    for line in calls.read_text().splitlines():
        value, answer = line.split()
        answers.setdefault(value, []).append(answer)
    published = [value.split(" ") for _, value in copy.published()]
    assert {value: answer for value, answer, *_ in published} == {value: them[-1] for value, them in answers.items()}
    assert any(len(them) == 2 for them in answers.values()), "the records of the step that failed"
    for drawn in (2, -1):
        assert len({words[drawn] for words in published}) == len(published)
    (restart,) = [event for event in thread.events if event["event"] == "restart"]
    assert "step-marked" in str(restart)
    assert sum(event.get("recorded_determinants", 0) for event in thread.events if event["event"] == "epoch") == 0


@pytest.mark.turn
def test_a_job_waits_for_the_end_of_an_outage_and_a_stop_not_for_all_that_was_read(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    fast, back = tmp_path / "fast", tmp_path / "back"

    @clonos.service(name="echo", timeout=30)
    def echo(value: str) -> str:
        if value == "r12" and not back.exists():
            raise ConnectionRefusedError("nobody there")
        if not fast.exists():
            time.sleep(0.005)
        return value

    @clonos.arrow_udf("string")
    def echoed(values: pa.Array) -> pa.Array:
        return pa.array(echo.map(values.to_pylist()))

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        ctx.sink(rows.withColumn("value", echoed("value")), topic=copy.out, name="out")

    copy.send_numbers(9)
    thread = live(function)
    thread.await_(copy.is_published, "the first records are published")
    copy.send_numbers(9)
    thread.await_(lambda: any(event["event"] == "waiting" for event in thread.events), "the driver waits")
    back.touch()
    thread.await_(copy.is_published, "the job continues")
    assert not [event for event in thread.events if event["event"] == "restart"]
    before = len(copy.sent)
    copy.send_numbers(4000)
    thread.await_(lambda: len(copy.published()) > before, "some answers are published")
    stop(thread)
    assert len(copy.published()) < len(copy.sent)
    fast.touch()
    again = live(function)
    again.await_(copy.is_published, "the next start continues")
    stop(again)
    assert copy.faults() == {}


def test_what_functions_make_of_a_batch_is_published_before_the_next_batch(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    """Also by functions that keep all rows to the end of their input. Some batches make no row, others several."""

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        columns = [[row[name] for row in rows for _ in range(2)] for name in ("key", "value")]
        yield pa.RecordBatch.from_arrays([*columns, [0, 1] * len(rows)], names=["key", "value", "copy"])

    @clonos.operator
    def chosen(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for rows in list(batches):
            yield rows[(rows["copy"] == 1) & ~rows["value"].str.startswith("x")]

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        rows = rows.mapInArrow(twice, "key binary, value string, copy long")
        ctx.sink(rows.mapInPandas(chosen, rows.schema).select("key", "value"), topic=copy.out, name="out")

    copy.send("x")
    thread = live(function)
    copy.send_numbers(20)
    with faults.injecting("step-produced,lane=1:raise", tmp_path / "faults"):
        for _ in range(4):
            thread.await_(copy.is_published, "the records are published while the epoch lasts")
            copy.send("x", "x")
            copy.send_numbers(10)
        thread.await_(copy.is_published, "the last records are published")
    stop(thread)
    assert copy.faults() == {}
    assert len([event for event in thread.events if event["event"] == "restart"]) == 1
    assert sum(event["records_in"] for event in thread.events if event["event"] == "epoch") >= len(copy.sent)


def test_records_that_cannot_be_decoded_are_dead_letters_or_dropped(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], make_topic: MakeTopic
) -> None:
    dead = make_topic(1, "dead")

    def function(ctx: JobContext) -> None:
        value = F.col("value").cast("string")
        broken = F.when(value == "x", "{").when(value == "xt", '{"value": "xt", "at": "2999-01-01T00:00:00Z"}')
        good = F.to_json(F.struct(value.alias("value"), F.lit("2026-01-01T00:00:00Z").alias("at")))
        rows = ctx.source(copy.source).withColumn("json", F.coalesce(broken, good).cast("binary"))
        rows = rows.withColumn("short", F.when(value == "xd", "{").otherwise("{}").cast("binary"))
        rows = ctx.decode(rows, Json(), schema="n int", column="short", into="checked", on_poison="drop")
        rows = ctx.decode(
            rows,
            Json(),
            schema="value string, at timestamp",
            column="json",
            on_poison="dead-letter",
            dead_letters=dead,
            event_time="at",
            max_ahead="1min",
        )
        ctx.sink(rows.select("key", F.col("record.value").alias("value"), "poison"), topic=copy.out, name="out")

    copy.send_numbers(9)
    thread = live(function)
    thread.await_(copy.is_published, "the first records are published")
    copy.send("x", "xt", "xd", "xd")
    copy.send_numbers(9)
    thread.await_(copy.is_published, "later records are published")
    thread.await_(lambda: len(read_committed(kafka, dead)) == 2, "the dead letters are published in the same epoch")
    stop(thread)
    assert copy.faults() == {}
    epochs = [event for event in thread.events if event["event"] == "epoch"]
    assert {event["epoch"] for event in epochs} == {0}
    assert sum(event["dead_letters"] for event in epochs) == 2
    assert sum(event["dropped"] for event in epochs) == 2


def test_the_time_of_rows_does_not_go_back_with_the_clock(
    copy: Copy, live: Callable[..., DriverThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a takeover by a host whose clock is behind."""

    @clonos.udf("string")
    def timed(value: str) -> str:
        return f"{value} {clonos.now().timestamp()}"

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        ctx.sink(rows.withColumn("value", timed("value")), topic=copy.out, name="out")

    def times() -> list[float]:
        return [float(value.split(" ")[1]) for _, value in copy.published()]

    def last_some_seconds() -> bool:
        copy.send_numbers(3)
        return copy.is_published() and max(times()) - min(times()) > 3

    thread = live(function)
    thread.await_(last_some_seconds, "the rows of one epoch have the times of their batches")
    assert {event["epoch"] for event in thread.events if event["event"] == "epoch"} == {0}
    stop(thread)
    before = max(times())
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3_600_000_000_000)
    again = live(function)
    copy.send_numbers(9)
    again.await_(copy.is_published, "the job continues")
    stop(again)
    assert copy.faults() == {}
    for key in "012":
        of_key = [float(value.split(" ")[1]) for name, value in copy.published() if name == key]
        assert of_key == sorted(of_key)
    assert 0 < max(times()) - before < 1000


def test_a_new_lineage_does_not_publish_the_steps_of_a_live_epoch_again(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    copy.send_numbers(20)
    with faults.injecting("step-begun,lane=1:raise", tmp_path / "faults"):
        thread = live(copy.function)
        thread.await_(copy.is_published, "the first step is published")
        thread.driver.stop()  # as after a crash: the epoch has no end
        copy.send_numbers(1)
        thread.join(60)
    again = live(copy.function, new_lineage=True)
    copy.send_numbers(20)
    again.await_(copy.is_published, "the job continues")
    stop(again)
    assert copy.faults() == {}


def test_several_rows_of_a_record_go_to_several_topics(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], make_topic: MakeTopic
) -> None:
    other = make_topic(1, "other")

    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select("key", F.col("value").cast("string").alias("value"))
        outputs = {copy.out: clonos.Output("value", key="key"), other: clonos.Output("value", key="key")}
        ctx.sink(clonos.fan_out(rows, outputs), name="out")

    copy.send_numbers(30)
    thread = live(function)
    thread.await_(copy.is_published, "the records are published")
    stop(thread)
    assert copy.faults() == {}
    assert Counter((record.value() or b"").decode() for record in read_committed(kafka, other)) == Counter(copy.sent)


@pytest.mark.turn
def test_a_job_changes_its_mode(copy: Copy, live: Callable[..., DriverThread]) -> None:
    for mode in ("epochs", "live", "epochs", "auto"):
        copy.send_numbers(12)
        thread = live(copy.function, mode=mode)
        thread.await_(copy.is_published, f"the records are published in mode {mode}")
        stop(thread)
        assert copy.faults() == {}


def test_an_epoch_in_doubt_is_replayed_before_the_query_runs_live(
    copy: Copy, live: Callable[..., DriverThread], tmp_path: Path
) -> None:
    copy.send_numbers(15)
    thread = live(copy.function, mode="epochs")
    with faults.injecting("lane-marked:raise", tmp_path / "faults"):
        thread.await_(lambda: (tmp_path / "faults").exists(), "an epoch fails")
        thread.driver.stop()
        thread.join(60)
    again = live(copy.function)
    copy.send_numbers(15)
    again.await_(copy.is_published, "the epoch and the later records are published")
    again.await_(
        lambda: any(event["event"] == "mode" and event["live"] for event in again.events), "the query runs live"
    )
    stop(again)
    assert copy.faults() == {}


def test_a_driver_that_another_one_replaced_publishes_nothing(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], name: str
) -> None:
    copy.send_numbers(9)
    first = live(copy.function)
    first.await_(copy.is_published, "the first driver publishes")
    before = copy.published()
    claim(kafka, name)
    copy.send_numbers(9)
    first.join(60)
    assert isinstance(first.failure, Superseded)
    assert copy.published() == before
    second = live(copy.function)
    second.await_(copy.is_published, "the next driver continues")
    stop(second)
    assert copy.faults() == {}


@pytest.mark.turn
@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda rows: rows.dropDuplicates(["value"]), "the operator Deduplicate"),
        (lambda rows: rows.select(F.current_timestamp().cast("string").alias("value")), "CurrentTimestamp"),
        (
            lambda rows: rows.select(F.udf("string", useArrow=False)(lambda value: value)("value").alias("value")),
            "takes no Arrow data",
        ),
        (lambda rows: rows.repartition(3), "the operator Repartition"),
        (lambda rows: rows.where("value != (select max(cast(id as string)) from range(3))"), "a subquery"),
    ],
)
def test_a_query_that_cannot_run_live_says_why(
    kafka: KafkaSettings, copy: Copy, live: Callable[..., DriverThread], change: Callable[..., object], because: str
) -> None:
    def function(ctx: JobContext) -> None:
        rows = ctx.source(copy.source).select(F.col("value").cast("string").alias("value"))
        ctx.sink(change(rows), topic=copy.out, name="out")  # type: ignore[arg-type]

    refused = live(function)
    refused.join(60)
    assert isinstance(refused.failure, SpecError)
    assert because in refused.failure.what

    copy.send("r0")
    thread = live(function, mode="auto")
    thread.await_(lambda: len(copy.published()) == 1, "it runs in epochs")
    (mode,) = [event for event in thread.events if event["event"] == "mode"]
    assert (mode["live"], because in mode["because"]) == (False, True)
    stop(thread)
