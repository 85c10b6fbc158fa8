"""Kafka settings as librdkafka and Spark options."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, BrokerMetadata
from pydantic import SecretStr, ValidationError

from clonos.errors import BrokerUnavailable, KafkaAccessDenied
from clonos.kafka import (
    REFUSALS,
    await_brokers,
    client_config,
    explained,
    java_flags,
    java_options,
    spark_options,
    topics_missing_error,
    unanswered,
    unreachable_broker,
)
from clonos.partition_offsets import partition_bounds
from clonos.settings import KafkaSettings


class Bounds:
    """A consumer that gives these answers one after the other."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self._answers = list(answers)

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout == 5.0
        return self._answers.pop(0)

    def poll(self, _timeout_s: float) -> None:
        assert self._answers, "no answer is left"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(3, 9)], (3, 9)),
        ([(0, 0)], (0, 0)),
        ([(9, 9), (3, 9)], (3, 9)),  # the request for the first offset failed
        ([(9, 9), (9, 9), (9, 9), (3, 9)], (9, 9)),  # it is empty
    ],
)
def test_an_empty_partition_is_asked_again(answers: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    assert partition_bounds(cast(Consumer, Bounds(*answers)), "t", 0, timeout_s=5.0) == expected


@pytest.mark.parametrize(
    ("codes", "refused"),
    [
        ([KafkaError._AUTHENTICATION, KafkaError._AUTHENTICATION], True),
        ([KafkaError._AUTHENTICATION], True),  # a slow login: only one in the whole time
        ([KafkaError._AUTHENTICATION, KafkaError._TRANSPORT], False),  # the broker died during the login
        ([KafkaError._TRANSPORT], False),
    ],
)
def test_a_refusal_is_repeated_or_the_last_answer(
    monkeypatch: pytest.MonkeyPatch, codes: list[int], refused: bool
) -> None:
    class Admin:
        def __init__(self, config: dict[str, Any]) -> None:
            self._errors = [KafkaError(code) for code in codes]
            self._report = config["error_cb"]

        def list_topics(self, timeout: float) -> None:
            if self._errors:
                self._report(self._errors.pop(0))
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        def poll(self, _timeout_s: float) -> None:
            pass

    monkeypatch.setattr("clonos.kafka.AdminClient", Admin)
    with pytest.raises(KafkaAccessDenied if refused else BrokerUnavailable):
        await_brokers(KafkaSettings(bootstrap_servers="a:1"), timeout_s=0.05)


def test_plaintext_has_no_security_options() -> None:
    kafka = KafkaSettings(bootstrap_servers="a:1,b:2")
    config = client_config(kafka)
    assert config["bootstrap.servers"] == "a:1,b:2"
    assert not [key for key in config if key.startswith(("sasl", "ssl", "security"))]
    assert spark_options(kafka) == {"kafka.bootstrap.servers": "a:1,b:2", "kafka.allow.auto.create.topics": "false"}


def test_overrides_replace_defaults() -> None:
    config = client_config(KafkaSettings(), group_id="g", retry_backoff_ms=9, log_level=3)
    assert (config["group.id"], config["retry.backoff.ms"], config["log_level"]) == ("g", 9, 3)
    assert "log.level" not in config


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_sasl_options_for_librdkafka_and_spark(mechanism: str, module: str) -> None:
    kafka = KafkaSettings.model_validate(
        {
            "bootstrap_servers": "a:1",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_username": "me",
            "sasl_password": "pass",
        }
    )
    config, options = client_config(kafka), spark_options(kafka)
    assert config["security.protocol"] == options["kafka.security.protocol"] == "SASL_SSL"
    assert config["sasl.mechanisms"] == options["kafka.sasl.mechanism"] == mechanism
    assert (config["sasl.username"], config["sasl.password"]) == ("me", "pass")
    assert options["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="me" password="pass";'
    )


@pytest.mark.parametrize("password", ['a"b', "a\\b", '\\"', "a;b c", "", 'x";evil="', "\\"])
def test_quotes_in_passwords_are_escaped(password: str) -> None:
    kafka = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username='u"',
        sasl_password=SecretStr(password),
    )
    jaas = spark_options(kafka)["kafka.sasl.jaas.config"]
    quoted = r'"((?:[^"\\]|\\.)*)"'
    match = re.fullmatch(rf"\S+ required username={quoted} password={quoted};", jaas)
    assert match is not None
    assert [re.sub(r"\\(.)", r"\1", text) for text in match.groups()] == ['u"', password]
    assert client_config(kafka)["sasl.password"] == password


def test_sasl_without_credentials_has_empty_options() -> None:
    kafka = KafkaSettings(security_protocol="SASL_SSL", sasl_mechanism="PLAIN")
    assert client_config(kafka)["sasl.password"] == ""
    assert 'username="" password=""' in spark_options(kafka)["kafka.sasl.jaas.config"]


