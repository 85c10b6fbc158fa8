"""The embedded broker with real processes: start, stop, crash, three brokers and authentication."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr
from typer.testing import CliRunner

from clonos.cli.kafka import app
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import Jars, ensure_jars
from clonos.embedded.layout import HOST
from clonos.errors import BrokerUnavailable, DirectoryInUse, KafkaAccessDenied, PortInUse
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def jars() -> Jars:
    return ensure_jars(Settings())


def create(kafka: KafkaSettings, topic: str) -> None:
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)


def send(kafka: KafkaSettings, topic: str, text: str) -> None:
    failures: list[Any] = []
    producer = Producer(client_config(kafka, acks="all", message_timeout_ms=60_000))
    producer.produce(topic, text, on_delivery=lambda error, message: failures.append(error))
    assert producer.flush(60) == 0
    assert failures == [None]


def texts(kafka: KafkaSettings, topic: str, count: int) -> list[str]:
    consumer = Consumer(client_config(kafka, group_id="t", auto_offset_reset="earliest", enable_auto_commit=False))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=20)
        return [(message.value() or b"").decode() for message in messages]
    finally:
        consumer.close()


@pytest.mark.turn
def test_one_broker_from_start_to_stop(jars: Jars, tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    runner, environment = CliRunner(), {"CLONOS_HOME": str(tmp_path)}
    cluster = EmbeddedKafka(home, jars=jars)
    try:
        with socket.socket() as server:
            server.bind((HOST, 0))
            server.listen()
            with pytest.raises(PortInUse):
                EmbeddedKafka(home, ports=[server.getsockname()[1]], jars=jars).start()

        # The broker continues to run after the process that started it has exited.
        answer = subprocess.run(
            [sys.executable, "-c", "from clonos.cli.kafka import app; app()", "start"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert answer.returncode == 0, answer.stderr
        assert cluster.bootstrap_servers in answer.stdout
        assert "broker.log" in answer.stdout
        create(cluster.kafka, "kept")
        send(cluster.kafka, "kept", "before")

        status = json.loads(runner.invoke(app, ["status", "-o", "json"], env=environment).stdout)
        assert status["running"]
        assert status["brokers"][0]["state"] == "running"
        assert status["bootstrap_servers"] == cluster.bootstrap_servers

        with pytest.raises(DirectoryInUse, match=cluster.bootstrap_servers):
            EmbeddedKafka(home, jars=jars).start()

        pid = status["brokers"][0]["pid"]
        assert runner.invoke(app, ["stop"], env=environment).exit_code == 0
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert "not running" in runner.invoke(app, ["status"], env=environment).stdout

        # The same data at the same address after a clean stop and after a crash.
        address = cluster.bootstrap_servers
        cluster.start()
        assert cluster.bootstrap_servers == address
        send(cluster.kafka, "kept", "after")
        cluster.kill(0)
        cluster.start_broker(0)
        assert texts(cluster.kafka, "kept", 2) == ["before", "after"]
    finally:
        cluster.stop()


def test_the_error_of_a_failed_start_names_the_cause(jars: Jars, tmp_path: Path) -> None:
    cluster = EmbeddedKafka(tmp_path / "kafka", jars=jars, properties={"log.segment.bytes": "1"})
    with pytest.raises(BrokerUnavailable, match=r"log\.segment\.bytes|segment"):
        cluster.start()
    assert not cluster.status().running


@pytest.mark.turn
def test_two_of_three_brokers_accept_records(jars: Jars, tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", brokers=3, jars=jars) as cluster:
        create(cluster.kafka, "safe")
        cluster.kill(1)
        assert [broker.state for broker in cluster.status().brokers] == ["running", "stopped", "running"]
        send(cluster.kafka, "safe", "two are enough")
        cluster.start_broker(1)
        await_brokers(cluster.kafka, brokers=3)
        cluster.pause(2)
        eventually(lambda: cluster.status().brokers[2].state == "paused", "paused")
        cluster.resume(2)
        eventually(lambda: cluster.status().brokers[2].state == "running", "resumed")
        assert texts(cluster.kafka, "safe", 1) == ["two are enough"]
    assert not cluster.status().running


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_clients_have_to_authenticate(mechanism: Any, jars: Jars, tmp_path: Path) -> None:
    client = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username="ada",
        sasl_password=SecretStr('1"2'),
    )
    with EmbeddedKafka(tmp_path / "kafka", jars=jars, client=client) as cluster:
        create(cluster.kafka, "private")
        send(cluster.kafka, "private", "hello")
        wrong = cluster.kafka.model_copy(update={"sasl_password": SecretStr("guess")})
        with pytest.raises(KafkaAccessDenied, match="Authentication failed"):
            await_brokers(wrong)
