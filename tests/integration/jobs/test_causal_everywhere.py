"""Causal services in every kind of Python function that Spark runs: replays repeat epochs that failed partway.

Each job loses a Python worker when only some lanes of an epoch are published. The replay must get the recorded
answers, publish the remaining lanes, and agree with the published lanes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from test_replay import MakeTopic, feed, published

import clonos
from clonos.causal.epoch_scope import worker_kafka
from clonos.causal.scope import current_epoch
from clonos.causal.shape import has_rows_without_input
from clonos.errors import CheckpointMismatch, OperatorRequired, RestartsExhausted, SpecError
from clonos.jobs.context import JobContext
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, read_committed

pytestmark = pytest.mark.full

KEYS = 12
OUT = "word string, kind string, epoch long, task long, asked string, answer string, draw double, n long"
FIELDS = [part.split()[0] for part in OUT.split(", ")]
_steps: Counter[tuple[str, int, int, bool]] = Counter()


class Answer(msgspec.Struct):
    id: uuid.UUID
    of: str | None


def oracle(what: str) -> Answer:
    """Return a different answer at each call, and append a line to the file of calls."""
    context = TaskContext.get()
    assert context is not None
    line = f"{clonos.epoch()}|{context.partitionId()}|{what}\n"
    handle = os.open(clonos.param("calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)
    return Answer(uuid.uuid4(), what)


ask = clonos.service(name="oracle", concurrency=4)(oracle)
# In a clonos.udf the rows of a batch run at once where a service allows it.
ask_in_turn = clonos.service(name="oracle-in-turn")(oracle)


def step(at: int = 2) -> None:
    """Count a batch, group or row of the task; at number `at` in the failing epoch, kill the worker.

    The first task to arrive continues and publishes. The others wait until it has published and all of them have
    arrived, so that their earlier answers are in the log; then they kill their workers.
    """
    scope = current_epoch()
    assert scope is not None
    epoch = scope.identity
    attempt = (epoch.job, epoch.epoch, task(), epoch.replay)  # a worker may have served an earlier test
    _steps[attempt] += 1
    if _steps[attempt] != at or epoch.replay or epoch.epoch != int(scope.params["failing"]):
        return
    waiting = Path(scope.params["waiting"])
    with suppress(FileExistsError):
        (waiting / "first").touch(exist_ok=False)
        return
    (waiting / str(task())).touch()

    def published_by_the_first() -> bool:
        records = [json.loads(m.value() or b"{}") for m in read_committed(worker_kafka(), scope.params["out"])]
        return any(record["epoch"] == epoch.epoch for record in records)

    eventually(lambda: len(list(waiting.iterdir())) == int(scope.params["tasks"]), "all tasks have arrived")
    eventually(published_by_the_first, "one lane is published")
    os.kill(os.getpid(), signal.SIGKILL)


def task() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def said(word: str, asked: str, n: int, *, kind: str = "row", draw: float | None = None) -> dict[str, Any]:
    answer = (ask if draw is None else ask_in_turn)(asked)
    assert isinstance(answer, Answer)
    assert answer.of == asked
    return {
        "word": word,
        "kind": kind,
        "epoch": clonos.epoch(),
        "task": task(),
        "asked": asked,
        "answer": str(answer.id),
        "draw": clonos.random() if draw is None else draw,
        "n": n,
    }


def key_of(words: Any) -> Column:
    """The key of a word: its number modulo `KEYS`."""
    return F.concat(F.lit("k"), (F.regexp_extract(words, "[0-9]+", 0).cast("int") % KEYS).cast("string"))


def letters(words: list[str]) -> list[dict[str, Any]]:
    return [said(word, word[0], n) for n, word in enumerate(words)]


# The kinds of functions


@clonos.pandas_udf(f"struct<{OUT}>")
def by_series(words: pd.Series, offsets: pd.Series) -> pd.DataFrame:
    step()
    ask.map(word[0] for word in words)
    return pd.DataFrame(letters(list(words)))


@clonos.pandas_udf(f"struct<{OUT}>", name="series")
def by_series_iterator(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
    for words in batches:
        step()
        yield pd.DataFrame(letters(list(words)))


@clonos.arrow_udf("string")
def by_array(words: pa.Array) -> pa.Array:
    step()
    return pa.array([json.dumps(row) for row in letters(words.to_pylist())])


@clonos.operator
def frames(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        step()
        yield pd.DataFrame(letters(list(batch["word"])))


@clonos.operator(name="record-batches")
def record_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step()
        yield pa.RecordBatch.from_pylist(letters(batch.column("word").to_pylist()))


@clonos.operator
def group(rows: pd.DataFrame) -> pd.DataFrame:
    step()
    return pd.DataFrame([said(word, f"{word[0]}/{rows['key'][0]}", n) for n, word in enumerate(rows["word"])])


@clonos.operator(order_by="word")
def keyed_group(key: tuple[str], rows: pd.DataFrame) -> pd.DataFrame:
    step()
    return pd.DataFrame([said(word, f"{word[0]}/{key[0]}", n) for n, word in enumerate(rows["word"])])


@clonos.operator
def group_batches(key: tuple[Any, ...], batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    step()
    for batch in batches:
        yield pd.DataFrame([said(word, f"{word[0]}/{key[0]}", n) for n, word in enumerate(batch["word"])])


@clonos.operator
def table(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    step()
    words = rows.column("word").to_pylist()
    return pa.Table.from_pylist([said(word, f"{word[0]}/{key[0].as_py()}", n) for n, word in enumerate(words)])


@clonos.operator
def cogroup(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    step()
    rows = pd.concat([left, right], ignore_index=True)
    return pd.DataFrame([said(word, f"{word[0]}/{rows['key'][0]}", n) for n, word in enumerate(rows["word"])])


@clonos.operator
def with_state(key: tuple[str], batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    step()
    n = state.get[0] if state.exists else 0
    for batch in batches:
        out = [said(word, f"{word[0]}/{key[0]}", n + i) for i, word in enumerate(batch["word"])]
        n += len(out)
        yield pd.DataFrame(out)
    state.update((n,))


class Running(StatefulProcessor):
    """Numbers the rows of a key across epochs; a timer emits a row after the key's first epoch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.old = handle.getValueState("old", "n long", 1)

    def numbered(self, key: tuple[str], words: list[str]) -> list[dict[str, Any]]:
        n = self.count.get()[0] if self.count.exists() else 0
        said_now = [said(word, f"{word[0]}/{key[0]}", n + i) for i, word in enumerate(words)]
        self.count.update((n + len(words),))
        return said_now

    def begin(self, timerValues: TimerValues) -> None:  # noqa: N803
        step()
        # Timers and time to live use the time that Spark logged for the epoch.
        assert timerValues.getCurrentProcessingTimeInMs() == int(clonos.now().timestamp() * 1000)
        if not self.count.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            self.old.update((1,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        self.begin(timerValues)
        for fields in self.numbered(key, [row.word for row in rows]):
            yield Row(**fields)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        n = -2 if self.old.exists() else -1
        yield Row(**said(key[0], f"timer/{key[0]}", n, kind="timer"))


class RunningFrames(Running):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        self.begin(timerValues)
        for frame in rows:
            yield pd.DataFrame(self.numbered(key, list(frame["word"])))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])


