"""Open transactions are listed with the jobs that own them, and can be aborted."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer
from typer.testing import CliRunner, Result

from clonos.agent.ending import end_transactions
from clonos.cli.app import app
from clonos.errors import ClonosError, SpecError
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import control_id, lane_id, owner_of
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction

MakeTopic = Callable[..., str]


def opened(kafka: KafkaSettings, transactional_id: str, topic: str) -> Producer:
    """A producer with an open transaction."""
    producer = Producer(client_config(kafka, transactional_id=transactional_id))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.flush(10)
    return producer


@pytest.fixture
def clonos(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)

    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(app, ["transactions", *arguments])
        if isinstance(done.exception, ClonosError):
            raise done.exception
        return done

    return run


def test_an_open_transaction_has_an_owner_and_can_be_aborted(
    kafka: KafkaSettings, clonos: Callable[..., Result], name: str, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(1, "out"), make_topic(1, "other")
    mine = opened(kafka, lane_id(name, "out", 0), topic)
    theirs = opened(kafka, f"{name}-theirs", other)
    listed = {row["id"]: row for row in json.loads(clonos("ls", "-o", "json").stdout)["data"]}
    row = listed[lane_id(name, "out", 0)]
    assert (row["job"], row["state"], row["topics"]) == (name, "Ongoing", [topic])
    assert listed[f"{name}-theirs"]["job"] == ""
    assert name in clonos("ls").stdout

    with pytest.raises(SpecError, match="no transactional id 'nowhere'"):
        clonos("abort", "nowhere", "--yes")
    assert clonos("abort", "--job", name, "--yes").stdout.split() == [lane_id(name, "out", 0)]
    eventually(lambda: not has_open_transaction(kafka, topic), "readers do not wait")
    assert has_open_transaction(kafka, other)
    with pytest.raises(KafkaException):
        mine.commit_transaction(10)
    theirs.commit_transaction(10)
    rest = [row["id"] for row in json.loads(clonos("ls", "-o", "json").stdout)["data"]]
    assert not {lane_id(name, "out", 0), f"{name}-theirs"} & set(rest)


def test_the_transactions_of_a_killed_driver_are_ended(kafka: KafkaSettings, name: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1, "out")
    assert end_transactions(kafka, name) == 0, "it never ran"
    claim(kafka, name).ensure_lanes("out", 2)
    killed = opened(kafka, lane_id(name, "out", 1), topic)
    assert has_open_transaction(kafka, topic)
    assert end_transactions(kafka, name) == 3
    eventually(lambda: not has_open_transaction(kafka, topic), "readers do not wait")
    with pytest.raises(KafkaException):
        killed.commit_transaction(10)
    claim(kafka, name)


@pytest.mark.parametrize(
    ("transactional_id", "job"),
    [
        (control_id("orders"), "orders"),
        (lane_id("orders", "by-hour", 12), "orders"),
        ("clonos.orders", ""),
        ("clonos.orders.out.x", ""),
        ("other.orders.out.0", ""),
        ("", ""),
    ],
)
def test_the_owner_of_a_transactional_id(transactional_id: str, job: str) -> None:
    assert owner_of(transactional_id) == job
