"""Stateful jobs with and without takeovers by standbys publish the same output."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from drivers import JOBS, JobRun, make_topics
from standbys import Standbys

from clonos.kafka import SEQUENTIAL, client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed

pytestmark = [pytest.mark.timeout(3000)]

PARTITIONS, KEYS = 3, 6
ORDERS, PER_EPOCH = 180, 30
BEGIN_S = 1_700_000_000  # the beginning of a window
QUERIES = ("sums", "spells")


def feed(kafka: KafkaSettings, orders: str, payments: str) -> None:
    """Produce one order per second; every fourth is never paid. Much later records close all windows."""
    producer = Producer(client_config(kafka, **SEQUENTIAL))

    def produce(topic: str, number: int, second: int) -> None:
        value = {"key": f"k{number % KEYS}", "at_ms": (BEGIN_S + second) * 1000, "amount": number}
        producer.produce(topic, json.dumps(value), partition=number % PARTITIONS)

    for number in range(ORDERS):
        produce(orders, number, number)
        if number % 4:
            produce(payments, number, number + 4)
    for number in range(PARTITIONS):
        for topic in (orders, payments):
            produce(topic, ORDERS + number, ORDERS + 3600)
    assert producer.flush(30) == 0


class Golden:
    """Runs of one job over one input.

    Args:
        kafka: The Kafka cluster.
        name: Unique.
        home: An empty folder.
    """

    def __init__(self, kafka: KafkaSettings, name: str, home: Path) -> None:
        self._kafka = kafka
        self._name = name
        self._home = home
        self._input = make_topics(kafka, **{f"{name}-{role}": PARTITIONS for role in ("orders", "payments")})
        feed(kafka, *self._input.values())
        self.runs: list[JobRun] = []

    def run(self, which: str) -> JobRun:
        """Define a run with its own topics and checkpoints."""
        name = f"{self._name}-{which}"
        output = make_topics(self._kafka, **{f"{name}-{query}": 2 for query in QUERIES})
        params = dict(zip(("orders", "payments", *QUERIES), [*self._input, *output], strict=True))
        run = JobRun(
            self._kafka,
            name,
            self._home / which,
            JOBS / "stateful.py",
            {**params, "per_epoch": str(PER_EPOCH)},
            {"trigger": {"availableNow": True}},
        )
        self.runs.append(run)
        return run

    def published(self, run: JobRun, query: str) -> Counter[tuple[str, str]]:
        """The records that a read_committed reader gets."""
        assert not has_open_transaction(self._kafka, run.params[query]), "no transaction is open"
        rows = read_committed(self._kafka, run.params[query])
        return Counter(((row.key() or b"").decode(), (row.value() or b"").decode()) for row in rows)


@pytest.mark.chaos(fault="SIGKILL", target="driver, standby", topology="clonos run --standby, stateful job")
@pytest.mark.full
def test_takeovers_do_not_change_the_output(kafka: KafkaSettings, name: str, tmp_path: Path) -> None:
    golden = Golden(kafka, name, tmp_path)
    try:
        whole, torn = golden.run("whole"), golden.run("torn")
        faults = ("state-committed,query=spells,epoch=2", "lane-committed,query=sums,epoch=4,replay=False")
        standbys = Standbys(torn)
        first, first_pipe = standbys.start(f"{faults[1]}:kill")
        assert whole.start().wait(180) == 0  # the standby warms up in the meantime
        torn.start(f"{faults[0]}:kill").await_kill()
        standbys.await_ready(first)
        standbys.promote(first_pipe)
        second, second_pipe = standbys.start()
        first.await_kill()
        standbys.promote(second_pipe)
        assert second.wait(180) == 0, second.tail()
    finally:
        for run in golden.runs:
            run.end()
    assert [event["generation"] for event in torn.events_of("claimed")] == [1, 2, 3]
    assert any(event["replay"] for event in torn.events_of("epoch"))
    for query in QUERIES:
        expected = golden.published(whole, query)
        eventually(lambda query=query: not has_open_transaction(kafka, torn.params[query]), "no transaction is open")
        assert golden.published(torn, query) == expected, query
    check(golden, whole)


def check(golden: Golden, whole: JobRun) -> None:
    """Check that the uninterrupted run has the expected sums, and carried state from epoch to epoch."""

    def values(query: str) -> list[dict[str, Any]]:
        return [json.loads(value) for _, value in golden.published(whole, query).elements()]

    assert max(event["epoch"] for event in whole.events_of("epoch")) >= ORDERS // PER_EPOCH - 1
    sums = [row for row in values("sums") if row["begin"] < BEGIN_S + ORDERS]
    for field, expected in {
        "orders": ORDERS,
        "paid": sum(number % 4 > 0 for number in range(ORDERS)),
        "total": sum(range(ORDERS)),
    }.items():
        assert sum(row[field] for row in sums) == expected, field
    spells = values("spells")
    assert sum(row["n"] for row in spells if row["over"]) >= ORDERS
    assert sum(not row["over"] for row in spells) == ORDERS + PARTITIONS
