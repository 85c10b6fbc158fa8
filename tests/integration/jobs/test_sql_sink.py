"""The sink for databases: its contract on SQLite and PostgreSQL, upserts, zombies, outages, and rows that are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from pyspark.sql import SparkSession

from clonos.faults import LANE_POINTS
from clonos.jobs.spec import Connection
from clonos.settings import KafkaSettings
from clonos.testing.sink_contract import Seen, SinkContract
from clonos_sinks.sql import SqlSink
from support.postgres import PostgresServer

pytestmark = pytest.mark.timeout(3000)
BEFORE = ("lane-decided", "lane-begun", "state-committed")
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


class TestSqlite(SqliteContract):
    def test_a_zombie_between_any_two_steps(self) -> None:
        type(self).points = tuple(point for point in self.points if point not in INSIDE)  # it locks the file
        super().test_a_zombie_between_any_two_steps()


class TestPostgres(SinkContract):
    points = SqliteContract.points

    @pytest.fixture(autouse=True)
    def _database(self, postgres: PostgresServer, name: str, _staged: None) -> Iterator[None]:
        yield

    @pytest.fixture(autouse=True)
    def _staged(self, spark: SparkSession, kafka: KafkaSettings, tmp_path: Path, postgres: PostgresServer, name: str) -> None:
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
