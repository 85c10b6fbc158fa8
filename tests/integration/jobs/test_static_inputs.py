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
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import clonos
from clonos import faults
from clonos.errors import CheckpointMismatch, JobCodeError, RestartsExhausted, SpecError
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed

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

    with pytest.raises((SpecError, JobCodeError), match="drawn runs on a DataFrame that is no stream"):
        run_job(joined(source, out, table), name)
    assert not published(kafka, out)
