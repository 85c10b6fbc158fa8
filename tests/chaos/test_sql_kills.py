"""Kill, and stop and continue, real drivers that write to PostgreSQL, also inside of a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from drivers import JOBS, Feeder, JobRun, expected_counts

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually
from support.postgres import PostgresServer

POINTS = ("state-committed", "lane-produced", "lane-marked", "lane-committed", "epoch-committed")


def fresh(point: str, query: str) -> str:
    return f"{point},query={query},replay=False"


@pytest.fixture
def url(postgres: PostgresServer, name: str) -> str:
    url = postgres.create_database(name).replace("+psycopg", "")
    with psycopg.connect(url) as database:
        database.execute("CREATE TABLE plain (word TEXT, answer TEXT)")  # no key: it shows what is there twice
        database.execute("CREATE TABLE counts (letter TEXT PRIMARY KEY, n BIGINT)")
    return url


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path, url: str) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "sql.py", params, {"connections": {"crm": {"url": url}}})
    yield run
    run.end()


def read(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as database:
        return database.execute(query).fetchall()


@pytest.mark.turn(3, 7, 11)
@pytest.mark.chaos(fault="SIGKILL, SIGSTOP inside of a transaction", target="driver", topology="clonos run")
@pytest.mark.timeout(3000)
def test_a_driver_is_killed_and_paused_beside_and_inside_a_transaction(
    run: JobRun, url: str, every_point: bool
) -> None:
    killed = [fresh(point, query) for point in POINTS for query in ("plain", "counts")]
    stopped = [fresh(point, "plain") for point in POINTS]
    if not every_point:
        killed, stopped = [fresh("lane-marked", "counts")], [fresh("lane-produced", "plain")]
    with Feeder(run.kafka, run.params["input"], 3) as feeder:
        for fault in killed:
            driver = run.start(f"{fault}:kill")
            driver.await_fault(fault)
            driver.await_kill()
        zombies = []
        for fault in stopped:
            zombies.append(run.start(f"{fault}:stop"))
            zombies[-1].await_fault(fault)
        final = run.start()
        committed = len(run.events_of("epoch"))
        eventually(lambda: len(run.events_of("epoch")) > committed + 2, "the last one publishes", timeout_s=90)
        for zombie in zombies:
            zombie.resume()
            assert zombie.wait() != 0
    words = Counter(word for _, word in feeder.sent)
    eventually(lambda: read(url, "SELECT count(*) FROM plain")[0][0] >= len(feeder.sent), "all is there", timeout_s=90)
    counts = expected_counts(feeder.sent)
    eventually(lambda: dict(read(url, "SELECT * FROM counts")) == counts, "all is counted", timeout_s=60)
    final.stop_gracefully()
    rows = read(url, "SELECT word, answer FROM plain")
    assert Counter(word for word, _ in rows) == words
    assert len({answer for _, answer in rows}) == len(rows)
    assert all(answer.startswith(f"{word}-") for word, answer in rows)
