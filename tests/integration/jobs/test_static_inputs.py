"""A stream that is joined with a table: a replay reads the same table, or is refused."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.errors import CheckpointMismatch, JobCodeError, RestartsExhausted, SpecError
from clonos.formats import Json, columns
from clonos.formats.poison import HEADERS, UDF_NAME, carried
from clonos.jobs.context import JobContext, _struct
from clonos.jobs.definition import JobFunction
from clonos.jobs.spec import JobSpec, Metadata
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed
from support.page_shell import PageFile, steps

MakeTopic = Callable[..., str]


@pytest.fixture
def fail_after_the_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLONOS_FAULT_LOG", str(tmp_path / f"fault-{random.getrandbits(32):08x}"))
    monkeypatch.setattr(faults, "_FAULTS", faults.parse("plan-committed:raise"))


@pytest.fixture
def source(kafka: KafkaSettings, make_topic: MakeTopic) -> str:
    topic = make_topic(2)
    producer = Producer(client_config(kafka))
    for number in range(6):
        producer.produce(topic, f"r{number}", partition=number % 2)
    assert producer.flush(30) == 0
    return topic


def write_rates(folder: Path, rate: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [json.dumps({"key": f"r{number}", "rate": rate}) for number in range(6)]
    (folder / "rates.json").write_text("\n".join(rows) + "\n" * rate)


def joined(source: str, out: str, table: Callable[[JobContext], DataFrame]) -> JobFunction:
    def job(ctx: JobContext) -> None:
        rows = ctx.source(source).select(F.col("value").cast("string").alias("key"))
        values = rows.join(F.broadcast(table(ctx)), "key")
        ctx.sink(values.select(F.concat_ws("/", "key", "rate").alias("value")), topic=out, name="out")

    return job


def published(kafka: KafkaSettings, topic: str) -> Counter[str]:
    return Counter((record.value() or b"").decode() for record in read_committed(kafka, topic))


@pytest.mark.usefixtures("fail_after_the_plan")
@pytest.mark.parametrize("way_out", ["restored", "accepted"])
def test_files_that_changed_in_doubt_are_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, source: str, tmp_path: Path, way_out: str
) -> None:
    rates, out = tmp_path / "rates", make_topic(1)
    write_rates(rates, 1)
    job = joined(source, out, lambda ctx: ctx.spark.read.schema("key string, rate int").json(str(rates)))
    with pytest.raises(RestartsExhausted):
        run_job(job, name, restart_policy={"attempts": 0})
    before = (rates / "rates.json").stat()
    write_rates(rates, 2)
    with pytest.raises(CheckpointMismatch, match=r"static input .*/rates changed while epoch 0 of out") as refused:
        run_job(job, name)
    assert "--accept-new-code" in refused.value.hint
    if way_out == "restored":
        write_rates(rates, 1)
        os.utime(rates / "rates.json", ns=(before.st_atime_ns, before.st_mtime_ns))
        run_job(job, name)
        assert published(kafka, out) == Counter(f"r{number}/1" for number in range(6))
    else:
        run_job(job, name, resolve=["out:0=new-code"])
        assert published(kafka, out) == Counter(f"r{number}/2" for number in range(6))


def test_an_operator_on_a_table_is_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, source: str, tmp_path: Path
) -> None:
    """Spark would compute it when it prepares the plan: published, and in no log."""
    rates, out = tmp_path / "rates", make_topic(1)
    write_rates(rates, 1)

    @clonos.udf("int")
    def drawn(rate: int) -> int:
        return rate + int(clonos.random() * 1000)

    def table(ctx: JobContext) -> DataFrame:
        frame = ctx.spark.read.schema("key string, rate int").json(str(rates))
        return frame.withColumn("rate", drawn("rate"))

    with pytest.raises((SpecError, JobCodeError), match="drawn runs on a DataFrame that is not a stream"):
        run_job(joined(source, out, table), name)
    assert not published(kafka, out)


def named_orders(source: str, out: str, dead: str) -> JobFunction:
    """The first job of `docs/howto/join-a-table.md`, with other names."""
    page = Path(__file__).parents[3] / "docs/howto/join-a-table.md"
    [text] = [step.text for step in steps(page) if isinstance(step, PageFile) and step.path == "job.py"]
    for name, other in (("orders.named", out), ("orders.dead", dead), ('"orders"', f'"{source}"')):
        assert name in text
        text = text.replace(name, other)
    module: dict[str, Any] = {}
    exec(text, module)
    function: JobFunction = module["named_orders"].function
    return function


def test_a_left_join_keeps_each_dead_letter_once(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The source is read once: the job of the page, with an unknown customer and records that are not JSON."""
    source, out, dead = make_topic(2), make_topic(1), make_topic(1)
    (tmp_path / "customers").mkdir()
    rows = [{"customer": 1, "name": "Ada"}, {"customer": None, "name": "nobody"}, {"customer": None, "name": "no one"}]
    (tmp_path / "customers/rows.json").write_text("\n".join(map(json.dumps, rows)))
    records = [b'{"customer":1,"cents":5}', b"bad 1", b'{"customer":2,"cents":6}', b"bad 2"]
    producer = Producer(client_config(kafka))
    for number, value in enumerate(records):
        producer.produce(source, value, partition=number % 2)
    assert producer.flush(30) == 0
    run_job(named_orders(source, out, dead), name, params={"customers": str(tmp_path / "customers")})
    assert published(kafka, out) == Counter(['{"customer":1,"name":"Ada","cents":5}', '{"customer":2,"cents":6}'])
    assert published(kafka, dead) == Counter(["bad 1", "bad 2"])
    [epoch] = [event for event in run_job.events_of("epoch") if event["records_in"]]
    assert (epoch["records_in"], epoch["records_out"], epoch["dead_letters"]) == (4, 4, 2)
    assert epoch["topics_in"] == {source: 4}