def test_ssl_options_for_librdkafka_and_spark(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text("CERT")
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    kafka = KafkaSettings(
        security_protocol="SSL",
        ssl_ca_location=tmp_path / "ca.pem",
        ssl_certificate_location=certificate,
        ssl_key_location=key,
        ssl_key_password=SecretStr("secret"),
    )
    config, options = client_config(kafka), spark_options(kafka)
    assert config["ssl.ca.location"] == options["kafka.ssl.truststore.location"] == str(tmp_path / "ca.pem")
    assert config["ssl.certificate.location"] == str(certificate)
    assert config["ssl.key.location"] == str(key)
    assert config["ssl.key.password"] == options["kafka.ssl.key.password"] == "secret"
    assert options["kafka.ssl.truststore.type"] == options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.keystore.certificate.chain"] == "CERT"
    assert options["kafka.ssl.keystore.key"] == key.read_text()


@pytest.mark.parametrize("begin", ["RSA PRIVATE KEY", "EC PRIVATE KEY", "CERTIFICATE"])
def test_a_key_that_java_cannot_read_is_refused(tmp_path: Path, begin: str) -> None:
    key = tmp_path / "k.pem"
    key.write_text(f"-----BEGIN {begin}-----\nProc-Type: 4,ENCRYPTED\n")
    kafka = KafkaSettings(security_protocol="SSL", ssl_certificate_location=key, ssl_key_location=key)
    with pytest.raises(KafkaAccessDenied, match=f"{begin}.*PKCS#8") as refusal:
        spark_options(kafka)
    assert f"openssl pkcs8 -topk8 -in {key}" in refusal.value.hint


@pytest.mark.parametrize("field", ["ssl_ca_location", "ssl_certificate_location", "ssl_key_location"])
def test_a_file_that_librdkafka_cannot_read_is_a_typed_error(tmp_path: Path, field: str) -> None:
    kafka = KafkaSettings.model_validate(
        {"bootstrap_servers": "127.0.0.1:9", "security_protocol": "SSL", field: tmp_path / "missing.pem"}
    )
    with pytest.raises(KafkaAccessDenied, match=r"to Kafka are not usable.*missing\.pem is not a file"):
        await_brokers(kafka, timeout_s=0.1)


OAUTH = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token_url": "https://login.example/token",
    "sasl_oauth_client_id": "clonos",
    "sasl_oauth_client_secret": 'a"b',
    "sasl_oauth_scope": "kafka",
    "sasl_oauth_extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"},
}


def test_oauth_options_for_librdkafka_and_java() -> None:
    kafka = KafkaSettings.model_validate(OAUTH)
    config, options = client_config(kafka), java_options(kafka)
    assert {name: value for name, value in config.items() if name.startswith("sasl")} == {
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.client.id": "clonos",
        "sasl.oauthbearer.client.secret": 'a"b',
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    }
    AdminClient(config)  # librdkafka knows all of them
    assert options["sasl.mechanism"] == "OAUTHBEARER"
    assert options["sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert options["sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="clonos" clientSecret="a\\"b" scope="kafka" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1";'
    )
    assert java_flags(kafka) == ["-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=https://login.example/token"]
    assert java_flags(KafkaSettings()) == []
    assert kafka.secrets() == {"sasl_oauth_client_secret": 'a"b'}


@pytest.mark.parametrize("field", ["sasl_oauth_token_url", "sasl_oauth_client_id", "sasl_oauth_client_secret"])
def test_oauth_needs_an_endpoint_and_a_client(field: str) -> None:
    with pytest.raises(ValidationError, match="OAUTHBEARER needs"):
        KafkaSettings.model_validate({name: value for name, value in OAUTH.items() if name != field})


class Metadata:
    """What Kafka says about its brokers."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.brokers = {}
        for number, (host, port) in enumerate(addresses):
            broker = self.brokers[number] = BrokerMetadata()
            broker.id, broker.host, broker.port = number, host, port


@pytest.mark.parametrize(
    ("host", "port", "reason"), [("127.0.0.1", 9, "refused"), ("kafka.invalid", 9092, "kafka.invalid")]
)
def test_an_advertised_address_that_is_not_reachable_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str, port: int, reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        good = server.getsockname()
        assert unreachable_broker(cast("Any", Metadata(good))) is None
        one_is_down = cast("Any", Metadata((host, port), good))
        assert unreachable_broker(one_is_down, one_suffices=True) is None, "the other one may lead all partitions"
        assert unreachable_broker(one_is_down) is not None
        assert unreachable_broker(cast("Any", Metadata((host, port))), one_suffices=True) is not None
        monkeypatch.setattr("clonos.kafka.await_brokers", lambda *_, **__: Metadata(good, (host, port)))
        error = explained(KafkaSettings(), BrokerUnavailable("Kafka did not answer."))
    assert f"broker 1 at {host}:{port}" in error.what
    assert reason in error.what
    assert isinstance(error, BrokerUnavailable)
    assert "advertised.listeners" in error.hint
    other = KafkaAccessDenied("no")
    assert explained(KafkaSettings(), other) is other


def test_secrets_are_masked_in_repr() -> None:
    kafka = KafkaSettings(sasl_password=SecretStr("hush"), ssl_key_password=SecretStr("quiet"))
    assert "hush" not in repr(kafka)
    assert "quiet" not in str(kafka)


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_refusal_is_access_denied(code: int) -> None:
    error = unanswered("Kafka did not answer", KafkaError(code))
    assert type(error) is KafkaAccessDenied
    assert not error.retry


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_a_timeout_is_retried(code: int) -> None:
    error = unanswered("Kafka did not answer", KafkaError(code))
    assert type(error) is BrokerUnavailable
    assert error.retry


def test_a_missing_topic_has_similar_names_and_the_command_that_creates_it() -> None:
    known = ["lines", "totals", "__consumer_offsets", "clonos.liness.log"]
    typo = topics_missing_error("source", ["liness"], known)
    assert typo.what == "The source topic 'liness' does not exist; did you mean 'lines'?"
    assert "`clonos kafka create liness`" in typo.hint
    assert topics_missing_error("sink", ["other"], known).what == "The sink topic 'other' does not exist."
    both = topics_missing_error("source", ["liness", "total"], known)
    assert both.what == "The source topics 'liness', 'total' do not exist; did you mean 'lines', 'totals'?"
    assert "`clonos kafka create liness total`" in both.hint
