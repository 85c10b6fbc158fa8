"""The embedded broker with real processes: start, stop, crash, three brokers and authentication."""

from __future__ import annotations

import json
import os
import re
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
from clonos.embedded.layout import HOST, server_properties
from clonos.errors import BrokerUnavailable, DirectoryInUse, KafkaAccessDenied, PortInUse
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually, read_committed
from support.token_endpoint import token_endpoint

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


@pytest.mark.turn
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


COPY = """
import clonos

@clonos.service
def asked(word: str) -> str:
    return word

@clonos.udf("string")
def judge(value):
    return asked(value.decode())

@clonos.job(name="oauth", trigger={"availableNow": True})
def go(ctx):
    ctx.sink(ctx.source("in").select(judge("value").alias("value")), topic="out")
"""


def clonos(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clonos", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240)


@pytest.mark.turn
def test_a_job_logs_in_with_tokens_of_an_openid_provider(
    jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of Python, of workers and of Spark get tokens; the broker checks their signatures."""
    with token_endpoint("clonos", "s:cret") as endpoint:
        client = KafkaSettings(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_url=endpoint.url,
            sasl_oauth_client_id="clonos",
            sasl_oauth_client_secret=SecretStr("s:cret"),
            sasl_oauth_scope="kafka",
        )
        package, listener = "org.apache.kafka.common.security.oauthbearer", "listener.name.client.oauthbearer"
        claim = 'unsecuredLoginStringClaim_sub="b"'
        properties = {
            f"{listener}.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
            f"{listener}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required {claim};",
            "sasl.oauthbearer.jwks.endpoint.url": endpoint.keys_url,
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        # Only for the broker: the clients must allow the endpoint themselves.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys_url}"
        monkeypatch.setenv("JDK_JAVA_OPTIONS", allowed)
        cluster = EmbeddedKafka(tmp_path / "kafka", jars=jars, client=client, properties=properties)
        with cluster:
            monkeypatch.delenv("JDK_JAVA_OPTIONS")
            environment = {
                "CLONOS_HOME": str(tmp_path),
                "CLONOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
                "CLONOS_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "CLONOS_KAFKA__SASL_MECHANISM": "OAUTHBEARER",
                "CLONOS_KAFKA__SASL_OAUTH_TOKEN_URL": endpoint.url,
                "CLONOS_KAFKA__SASL_OAUTH_CLIENT_ID": "clonos",
                "CLONOS_KAFKA__SASL_OAUTH_CLIENT_SECRET": "s:cret",
                "CLONOS_KAFKA__SASL_OAUTH_SCOPE": "kafka",
            }
            assert clonos(environment, "kafka", "create", "in", "out").returncode == 0
            send(cluster.kafka, "in", "hello")
            (tmp_path / "job.py").write_text(COPY)
            ran = clonos(environment, "run", str(tmp_path / "job.py"), "--plain")
            assert ran.returncode == 0, ran.stderr[-4000:]
            assert [(message.value() or b"").decode() for message in read_committed(cluster.kafka, "out")] == ["hello"]
            listed = clonos(environment, "transactions", "ls")
            assert listed.returncode == 0, listed.stderr
            assert set(endpoint.scopes) == {"kafka"}
            wrong = cluster.kafka.model_copy(update={"sasl_oauth_client_secret": SecretStr("guess")})
            with pytest.raises(KafkaAccessDenied, match=r"invalid_client|401"):
                await_brokers(wrong, timeout_s=5.0)


@pytest.mark.turn
def test_an_advertised_address_that_is_not_reachable_is_named(
    jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misconfigured(*arguments: Any, **options: Any) -> dict[str, str]:
        properties = server_properties(*arguments, **options)
        advertised = properties["advertised.listeners"]
        return properties | {"advertised.listeners": re.sub(r"CLIENT://[^,]+", "CLIENT://127.0.0.1:9", advertised)}

    monkeypatch.setattr("clonos.embedded.broker.server_properties", misconfigured)
    with EmbeddedKafka(tmp_path / "kafka", jars=jars) as cluster:
        where = {"CLONOS_HOME": str(tmp_path / "home"), "CLONOS_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        (tmp_path / "job.py").write_text(COPY)
        for command in (["kafka", "create", "x"], ["kafka", "consume", "x"], ["run", str(tmp_path / "job.py")]):
            refused = clonos(where, *command)
            assert refused.returncode == BrokerUnavailable.exit_code, refused.stderr
            assert "broker 0 at 127.0.0.1:9" in refused.stderr
            assert "advertised.listeners" in refused.stderr
        checked = clonos(where, "doctor")
        assert "broker 0 at 127.0.0.1:9" in checked.stdout
        assert "advertised.listeners" in checked.stdout
        assert "report this line" not in checked.stdout
