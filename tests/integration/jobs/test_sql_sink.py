"""The sink for databases in jobs: its contract on SQLite and PostgreSQL, upserts, an outage, and a killed driver."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clonos import faults
from clonos.errors import SpecError, TargetUnfit
from clonos.jobs.context import JobContext
from clonos.jobs.loading import load_job
from clonos.jobs.spec import Connection
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually
from clonos.testing.sink_contract import Seen, SinkContract
from clonos_sinks.sql import SqlSink
from support.postgres import PostgresServer

pytestmark = pytest.mark.timeout(3000)
BEFORE = ("lane-begun", "state-committed", "lane-decided")
INSIDE = ("lane-produced", "lane-marked")  # of the transaction


class SqliteContract(SinkContract):
    points = (*BEFORE, *INSIDE, "lane-committed")

    def prepare(self) -> None:
        with closing(sqlite3.connect(self.file)) as database:
            database.execute(f'CREATE TABLE "{self.place}" (key TEXT, value TEXT)')

    @property
    def file(self) -> Path:
        return self.folder / "out.db"

    def make_sink(self, name: str) -> SqlSink:
        return SqlSink(name, connection=Connection(url=f"sqlite:///{self.file}"), table=self.place)

    def read_back(self) -> list[Seen]:
        with closing(sqlite3.connect(self.file)) as database:
            return [Seen(*row) for row in database.execute(f'SELECT key, value FROM "{self.place}" ORDER BY rowid')]


@pytest.mark.turn
class TestSqlite(SqliteContract):
    def test_a_zombie_between_any_two_steps(self) -> None:
        type(self).points = tuple(point for point in self.points if point not in INSIDE)  # it locks the file
        super().test_a_zombie_between_any_two_steps()


@pytest.mark.turn
class TestPostgres(SinkContract):
    points = SqliteContract.points

    @pytest.fixture(autouse=True)
    def _staged(
        self, spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, postgres: PostgresServer, name: str
    ) -> None:
        self.url = postgres.create_database(name).replace("+psycopg", "")
        self.stage(spark, kafka, tmp_path)

    def prepare(self) -> None:
        with psycopg.connect(self.url) as database:
            database.execute(f'CREATE TABLE "{self.place}" (number SERIAL, key TEXT, value TEXT)')

    def make_sink(self, name: str) -> SqlSink:
        return SqlSink(name, connection=Connection(url=self.url), table=self.place)

    def read_back(self) -> list[Seen]:
        with psycopg.connect(self.url) as database:
            return [Seen(*row) for row in database.execute(f'SELECT key, value FROM "{self.place}" ORDER BY number')]


def test_a_job_upserts_totals_through_an_outage_of_the_database(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: Callable[..., str], postgres: PostgresServer
) -> None:
    """The server is away when the first epoch is planned; the driver waits for it, and counts no restart."""
    url, source = postgres.create_database(name).replace("+psycopg", ""), make_topic(3, "in")
    with psycopg.connect(url) as database:
        database.execute("CREATE TABLE totals (customer TEXT PRIMARY KEY, n BIGINT, seen JSONB)")
    producer = Producer(client_config(kafka))
    for number in range(30):
        producer.produce(source, f"c{number % 4}".encode(), partition=number % 3)
    assert producer.flush(30) == 0

    def job(ctx: JobContext) -> None:
        orders = ctx.source(source).withColumn("customer", F.col("value").cast("string"))
        totals = orders.groupBy("customer").agg(F.count("*").alias("n"), F.max(F.struct("partition")).alias("seen"))
        totals = totals.withColumn("op", F.when(F.col("customer") == "c3", "d"))
        options = {"table": "totals", "key": ["customer"], "delete_when": "op = 'd'"}
        ctx.sink(totals, connector="sql", connection="crm", name="totals", mode="update", **options)

    away: list[threading.Thread] = []

    def stop() -> None:
        if not away:
            postgres.stop()
            away.append(threading.Thread(target=start_again))
            away[0].start()

    def start_again() -> None:
        try:
            eventually(lambda: bool(run_job.events_of("waiting")), "the driver waits", timeout_s=120)
        finally:
            postgres.start()

    with faults.acting("plan-committed", stop):
        run_job(job, name, connections={"crm": {"url": url}})
    away[0].join()
    assert {event["error"] for event in run_job.events_of("waiting")} == {"target-unavailable"}
    assert run_job.events_of("restart") == []
    with psycopg.connect(url) as database:
        rows = database.execute("SELECT * FROM totals ORDER BY customer").fetchall()
        assert database.execute("SELECT DISTINCT job, query FROM clonos_lanes").fetchall() == [(name, "totals")]
    assert rows == [("c0", 8, {"partition": 2}), ("c1", 8, {"partition": 2}), ("c2", 7, {"partition": 2})]


def test_a_connection_that_the_specification_lacks(run_job: Any, name: str, make_topic: Callable[..., str]) -> None:
    source = make_topic(1, "in")

    def job(ctx: JobContext) -> None:
        ctx.sink(ctx.source(source), connector="sql", connection="crn", table="t")

    with pytest.raises(SpecError, match=r"'crn'.*crm"):
        run_job(job, name, connections={"crm": {"url": "sqlite:////nowhere/out.db"}})


@pytest.mark.full
def test_the_example(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Its orders come in two runs of the job; the statement that the first start prints creates the table."""
    job, source = load_job(Path(__file__).parents[3] / "examples/totals/job.yaml"), make_topic(2, "orders")
    spec = {"params": {"orders": source}, "connections": {"shop": {"url": f"sqlite:///{tmp_path}/shop.db"}}}
    with pytest.raises(TargetUnfit) as missing:
        run_job(job.function, name, **spec)
    producer = Producer(client_config(kafka))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute(missing.value.hint.partition(": ")[2])
        for run in (1, 2):
            for number in range(20):
                order = json.dumps({"customer": f"c{number % 3}", "cents": number})
                producer.produce(source, order.encode(), partition=number % 2)
            assert producer.flush(30) == 0
            run_job(job.function, name, **spec)
            totals = database.execute("SELECT * FROM totals ORDER BY customer").fetchall()
            assert totals == [("c0", 7 * run, 63 * run), ("c1", 7 * run, 70 * run), ("c2", 6 * run, 57 * run)]