@pytest.mark.parametrize(
    ("join", "kept"),
    [
        (lambda rows, table: rows.join(table, rows.record.key == table.key, "left"), True),
        (lambda rows, table: table.join(rows, rows.record.key == table.key, "right"), True),
        (lambda rows, table: rows.join(table, F.upper(rows.record.key) == table.key, "left"), True),
        (lambda rows, table: rows.join(table, (rows.topic == table.key) & rows.poison.isNull(), "left"), True),
        (lambda rows, table: rows.join(table, rows.topic == table.key, "left"), False),
        (lambda rows, table: rows.join(table, rows.record.key.eqNullSafe(table.key), "left"), False),
        (lambda rows, table: rows.join(table, F.coalesce(rows.record.key, F.lit("x")) == table.key, "left"), False),
        (
            lambda rows, table: rows.join(table, (rows.record.key == table.key) | (rows.topic == table.key), "left"),
            False,
        ),
        (lambda rows, table: rows.join(table, rows.record.key == table.key), False),
        (lambda rows, table: rows.join(table, rows.record.key == table.key, "left_semi"), False),
        (lambda rows, table: rows.join(table, rows.record.key == table.key, "left_anti"), False),
        (lambda rows, table: rows.crossJoin(table), False),
    ],
)
def test_joins_that_keep_each_dead_letter_once(spark: SparkSession, join: Any, kept: bool) -> None:
    stream = spark.readStream.format("rate").load()
    named = {"topic": "string", "partition": "int", "offset": "long", "key": "binary", "value": "binary"}
    nulls = [F.lit(None).cast(kind).alias(column) for column, kind in named.items()]
    source = stream.select(*nulls, F.lit(None).cast(HEADERS).alias("headers"), "timestamp")
    context = JobContext(spark, JobSpec(metadata=Metadata(name="joins")), KafkaSettings())
    reader = Json().reader(_struct("key string"), context.pins)
    rows = columns.decode(
        source, reader, 1, column="value", into="record", on_poison="dead-letter", dead_letters="dead"
    ).alias("rows")
    table = spark.createDataFrame([("a", 1)], "key string, rate int").alias("table")
    names, losing = carried(join(rows, table).select("poison"))
    assert (names == {f"{UDF_NAME}1"}) is kept
    assert losing == (set() if kept else {"Join"})
