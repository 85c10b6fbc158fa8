"""Kafka: whether it answers, and whether what the promise needs works there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from clonos.doctor.check import Check, fail, ok, warn
from clonos.embedded.broker import EmbeddedKafka
from clonos.errors import BrokerUnavailable, CredentialsRefused
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings, Settings

_PATIENCE_S: Final = 5.0
_TIMEOUT_S: Final = 15.0
# What sinks ask for by default; retries of an epoch double it.
_TRANSACTION_MS: Final = 60_000
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_SKEW_MS: Final = 1_000
_LARGE_SKEW_MS: Final = 60_000


def look(settings: Settings) -> Iterator[Check]:
    """All of it."""
    kafka, embedded = _kafka(settings)
    if not kafka.bootstrap_servers:
        yield warn(
            "Kafka",
            "none is set, and the embedded one does not run",
            meaning="no job can run.",
            mend="`clonos up` or `clonos kafka start`; or set CLONOS_KAFKA__BOOTSTRAP_SERVERS.",
        )
        return
    try:
        metadata = await_brokers(kafka, timeout_s=_PATIENCE_S)
    except (BrokerUnavailable, CredentialsRefused) as error:
        yield fail("Kafka", error.what, meaning="no job can run.", mend=error.hint)
        return
    count = len(metadata.brokers)
    yield ok("Kafka", f"{count} broker{'s' if count != 1 else ''} at {kafka.bootstrap_servers}")
    admin = AdminClient(client_config(kafka))
    broker = ConfigResource(ResourceType.BROKER, str(min(metadata.brokers)))
    try:
        values = {name: one.value for name, one in admin.describe_configs([broker])[broker].result(_TIMEOUT_S).items()}
    except KafkaException as error:
        yield warn(
            "Kafka limits",
            f"the broker does not tell its settings: {error.args[0].str()}",
            meaning="whether they fit is only seen when a job starts.",
            mend="allow DESCRIBE_CONFIGS on the cluster.",
        )
    else:
        yield from limits(values)
        yield from safety(values, count, embedded=embedded)
    yield from _transactions(kafka, admin)


def _kafka(settings: Settings) -> tuple[KafkaSettings, bool]:
    if settings.kafka.bootstrap_servers:
        return settings.kafka, False
    embedded = EmbeddedKafka(settings.home / "kafka", client=settings.kafka)
    return (embedded.kafka, True) if embedded.status().running else (settings.kafka, True)


def limits(values: Mapping[str, str | None]) -> Iterator[Check]:
    """What the broker allows transactions."""
    longest = int(values.get("transaction.max.timeout.ms") or 0)
    if longest < _TRANSACTION_MS:
        yield fail(
            "transaction limit",
            f"transaction.max.timeout.ms is {longest}",
            meaning=f"sinks ask for {_TRANSACTION_MS} ms and are refused.",
            mend=f"raise it to 900000 on the brokers, or give sinks transaction_timeout_ms={longest}.",
        )
    else:
        yield ok("transaction limit", f"transaction.max.timeout.ms is {longest}")


def safety(values: Mapping[str, str | None], brokers: int, *, embedded: bool) -> Iterator[Check]:
    """Whether what is acknowledged survives the loss of a broker."""
    names = {
        "default.replication.factor": _REPLICAS,
        "min.insync.replicas": _IN_SYNC,
        "transaction.state.log.replication.factor": _REPLICAS,
        "transaction.state.log.min.isr": _IN_SYNC,
    }
    told = ", ".join(f"{name}={values.get(name)}" for name in names)
    if brokers < _REPLICAS:
        what = f"{brokers} broker{'s' if brokers != 1 else ''}"
        if embedded:
            yield ok("replication", f"{what}, as an embedded Kafka has: for trying out")
        else:
            yield warn(
                "replication",
                what,
                meaning="the loss of one disk may lose what was published, and the causal log with it.",
                mend=f"run {_REPLICAS} brokers or more.",
            )
    elif low := [name for name, least in names.items() if int(values.get(name) or 0) < least]:
        yield warn(
            "replication",
            ", ".join(f"{name}={values.get(name)}" for name in low),
            meaning="the loss of one broker may lose what was acknowledged, or stop all transactions.",
            mend="set " + ", ".join(f"{name}={names[name]}" for name in low) + " (and alter the topics that exist).",
        )
    else:
        yield ok("replication", told)
    if values.get("unclean.leader.election.enable") == "true":
        yield fail(
            "leader election",
            "unclean.leader.election.enable=true",
            meaning="a broker that lags may become the leader, and acknowledged records are lost.",
            mend="set it to false.",
        )


def _transactions(kafka: KafkaSettings, admin: AdminClient) -> Iterator[Check]:
    """Publish one record in a transaction, on a topic that is there for this; its time is the broker's clock."""
    try:
        with _topic(admin) as topic:
            begun = time.time() * 1000
            at = _publish(kafka, topic)
            ended = time.time() * 1000
    except KafkaException as error:
        reason = error.args[0]
        yield fail(
            "transactions",
            f"{reason.name()}: {reason.str()}",
            meaning="nothing can be published exactly once.",
            mend="allow CREATE, DESCRIBE and WRITE on topics and transactional ids that begin with `clonos.`; "
            "see the brokers' logs for the transaction coordinator.",
        )
        return
    yield ok("transactions", f"one record was published in {ended - begun:.0f} ms")
    yield clock(begun, at, ended)


@contextmanager
def _topic(admin: AdminClient) -> Iterator[str]:
    name = f"clonos.doctor.{secrets.token_hex(4)}"
    wanted = NewTopic(name, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([wanted])[name].result(_TIMEOUT_S)
    try:
        yield name
    finally:
        with suppress(KafkaException):
            admin.delete_topics([name])[name].result(_TIMEOUT_S)


def _publish(kafka: KafkaSettings, topic: str) -> float:
    """When the broker took the record, in milliseconds since 1970."""
    told: list[tuple[Any, Message]] = []
    producer = Producer(client_config(kafka, transactional_id="clonos.doctor", transaction_timeout_ms=10_000))
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"clonos doctor", on_delivery=lambda error, message: told.append((error, message)))
    producer.commit_transaction(_TIMEOUT_S)
    error, message = told[0]
    if error is not None:
        raise KafkaException(error)
    return float(message.timestamp()[1])


def clock(begun: float, at: float, ended: float) -> Check:
    """How far the broker's clock is from ours; all in milliseconds."""
    skew = at - begun if at < begun else max(0.0, at - ended)
    if abs(skew) <= _SKEW_MS:
        return ok("clock", "agrees with the broker's within a second")
    what = f"the broker's is {abs(skew) / 1000:.1f} s {'ahead' if skew > 0 else 'behind'}"
    meaning = "times in logs and events do not fit together; windows by processing time are shifted."
    mend = "let both machines follow a time server (NTP)."
    made = fail if abs(skew) > _LARGE_SKEW_MS else warn
    return made("clock", what, meaning=meaning, mend=mend)