def scrambled(records: DataFrame) -> DataFrame:
    """The same rows in a random order, as after a shuffle."""

    def scramble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if parts:
            rows = pa.Table.from_batches(parts)
            yield from rows.take(pa.array(random.sample(range(len(rows)), len(rows)))).to_batches()

    return records.mapInArrow(scramble, records.schema)


Kind = Callable[[DataFrame], DataFrame]


def grouped(function: Callable[[Any], DataFrame], *columns: str) -> Kind:
    def kind(records: DataFrame) -> DataFrame:
        chosen = scrambled(records.select("topic", "partition", "offset", "word", key_of(F.col("word")).alias("key")))
        return function((chosen.select(*columns) if columns else chosen).groupBy("key"))

    return kind


def cogrouped(records: DataFrame) -> DataFrame:
    sides = scrambled(records.select("partition", "word", key_of(F.col("word")).alias("key")))
    left, right = sides.where("partition = 0"), sides.where("partition > 0")
    return left.groupBy("key").cogroup(right.groupBy("key")).applyInPandas(cogroup, OUT)


def stateful(processor: StatefulProcessor, pandas: bool) -> Callable[[Any], DataFrame]:
    def kind(groups: Any) -> DataFrame:
        run = groups.transformWithStateInPandas if pandas else groups.transformWithState
        made: DataFrame = run(clonos.operator(processor), OUT, "append", "processingTime")
        return made

    return kind


