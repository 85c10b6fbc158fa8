"""Jobs with state, whole and interrupted: takeovers by standbys leave the output that nobody disturbed would have."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from drivers import JOBS, JobRun, make_topics
from standing import Standing

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from observe import ends_agree, eventually, read_committed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

PARTITIONS, KEYS = 3, 6
ORDERS, PER_EPOCH = 180, 30
BEGIN_S = 1_700_000_000  # the beginning of a window
QUERIES = ("sums", "spells")


def feed(kafka: KafkaSettings, orders: str, payments: str) -> None:
    """Orders one a second; every fourth is never paid. The last ones come long after, so that all windows close."""
    producer = Producer(client_config(kafka, enable_idempotence=True))

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
        kafka: The cluster.
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
        """A run with topics and checkpoints of its own."""
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
        """What a read_committed reader gets."""
        assert ends_agree(self._kafka, run.params[query]), "no transaction is open"
        rows = read_committed(self._kafka, run.params[query])
        return Counter(((row.key() or b"").decode(), (row.value() or b"").decode()) for row in rows)


@pytest.mark.story
def test_takeovers_change_nothing(kafka: KafkaSettings, name: str, tmp_path: Path) -> None:
    golden = Golden(kafka, name, tmp_path)
    try:
        whole, torn = golden.run("whole"), golden.run("torn")
        faults = ("state-committed,query=spells,epoch=2", "lane-committed,query=sums,epoch=4,replay=False")
        standing = Standing(torn)
        first, one = standing.start(f"{faults[1]}:kill")
        assert whole.start().wait(180) == 0  # while it warms up
        torn.start(f"{faults[0]}:kill").died()
        standing.await_ready(first)
        standing.promote(one)
        second, other = standing.start()
        first.died()
        standing.promote(other)
        assert second.wait(180) == 0, second.tail()
    finally:
        for run in golden.runs:
            run.end()
    assert [one["generation"] for one in torn.told("claimed")] == [1, 2, 3]
    assert any(one["replay"] for one in torn.told("epoch"))
    for query in QUERIES:
        expected = golden.published(whole, query)
        eventually(lambda query=query: ends_agree(kafka, torn.params[query]), "no transaction is open")
        assert golden.published(torn, query) == expected, query
    check(golden, whole)


def check(golden: Golden, whole: JobRun) -> None:
    """The undisturbed run is right, and its state lasted from epoch to epoch."""

    def values(query: str) -> list[dict[str, Any]]:
        return [json.loads(value) for _, value in golden.published(whole, query).elements()]

    assert max(one["epoch"] for one in whole.told("epoch")) >= ORDERS // PER_EPOCH - 1
    sums = [one for one in values("sums") if one["begin"] < BEGIN_S + ORDERS]
    for what, expected in {
        "orders": ORDERS,
        "paid": sum(one % 4 > 0 for one in range(ORDERS)),
        "total": sum(range(ORDERS)),
    }.items():
        assert sum(one[what] for one in sums) == expected, what
    spells = values("spells")
    assert sum(one["n"] for one in spells if one["over"]) >= ORDERS
    assert sum(not one["over"] for one in spells) == ORDERS + PARTITIONS
