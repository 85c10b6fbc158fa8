"""`clonos kafka create`, `produce` and `consume` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from clonos.cli.app import app
from clonos.errors import TopicMissing
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

Run = Callable[..., Result]


@pytest.fixture
def run(kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        result = CliRunner().invoke(app, ["kafka", *arguments], input=stdin)
        if result.exception is not None:
            raise result.exception
        return result

    return run


def read(run: Run, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("consume", topic, "-o", "json").stdout.splitlines()]


def test_consume_prints_the_produced_records(run: Run, name: str) -> None:
    assert run("create", name, f"{name}-2", "-p", "2").stdout.splitlines() == [f"{name} created", f"{name}-2 created"]
    assert run("create", name, "-p", "5").stdout == f"{name} exists already\n"
    lines = [f"k{number}\tvalue {number}\ttab".encode() for number in range(50)]
    run("produce", name, stdin=b"\n".join([*lines, "only ä value".encode()]) + b"\n")

    records = read(run, name)
    assert {record["partition"] for record in records} == {0, 1}, "five would mean that an old topic was changed"
    assert sorted((record["key"], record["value"]) for record in records if record["key"]) == sorted(
        (f"k{number}", f"value {number}\ttab") for number in range(50)
    )
    assert [record["value"] for record in records if not record["key"]] == ["only ä value"]
    assert sorted(run("consume", name).stdout.splitlines()) == sorted(
        f"{record['key'] or ''}\t{record['value']}" for record in records
    )
    assert read(run, f"{name}-2") == []


def test_consume_prints_only_committed_records(run: Run, kafka: KafkaSettings, name: str) -> None:
    run("create", name, "-p", "1")
    producer = Producer(client_config(kafka, transactional_id=name))
    producer.init_transactions()
    for text, end in (("lost", producer.abort_transaction), ("kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(name, text)
        assert producer.flush(10) == 0
        end()
    assert [record["value"] for record in read(run, name)] == ["kept"]


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_a_missing_topic_is_not_created(run: Run, name: str, verb: str) -> None:
    with pytest.raises(TopicMissing, match=f"clonos kafka create {name}"):
        run(verb, name)
    with pytest.raises(TopicMissing):
        run("consume", name)