def old_state(groups: Any) -> DataFrame:
    made: DataFrame = groups.applyInPandasWithState(with_state, OUT, "n long", "append", GroupStateTimeout.NoTimeout)
    return made


ON_COLUMNS: dict[str, Kind] = {
    "pandas_udf": lambda records: records.select(by_series("word", "offset").alias("said")).select("said.*"),
    "pandas_udf-iterator": lambda records: records.select(by_series_iterator("word").alias("said")).select("said.*"),
    "arrow_udf": lambda records: records.select(F.from_json(by_array("word"), OUT).alias("said")).select("said.*"),
    "mapInPandas": lambda records: records.select("word").mapInPandas(frames, OUT),
    "mapInArrow": lambda records: records.select("word").mapInArrow(record_batches, OUT),
}
ON_GROUPS: dict[str, Kind] = {
    "applyInPandas": grouped(lambda groups: groups.applyInPandas(group, OUT)),
    "applyInPandas-key": grouped(lambda groups: groups.applyInPandas(keyed_group, OUT)),
    "applyInPandas-iterator": grouped(lambda groups: groups.applyInPandas(group_batches, OUT), "word", "key"),
    "applyInArrow": grouped(lambda groups: groups.applyInArrow(table, OUT), "word", "key"),
    "cogroup": cogrouped,
}
WITH_STATE: dict[str, Kind] = {
    "applyInPandasWithState": grouped(old_state),
    "transformWithState": grouped(stateful(Running(), pandas=False)),
    "transformWithStateInPandas": grouped(stateful(RunningFrames(), pandas=True)),
}
KINDS = {**ON_COLUMNS, **ON_GROUPS, **WITH_STATE}
IN_CI = ("pandas_udf", "mapInPandas", "applyInPandas", "transformWithState")


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Several batches for each task, several chunks for each key."""
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    assert before is not None
    spark.conf.set(setting, "4")
    yield
    spark.conf.set(setting, before)


def job_of(kind: Kind, source: str, out: str, rate: int | None = None) -> Callable[[JobContext], None]:
    def job(ctx: JobContext) -> None:
        records = ctx.source(source, max_per_epoch=rate).withColumn("word", F.col("value").cast("string"))
        ctx.sink(kind(records).select(F.to_json(F.struct(*FIELDS)).alias("value")), topic=out, name="out")

    return job


class Outcome:
    """The records that a job published, and the service calls of all its attempts."""

    def __init__(self, records: list[dict[str, Any]], calls: Path, events: list[dict[str, Any]]) -> None:
        self.records = records
        self.calls = Counter(calls.read_text().splitlines())
        self.asked = len(self.calls)
        self.epochs = events

    def repeats(self) -> None:
        """Check that each question was asked once, and that all records of a question have the same answer."""
        assert max(self.calls.values()) == 1, self.calls.most_common(3)
        answers: dict[str, set[str]] = {}
        for record in self.records:
            question = f"{record['epoch']}|{record['task']}|{record['asked']}"
            answers.setdefault(question, set()).add(record["answer"])
        assert set(answers) == set(self.calls)
        assert all(len(replies) == 1 for replies in answers.values())
        uses = Counter(answer for replies in answers.values() for answer in replies)
        assert max(uses.values()) == 1
        replay = next(event for event in self.epochs if event["replay"])
        assert replay["skipped_lanes"] >= 1
        assert replay["diverged_lanes"] == 0
        assert replay["replayed_determinants"] >= 1
        assert sum(event["recorded_determinants"] for event in self.epochs) <= self.asked
        assert len({record["draw"] for record in self.records}) == len(self.records)


def lossy(folder: Path, out: str, tasks: int, failing: int = 0) -> dict[str, str]:
    """Parameters of a job that loses workers.

    Args:
        folder: For the files that workers leave behind.
        out: The output topic.
        tasks: How many tasks of the operator have input.
        failing: The epoch that fails.
    """
    (folder / "waiting").mkdir()
    return {
        "calls": str(folder / "calls"),
        "waiting": str(folder / "waiting"),
        "out": out,
        "tasks": str(tasks),
        "failing": str(failing),
    }


@pytest.fixture
def run_lossy(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> Callable[..., tuple[Outcome, Counter[str]]]:
    def run(kind: Kind, *, tasks: int, failing: int = 0, rate: int | None = None) -> tuple[Outcome, Counter[str]]:
        source, out = make_topic(3, "in"), make_topic(1, "out")
        sent = feed(kafka, source, 3, 120)
        params = lossy(tmp_path, out, tasks, failing)
        run_job(job_of(kind, source, out, rate), name, params=params)
        return Outcome(published(kafka, out), tmp_path / "calls", run_job.events_of("epoch")), sent

    return run


@pytest.mark.turn
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.ci if kind in IN_CI else ()) for kind in KINDS])
@pytest.mark.usefixtures("partition_lanes")
def test_an_epoch_that_fails_in_the_middle_is_repeated(run_lossy: Any, kind: str) -> None:
    with_state = kind in WITH_STATE
    lost = {"failing": 1, "rate": 60} if with_state else {}
    outcome, sent = run_lossy(KINDS[kind], tasks=3 if kind in ON_COLUMNS else 2, **lost)
    outcome.repeats()
    rows = [record for record in outcome.records if record["kind"] == "row"]
    assert Counter(record["word"] for record in rows) == sent
    if with_state:
        numbers: dict[str, list[int]] = {}
        for record in rows:
            numbers.setdefault(record["asked"].split("/")[1], []).append(record["n"])
        assert all(sorted(numbers_of_key) == list(range(len(numbers_of_key))) for numbers_of_key in numbers.values())
        assert len(numbers) == KEYS
    if kind.startswith("transformWithState"):
        timers = [record for record in outcome.records if record["kind"] == "timer"]
        assert Counter(record["word"] for record in timers) == Counter(f"k{n}" for n in range(KEYS))
        assert {record["n"] for record in timers} == {-1}, (
            "a value with a time to live of 1 ms expires before the next epoch"
        )


# Shapes of queries around an operator

SAID = f"struct<{OUT}>"
_PLACE = ("topic", "partition", "offset", "word")


def by_place(topic: str, partition: int, offset: int, word: str) -> dict[str, Any]:
    """The rows of a task have no fixed order, so questions and random draws depend only on the row."""
    step(5)
    return said(word, word[0], offset, draw=clonos.random((topic, partition, offset)))


place = clonos.udf(SAID)(by_place)


@clonos.udf("string", name="first")
def first_opinion(word: str) -> str:
    return str(ask_in_turn(f"first/{word[0]}").id)


def said_by_place(records: DataFrame) -> DataFrame:
    return records.select(place(*_PLACE).alias("said")).select("said.*")


def united(records: DataFrame) -> DataFrame:
    return said_by_place(records.where("partition = 0").union(records.where("partition > 0")))


def before_and_after(records: DataFrame) -> DataFrame:
    """A query with operators and services on both sides of a shuffle."""
    before = records.withColumn("first", first_opinion("word"))
    after = before.repartition("first").withColumn("said", place(*_PLACE))
    return after.select("said.*", "first").withColumn("kind", F.concat_ws(":", "kind", "first")).drop("first")


SHAPES: dict[str, tuple[Kind, int]] = {
    "union": (united, 3),
    "coalesce": (lambda records: said_by_place(records.coalesce(2)), 2),
    "round robin": (lambda records: said_by_place(scrambled(records).repartition(4)), 4),
    "by column": (lambda records: said_by_place(scrambled(records).repartition("word")), 2),
    "before and after a shuffle": (before_and_after, 2),
}


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("partition_lanes")
def test_an_operator_below_other_shapes_is_repeated(run_lossy: Any, shape: str) -> None:
    kind, tasks = SHAPES[shape]
    outcome, sent = run_lossy(kind, tasks=tasks)
    if shape.startswith("before"):
        opinions: dict[str, set[str]] = {}
        for record in outcome.records:
            opinions.setdefault(record["kind"].removeprefix("row:"), set()).add(record["word"][0])
        assert all(len(letters) == 1 for letters in opinions.values())
        assert len(opinions) == 3 * 5, "one for each letter in each task"
        before = [line for line in outcome.calls if "|first/" in line]
        assert len(before) == 3 * 5
        for line in before:
            assert outcome.calls.pop(line) == 1
    outcome.repeats()
    assert Counter(record["word"] for record in outcome.records) == sent


@pytest.mark.usefixtures("small_batches")
@pytest.mark.usefixtures("partition_lanes")
def test_ranges_that_are_split_otherwise_are_refused_in_a_replay(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """minPartitions sets the number of tasks: a different number, as on a larger machine, is a different plan."""
    source, out = make_topic(3, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 3, 120)
    params = lossy(tmp_path, out, tasks=6)
    split = ["6"]

    def job(ctx: JobContext) -> None:
        records = ctx.source(source, options={"minPartitions": split[0]})
        records = records.withColumn("word", F.col("value").cast("string"))
        ctx.sink(said_by_place(records).select(F.to_json(F.struct(*FIELDS)).alias("value")), topic=out, name="out")

    with pytest.raises(RestartsExhausted):
        run_job(job, name, params=params, restart_policy={"attempts": 0})
    split[0] = "9"
    with pytest.raises(CheckpointMismatch, match="would read"):
        run_job(job, name, params=params)
    split[0] = "6"
    run_job(job, name, params=params)
    outcome = Outcome(published(kafka, out), tmp_path / "calls", run_job.events_of("epoch"))
    outcome.repeats()
    assert Counter(record["word"] for record in outcome.records) == sent


# Refused shapes: a replay could not repeat them


def twice(records: DataFrame) -> DataFrame:
    verdict = place(*_PLACE)
    return records.select(verdict.getField("word").alias("value"), verdict.getField("answer").alias("key"))


def with_itself(records: DataFrame) -> DataFrame:
    made = said_by_place(records)
    return made.where("draw < 0.5").union(made.where("draw >= 0.5")).select(F.col("word").alias("value"))


def processor_twice(records: DataFrame) -> DataFrame:
    made = KINDS["transformWithState"](records)
    return made.where("n > 0").union(made.where("n <= 0")).select(F.col("word").alias("value"))


def coalesced(records: DataFrame) -> DataFrame:
    return said_by_place(records).where("n > 0").coalesce(1).select(F.col("word").alias("value"))


REFUSED: dict[str, tuple[Kind, str]] = {
    "one column used twice": (twice, "by_place would be evaluated 2 times"),
    "united with itself": (with_itself, "by_place would be evaluated 2 times"),
    "a processor united with itself": (processor_twice, "transformWithStateUDF would be evaluated 2 times"),
    "coalesced": (coalesced, "coalesce would put several partitions of the operator by_place"),
    "sorted": (lambda records: records.groupBy("value").count().orderBy("count").select("value"), "sorts all"),
    "by range": (lambda records: records.repartitionByRange(2, "offset").select("value"), "sorts all"),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_shapes_that_are_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, shape: str
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 10)
    kind, message = REFUSED[shape]

    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        ctx.sink(kind(records), topic=out, name="out", mode="complete" if shape == "sorted" else "append")

    with pytest.raises(SpecError, match=message) as refused:
        run_job(job, name)
    assert refused.value.hint
    assert run_job.events_of("claimed") == []


def test_aggregations_without_keys_have_rows_without_input(spark: SparkSession, kafka: KafkaSettings) -> None:
    frame = spark.readStream.format("rate").load()
    sums = {
        "of all": frame.agg(F.sum("value")),
        "of all, behind a filter": frame.where("value > 5")
        .agg(F.count("*").alias("n"))
        .withColumn("m", F.col("n") + 1),
        "of groups": frame.groupBy("value").count(),
        "none": frame.select("value"),
    }
    assert [name for name, query in sums.items() if has_rows_without_input(query)] == [
        "of all",
        "of all, behind a filter",
    ]


def test_a_shuffle_between_an_operator_and_coalesce_is_fine(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    sent = feed(kafka, source, 2, 20)

    def job(ctx: JobContext) -> None:
        records = ctx.source(source).withColumn("word", F.col("value").cast("string"))
        made = records.withColumn("first", first_opinion("word")).repartition(3, "word").coalesce(1)
        ctx.sink(made.select(F.to_json(F.struct("word", "first")).alias("value")), topic=out, name="out")

    run_job(job, name, params={"calls": str(tmp_path / "calls")})
    assert Counter(record["word"] for record in published(kafka, out)) == sent


@pytest.mark.parametrize("service", ["recorded", "clock", "positional"])
def test_services_in_plain_udfs_are_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path, service: str
) -> None:
    """Two plain UDFs in one task would use the same key, and get two answers for it."""
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, 1, 10)

    def call(word: str) -> str:
        return {
            "recorded": lambda: str(ask(word[0]).id),
            "clock": lambda: clonos.clock().isoformat(),
            "positional": lambda: str(clonos.random()),
        }[service]()

    pickled = F.udf(lambda word: call(word), "string")  # Spark warns of annotations that are text

    @F.pandas_udf("string")
    def vectorised(words: pd.Series) -> pd.Series:
        return words.map(call)

    def job(ctx: JobContext) -> None:
        word = F.col("value").cast("string")
        records = ctx.source(source).select(pickled(word).alias("key"), vectorised(word).alias("value"))
        ctx.sink(records, topic=out, name="out")

    with pytest.raises(OperatorRequired, match="not a Clonos operator") as refused:
        run_job(job, name, params={"calls": str(tmp_path / "calls")})
    assert "clonos.operator" in refused.value.hint
    assert read_committed(kafka, out) == []
    assert not (tmp_path / "calls").exists()


def test_plain_udfs_may_ask_what_needs_no_operator(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, 2, 20)

    def describe(word: str) -> str:
        return json.dumps([word, clonos.epoch(), clonos.random(word), clonos.param("city")])

    plain = F.udf(lambda word: describe(word), "string")  # Spark warns of annotations that are text

    @F.pandas_udf("string")
    def vectorised(words: pd.Series) -> pd.Series:
        return words.map(describe)

    def job(ctx: JobContext) -> None:
        word = F.col("value").cast("string")
        records = ctx.source(source).select(plain(word).alias("key"), vectorised(word).alias("value"))
        ctx.sink(records, topic=out, name="out")

    run_job(job, name, params={"city": "Berlin"})
    messages = read_committed(kafka, out)
    assert len(messages) == 20
    assert all(message.key() == message.value() for message in messages)
    assert len({message.value() for message in messages}) == 20
