"""Configuration of Kafka clients from `KafkaSettings`, in the names of librdkafka and of Spark; and small client
helpers.
"""

from __future__ import annotations

import contextlib
import difflib
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, BrokerMetadata, ClusterMetadata

from clonos.deadline import Deadline
from clonos.errors import BrokerUnavailable, ClonosError, KafkaAccessDenied, TopicMissing
from clonos.settings import KafkaSettings

ClientConfig = dict[str, str | int | float | bool]
_FULL_QUEUE_POLL_S: Final = 0.05
_REACHED_S: Final = 3.0
_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"

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
    """Return configuration for a confluent-kafka client. Keys of `overrides` have ``_`` instead of ``.``."""
    config: ClientConfig = {"bootstrap.servers": kafka.bootstrap_servers, **IMPATIENT}
    if kafka.security_protocol != "PLAINTEXT":
        config["security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism:
        config["sasl.mechanisms"] = kafka.sasl_mechanism
    if kafka.sasl_mechanism == "OAUTHBEARER":
        config["sasl.oauthbearer.method"] = "oidc"
        config["sasl.oauthbearer.token.endpoint.url"] = kafka.sasl_oauth_token_url
        config["sasl.oauthbearer.client.id"] = kafka.sasl_oauth_client_id
        config["sasl.oauthbearer.client.secret"] = kafka.secrets()["sasl_oauth_client_secret"]
        if kafka.sasl_oauth_scope:
            config["sasl.oauthbearer.scope"] = kafka.sasl_oauth_scope
        if kafka.sasl_oauth_extensions:
            extensions = kafka.sasl_oauth_extensions.items()
            config["sasl.oauthbearer.extensions"] = ",".join(f"{name}={value}" for name, value in extensions)
    elif kafka.sasl_mechanism:
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


def assigned_reader(kafka: KafkaSettings, group: str, **overrides: str | int | float | bool) -> Consumer:
    """Return a read_committed consumer of partitions that the caller assigns; it joins no group and commits nothing.

    librdkafka requires the name of a group, and looks for its coordinator: with the job's prefix, the documented rights
    of the job cover it. A user without rights on the group gets errors from `Consumer.poll` that concern nothing else:
    see `about_the_group`. `overrides` are further settings, as for `client_config`.
    """
    options: ClientConfig = {"group_id": group, "isolation_level": "read_committed", "enable_auto_commit": False}
    return Consumer(client_config(kafka, **{**options, **overrides}))


def about_the_group(error: KafkaError) -> bool:
    """Whether an error of an `assigned_reader` only says that its user has no rights on the group."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the Kafka settings as ``kafka.*`` options of Spark's Kafka source."""
    options = {f"kafka.{name}": value for name, value in java_options(kafka).items()}
    return options | {"kafka.allow.auto.create.topics": "false"}


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """Return the options that Kafka's Java clients need to connect."""
    options = {"bootstrap.servers": kafka.bootstrap_servers}
    if kafka.security_protocol != "PLAINTEXT":
        options["security.protocol"] = kafka.security_protocol
    if kafka.sasl_mechanism:
        options["sasl.mechanism"] = kafka.sasl_mechanism
    if kafka.sasl_mechanism == "OAUTHBEARER":
        options["sasl.oauthbearer.token.endpoint.url"] = kafka.sasl_oauth_token_url
        # The default one also checks signatures, and needs a library that Spark does not have; the broker checks them.
        options["sasl.oauthbearer.jwt.validator.class"] = f"{_OAUTH_PACKAGE}.ClientJwtValidator"
        options["sasl.login.callback.handler.class"] = f"{_OAUTH_PACKAGE}.OAuthBearerLoginCallbackHandler"
        login = {"clientId": kafka.sasl_oauth_client_id, "clientSecret": kafka.secrets()["sasl_oauth_client_secret"]}
        login |= {"scope": kafka.sasl_oauth_scope} if kafka.sasl_oauth_scope else {}
        login |= {f"extension_{name}": value for name, value in kafka.sasl_oauth_extensions.items()}
        quoted = " ".join(f"{name}={jaas_quoted(value)}" for name, value in login.items())
        options["sasl.jaas.config"] = f"{_OAUTH_PACKAGE}.OAuthBearerLoginModule required {quoted};"
    elif kafka.sasl_mechanism:
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
        options["ssl.keystore.key"] = _java_key(kafka.ssl_key_location)
        if kafka.ssl_key_password:
            options["ssl.key.password"] = kafka.ssl_key_password.get_secret_value()
    return options


def java_flags(kafka: KafkaSettings) -> list[str]:
    """Return flags of a JVM with Kafka clients, which ask only permitted token endpoints (since Kafka 4)."""
    if kafka.sasl_mechanism != "OAUTHBEARER":
        return []
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={kafka.sasl_oauth_token_url}"]


def _java_key(file: Path) -> str:
    """Return the text of a key file; `KafkaAccessDenied` if Kafka's Java clients cannot read its format."""
    text = file.read_text()
    if "-----BEGIN PRIVATE KEY-----" in text or "-----BEGIN ENCRYPTED PRIVATE KEY-----" in text:
        return text
    begin = next((line for line in text.splitlines() if line.startswith("-----BEGIN")), "no PEM block")
    raise KafkaAccessDenied(
        f"Spark's Kafka clients cannot read the key {file}: it has {begin!r}, and they read PKCS#8 only.",
        kept="nothing was started.",
        hint=f"convert it with `openssl pkcs8 -topk8 -in {file} -out NEW` (-nocrypt: without a password), and set "
        "CLONOS_KAFKA__SSL_KEY_LOCATION to the new file.",
    )


def produce(producer: Producer, topic: str, value: bytes | None, key: bytes | None = None, **options: Any) -> None:
    """Queue one record in `producer`, as `Producer.produce` with these options; wait while its queue is full.

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
    """Return a new admin client that knows the leaders of a topic's partitions; the topic may be missing.

    Without this, a first request that needs the leaders waits three seconds if it comes before the brokers' metadata:
    on a busy machine, one in fifteen does. The caller keeps the client until the futures of its requests are done.

    Raises:
        KafkaException: Kafka did not answer within `timeout_s`.
    """
    admin = AdminClient(client_config(kafka))
    admin.list_topics(topic, timeout=timeout_s)
    return admin


def topics_missing(kafka: KafkaSettings, names: Iterable[str]) -> list[str]:
    """Return the names in `names` that do not exist as topics; `BrokerUnavailable` if no broker answered."""
    try:
        known = AdminClient(client_config(kafka)).list_topics(timeout=15).topics
    except KafkaException as error:
        raise unanswered("Kafka did not answer", error.args[0]) from error
    return [name for name in names if name not in known or known[name].error is not None]


def unlisted_topics_error(
    kafka: KafkaSettings, kind: str, missing: Sequence[str], known: Iterable[str]
) -> TopicMissing | KafkaAccessDenied:
    """Return the error about topics that Kafka does not list: it hides one from this user, or they do not exist.

    The arguments are as for `topics_missing_error`.
    """
    admin = AdminClient(client_config(kafka))
    for topic in missing:  # a request for all topics leaves out those that the user may not describe
        with contextlib.suppress(KafkaException):
            error = admin.list_topics(topic, timeout=15).topics[topic].error
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                right = f"{'READ' if kind == 'source' else 'WRITE'} on the topic {topic}"
                what = f"Kafka does not show the {kind} topic {topic!r}: {error.str().rstrip('.')}."
                return KafkaAccessDenied(what, kept="nothing was started.", hint=_granting(right))
    return topics_missing_error(kind, missing, known)


def topics_missing_error(kind: str, missing: Sequence[str], known: Iterable[str]) -> TopicMissing:
    """Return the error about topics of a `kind`, such as ``source``, that do not exist, with similar `known` names."""
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


# Permanent errors: authentication failed, or the user lacks a permission. Errors of groups are not: no reader
# joins a group (`assigned_reader`).
REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


_UNAUTHORISED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def unanswered(problem: str, error: KafkaError, *, right: str = "") -> KafkaAccessDenied | BrokerUnavailable:
    """Convert the error of a Kafka request to a typed error: refused, or not answered.

    `problem` describes the request, `right` names what it needs, for the hint of a refusal: ``READ on the topic in``.
    """
    text = error.str().rstrip(".")
    if error.code() in REFUSALS:
        hint = _granting(right) if right and error.code() in _UNAUTHORISED else ""
        return KafkaAccessDenied(f"{problem}, access was refused: {text}.", hint=hint)
    return BrokerUnavailable(f"{problem}: {text}.")


def _granting(right: str) -> str:
    return f"grant the user {right}; docs/operating.md lists the rights that a job needs."


def await_brokers(kafka: KafkaSettings, *, brokers: int = 1, timeout_s: float = 30.0) -> ClusterMetadata:
    """Wait until at least `brokers` brokers answer a metadata request.

    Raises:
        BrokerUnavailable: Too few brokers answered within `timeout_s` seconds.
        KafkaAccessDenied: A broker refused access.
    """
    cluster = f"Kafka at {kafka.bootstrap_servers or '(no address set)'}"
    errors: list[KafkaError] = []  # a request reports only its timeout, not the cause
    config: dict[str, Any] = {**client_config(kafka, log_level=0), "error_cb": errors.append}
    try:
        admin = AdminClient(config)
    except KafkaException as error:  # it reads the files of certificates and keys
        files = (kafka.ssl_ca_location, kafka.ssl_certificate_location, kafka.ssl_key_location)
        missing = "".join(f"; {file} is not a file" for file in files if file is not None and not file.is_file())
        what = f"The settings of the connection to Kafka are not usable: {error.args[0].str().rstrip('.')}{missing}."
        raise KafkaAccessDenied(what, kept="nothing was started.") from error
    deadline = Deadline(timeout_s)
    reason = "no answer"
    while not deadline.passed():
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


def unreachable_broker(metadata: ClusterMetadata, *, one_suffices: bool = False) -> BrokerUnavailable | None:
    """Return the error about a broker that this machine does not reach at the address that it advertises; else None.

    The first connection uses the bootstrap servers, all others the addresses that the brokers advertise. With
    `one_suffices` one reachable broker is enough: the others may be down, and lead no partition.
    """
    with ThreadPoolExecutor(8, "clonos-addresses") as pool:
        reached = list(pool.map(_unreachable, metadata.brokers.values()))
    problems = [problem for problem in reached if problem]
    if not problems or (one_suffices and not all(reached)):
        return None
    return BrokerUnavailable(
        f"Kafka answers, but this machine does not reach {problems[0]}.",
        kept="nothing was started.",
        hint="start that broker if it is down; otherwise set its advertised.listeners to an address that this machine "
        "can reach.",
    )


def _unreachable(broker: BrokerMetadata) -> str:
    try:
        with socket.create_connection((broker.host, broker.port), _REACHED_S):
            return ""
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        return f"broker {broker.id} at {broker.host}:{broker.port}: {reason}"


def explained(kafka: KafkaSettings, error: ClonosError) -> ClonosError:
    """Return `error`, or a clearer one: this machine does not reach a broker at the address that it advertises."""
    if isinstance(error, BrokerUnavailable):
        with contextlib.suppress(KafkaException, BrokerUnavailable, KafkaAccessDenied):
            if (clearer := unreachable_broker(await_brokers(kafka, timeout_s=_REACHED_S))) is not None:
                return clearer
    return error
