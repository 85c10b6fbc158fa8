"""Configuration of Kafka clients from `KafkaSettings`, in the names of librdkafka and of Spark; and small client
helpers.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from clonos.errors import BrokerUnavailable, KafkaAccessDenied, TopicMissing
from clonos.settings import KafkaSettings

ClientConfig = dict[str, str | int | float | bool]
_FULL_QUEUE_POLL_S: Final = 0.05

# For short-lived clients in every epoch: reconnect and retry at once instead of in librdkafka's steps of 100 ms
# (measured: init_transactions 55 ms with the defaults, 15 ms with these).
IMPATIENT: Mapping[str, str | int | float | bool] = {
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 2,
    "topic.metadata.refresh.fast.interval.ms": 5,
    "enable.metrics.push": False,
    # A mistyped topic must be an error: by default brokers create each topic that a client requests.
    "allow.auto.create.topics": False,
    # Failures are raised as errors; librdkafka would also print each failed connection attempt.
    "log_level": 0,
    "socket.nagle.disable": True,
}

# An idempotent producer with one request at a time: the next record cannot overtake one that failed (`undelivered`).
SEQUENTIAL: Mapping[str, str | int | float | bool] = {
    "enable_idempotence": True,
    "max_in_flight_requests_per_connection": 1,
}


def client_config(kafka: KafkaSettings, **overrides: str | int | float | bool) -> ClientConfig:
    """Configuration for a confluent-kafka client. Keys of `overrides` have ``_`` in place of ``.``."""
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
    # log_level is the only property of librdkafka with an underscore.
    config.update({name if name == "log_level" else name.replace("_", "."): v for name, v in overrides.items()})
    return config


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """The Kafka settings as ``kafka.*`` options of Spark's Kafka source."""
    options = {f"kafka.{name}": value for name, value in java_options(kafka).items()}
    return options | {"kafka.allow.auto.create.topics": "false"}


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """The options with which Kafka's Java clients connect."""
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    if kafka.security_protocol != "PLAINTEXT":
        options["security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism:
        options["sasl.mechanism"] = kafka.sasl_mechanism
        module = "scram.ScramLoginModule" if kafka.sasl_mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
        password = kafka.sasl_password.get_secret_value() if kafka.sasl_password else ""
        options["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={jaas_quoted(kafka.sasl_username or '')} password={jaas_quoted(password)};"
        )
    if kafka.ssl_ca_location:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.location"] = str(kafka.ssl_ca_location)
    if kafka.ssl_certificate_location and kafka.ssl_key_location:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = kafka.ssl_certificate_location.read_text()
        options["ssl.keystore.key"] = kafka.ssl_key_location.read_text()
        if kafka.ssl_key_password:
            options["ssl.key.password"] = kafka.ssl_key_password.get_secret_value()
    return options


def produce(producer: Producer, topic: str, value: bytes | None, key: bytes | None = None, **options: Any) -> None:
    """Queue one record in `producer`; wait while its queue is full.

    Args:
        producer: The producer.
        topic: The record's topic.
        value: The record's value.
        key: The record's key.
        options: Further arguments of `Producer.produce`, such as ``partition`` or ``on_delivery``.

    Raises:
        KafkaException: librdkafka refused the record.
    """
    while True:
        try:
            producer.produce(topic, value, key, **options)
            return
        except BufferError:
            producer.poll(_FULL_QUEUE_POLL_S)


def undelivered(error: KafkaError | None, message: Message) -> str | None:
    """Why a record is not certainly in its topic, for the ``on_delivery`` of an idempotent producer; None: it is.

    librdkafka also reports success, without an offset, for a record whose request failed while the next one succeeded
    (``rd_kafka_dr_implicit_ack``): it assumes that the broker has both. But a broker accepts any first sequence number
    of a producer that it does not know (KIP-360), so the first record may be missing. The success of a record that the
    broker has already (``DUPLICATE_SEQUENCE_NUMBER``) has no offset either.

    Args:
        error: The error that librdkafka reports.
        message: The record.

    Example::

        def delivered(error, message):
            if (failure := undelivered(error, message)) is not None:
                failures.append(failure)

        producer.produce(topic, value, on_delivery=delivered)
    """
    if error is not None:
        return error.str()
    offset = message.offset()
    return None if offset is not None and offset >= 0 else "an acknowledgement without an offset"


def admin_client(kafka: KafkaSettings, topic: str, *, timeout_s: float = 5.0) -> AdminClient:
    """A new admin client that knows the leaders of a topic's partitions.

    Without this, a first request that needs the leaders waits three seconds if it comes before the brokers' metadata:
    on a busy machine, one in fifteen does. The caller keeps the client until the futures of its requests are done.

    Args:
        kafka: The Kafka cluster.
        topic: The topic; it may be missing.
        timeout_s: Longest wait for the metadata.

    Raises:
        KafkaException: Kafka did not answer.
    """
    admin = AdminClient(client_config(kafka))
    admin.list_topics(topic, timeout=timeout_s)
    return admin


def topics_missing(kafka: KafkaSettings, names: Iterable[str]) -> list[str]:
    """Those of `names` that do not exist as topics.

    Raises:
        BrokerUnavailable: No broker answered.
    """
    try:
        known = AdminClient(client_config(kafka)).list_topics(timeout=15).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return [name for name in names if name not in known or known[name].error is not None]


def topics_missing_error(kind: str, missing: Sequence[str], known: Iterable[str]) -> TopicMissing:
    """The error about topics that do not exist, with similar names and the command that creates them.

    Args:
        kind: What they are, such as ``source``.
        missing: Their names; at least one.
        known: Names of existing topics.
    """
    names = [name for name in known if not name.startswith(("__", "clonos."))]
    similar = dict.fromkeys(close for topic in missing for close in difflib.get_close_matches(topic, names, 1))
    what = f"topics {_quoted(missing)} do not exist" if len(missing) > 1 else f"topic {missing[0]!r} does not exist"
    return TopicMissing(
        f"The {kind} {what}" + (f"; did you mean {_quoted(similar)}?" if similar else "."),
        kept="nothing was started.",
        hint=f"correct the name, or run `clonos kafka create {' '.join(missing)}`; --partitions sets their number.",
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def jaas_quoted(text: str) -> str:
    """Quote a value for Java's Kafka setting ``sasl.jaas.config``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Permanent errors: authentication failed, or the user lacks a permission.
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


def unanswered(problem: str, error: KafkaError) -> KafkaAccessDenied | BrokerUnavailable:
    """Convert the error of a Kafka request (`problem` describes the request) to a typed error: refused, or not
    answered.
    """
    if error.code() in REFUSALS:
        return KafkaAccessDenied(f"{problem}, access was refused: {error.str()}.")
    return BrokerUnavailable(f"{problem}: {error.str()}.")


def await_brokers(kafka: KafkaSettings, *, brokers: int = 1, timeout_s: float = 30.0) -> ClusterMetadata:
    """Wait until at least `brokers` brokers answer a metadata request.

    Raises:
        BrokerUnavailable: Too few brokers answered within `timeout_s` seconds.
        KafkaAccessDenied: A broker refused access.
    """
    cluster = f"Kafka at {kafka.bootstrap_servers or '(no address set)'}"
    errors: list[KafkaError] = []  # a request reports only its timeout, not the cause
    config: dict[str, Any] = {**client_config(kafka, log_level=0), "error_cb": errors.append}
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
        refused = [error for error in errors if error.code() in REFUSALS]
        if len(refused) > 1:  # a connection that is lost during the login counts as a refusal, once
            raise unanswered(f"{cluster} refused the connection", refused[-1])
    causes = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
    if causes and causes[-1].code() in REFUSALS:  # a slow login: there was no time for a second one
        raise unanswered(f"{cluster} refused the connection", causes[-1])
    raise BrokerUnavailable(f"{cluster} did not answer: {causes[-1].str() if causes else reason}.")
