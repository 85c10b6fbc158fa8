"""Client configuration for Kafka, in one place: librdkafka's and Spark's names for the same settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from clonos.errors import BrokerUnavailable, CredentialsRefused
from clonos.settings import KafkaSettings

ClientConfig = dict[str, str | int | float | bool]

# Short-lived clients on the path of every epoch: reconnect and retry at once instead of librdkafka's
# 100 ms steps (measured: init_transactions 55 ms with defaults, 15 ms with these).
IMPATIENT: Mapping[str, str | int | float | bool] = {
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 2,
    "topic.metadata.refresh.fast.interval.ms": 5,
    "enable.metrics.push": False,
    # A topic that somebody mistyped must be missed, not made: brokers create by default whatever is asked for.
    "allow.auto.create.topics": False,
    # What matters is raised as an error; librdkafka would also print each failed connection attempt.
    "log_level": 0,
    "socket.nagle.disable": True,
}


def client_config(kafka: KafkaSettings, **overrides: str | int | float | bool) -> ClientConfig:
    """Configuration for a confluent-kafka client; `overrides` use ``_`` for ``.``."""
    config: ClientConfig = {"bootstrap.servers": kafka.bootstrap_servers, **IMPATIENT}
    if kafka.security_protocol != "PLAINTEXT":
        config["security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism:
        config["sasl.mechanisms"] = kafka.sasl_mechanism
        config["sasl.username"] = kafka.sasl_username or ""
        config["sasl.password"] = kafka.sasl_password.get_secret_value() if kafka.sasl_password else ""
    if kafka.ssl_ca_location:
        config["ssl.ca.location"] = str(kafka.ssl_ca_location)
    if kafka.ssl_certificate_location:
        config["ssl.certificate.location"] = str(kafka.ssl_certificate_location)
    if kafka.ssl_key_location:
        config["ssl.key.location"] = str(kafka.ssl_key_location)
    if kafka.ssl_key_password:
        config["ssl.key.password"] = kafka.ssl_key_password.get_secret_value()
    # log_level is librdkafka's one property that is spelt with an underscore.
    config.update({name if name == "log_level" else name.replace("_", "."): v for name, v in overrides.items()})
    return config


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """The same settings as ``kafka.*`` options of Spark's Kafka source."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.allow.auto.create.topics": "false"}
    if kafka.security_protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism:
        options["kafka.sasl.mechanism"] = kafka.sasl_mechanism
        module = "scram.ScramLoginModule" if kafka.sasl_mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
        password = kafka.sasl_password.get_secret_value() if kafka.sasl_password else ""
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_jaas_quoted(kafka.sasl_username or '')} password={_jaas_quoted(password)};"
        )
    if kafka.ssl_ca_location:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = str(kafka.ssl_ca_location)
    if kafka.ssl_certificate_location and kafka.ssl_key_location:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = kafka.ssl_certificate_location.read_text()
        options["kafka.ssl.keystore.key"] = kafka.ssl_key_location.read_text()
        if kafka.ssl_key_password:
            options["kafka.ssl.key.password"] = kafka.ssl_key_password.get_secret_value()
    return options


def topics_missing(kafka: KafkaSettings, names: Iterable[str]) -> list[str]:
    """Those of `names` that are no topics.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    try:
        known = AdminClient(client_config(kafka)).list_topics(timeout=15).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return [name for name in names if name not in known or known[name].error is not None]


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Answers that no second question changes: who we are is not believed, or not allowed to do it.
REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def unanswered(what: str, error: KafkaError) -> CredentialsRefused | BrokerUnavailable:
    """The typed error for a request that Kafka refused or did not answer."""
    if error.code() in REFUSALS:
        return CredentialsRefused(f"{what}, it refuses us: {error.str()}.")
    return BrokerUnavailable(f"{what}: {error.str()}.")


def await_brokers(kafka: KafkaSettings, *, brokers: int = 1, timeout_s: float = 30.0) -> ClusterMetadata:
    """Wait until at least `brokers` brokers answer a metadata request.

    Raises:
        BrokerUnavailable: None answered within `timeout_s` seconds.
        CredentialsRefused: One answered, but does not let us in.
    """
    where = f"Kafka at {kafka.bootstrap_servers or '(no address set)'}"
    heard: list[KafkaError] = []  # a request only tells that it timed out, not why
    config: dict[str, Any] = {**client_config(kafka, log_level=0), "error_cb": heard.append}
    admin = AdminClient(config)
    deadline = time.monotonic() + timeout_s
    reason = "no answer"
    while time.monotonic() < deadline:
        try:
            metadata = admin.list_topics(timeout=min(1.0, timeout_s))
            if len(metadata.brokers) >= brokers:
                return metadata
            reason = f"{len(metadata.brokers)} of {brokers} brokers are up"
        except KafkaException as error:
            reason = str(error.args[0].str())
        admin.poll(0.02)
        refused = [error for error in heard if error.code() in REFUSALS]
        if refused:
            raise unanswered(f"{where} did not let us in", refused[-1])
    told = [error.str() for error in heard if error.code() != KafkaError._ALL_BROKERS_DOWN]
    raise BrokerUnavailable(f"{where} did not answer: {told[-1] if told else reason}.")
