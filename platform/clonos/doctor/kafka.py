"""Checks Kafka: reachability, users, limits, durability, transactions and clock."""

from __future__ import annotations

import os
import pwd
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from clonos.doctor.check import Check, fail, ok, warn
from clonos.embedded.broker import EmbeddedKafka
from clonos.errors import BrokerUnavailable, KafkaAccessDenied
from clonos.kafka import await_brokers, client_config, unreachable_broker
from clonos.settings import KafkaSettings, Settings

_REACHABLE_TIMEOUT_S: Final = 5.0
_TIMEOUT_S: Final = 15.0
# Default transaction timeout of sinks; retries of an epoch double it.
_TRANSACTION_MS: Final = 60_000
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_SKEW_MS: Final = 1_000
_PEOPLE: Final = range(1_000, 60_000)  # uids of accounts that are not the system's
_LARGE_SKEW_MS: Final = 60_000


def check(settings: Settings) -> Iterator[Check]:
    """Run all checks of Kafka; only the first if no broker is reachable."""
    kafka, embedded = _kafka(settings)
    if not kafka.bootstrap_servers:
        yield warn(
            "Kafka",
            "no address is set, and the embedded Kafka is not running",
            meaning="no job can run.",
            fix="`clonos up` or `clonos kafka start`; or set CLONOS_KAFKA__BOOTSTRAP_SERVERS.",
        )
        return
    try:
        metadata = await_brokers(kafka, timeout_s=_REACHABLE_TIMEOUT_S)
    except (BrokerUnavailable, KafkaAccessDenied) as error:
        yield fail("Kafka", error.what, meaning="no job can run.", fix=error.hint)
        return
    count = len(metadata.brokers)
    yield ok("Kafka", f"{count} broker{'s' if count != 1 else ''} at {kafka.bootstrap_servers}")
    if embedded:
        yield from users(pwd.getpwall())
    if (unreachable := unreachable_broker(metadata)) is not None:
        if unreachable_broker(metadata, one_suffices=True) is not None:
            yield fail("Kafka's addresses", unreachable.what, meaning="no job can run.", fix=unreachable.hint)
        else:
            meaning = "a job waits for each partition that this broker leads."
            yield warn("Kafka's addresses", unreachable.what, meaning=meaning, fix=unreachable.hint)
        return
    admin = AdminClient(client_config(kafka))
    broker = ConfigResource(ResourceType.BROKER, str(min(metadata.brokers)))
    try:
        values = {
            name: entry.value for name, entry in admin.describe_configs([broker])[broker].result(_TIMEOUT_S).items()
        }
    except KafkaException as error:
        yield warn(
            "Kafka limits",
            f"the broker denies access to its settings: {error.args[0].str()}",
            meaning="unsuitable limits are detected only when a job starts.",
            fix="allow DESCRIBE_CONFIGS on the cluster.",
        )
    except TimeoutError:
        yield fail(
            "Kafka limits", f"no answer in {_TIMEOUT_S:g} s", meaning="no job can run.", fix="check the brokers."
        )
        return
    else:
        yield from limits(values)
        yield from safety(values, count, embedded=embedded)
    yield from _transactions(kafka, admin)


def _kafka(settings: Settings) -> tuple[KafkaSettings, bool]:
    if settings.kafka.bootstrap_servers:
        return settings.kafka, False
    embedded = EmbeddedKafka(settings.home / "kafka", client=settings.kafka)
    return (embedded.kafka, True) if embedded.status().running else (settings.kafka, True)


def users(accounts: Iterable[pwd.struct_passwd]) -> Iterator[Check]:
    """Warn if other people use this machine: the embedded Kafka has no password."""
    others = [
        account.pw_name
        for account in accounts
        if account.pw_uid in _PEOPLE
        and account.pw_uid != os.getuid()
        and not account.pw_shell.endswith(("nologin", "false"))
    ]
    if others:
        shown = ", ".join(others[:3]) + (" and more" if len(others) > 3 else "")
        yield warn(
            "Kafka's users",
            f"the embedded Kafka has no password, and this machine has other accounts: {shown}",
            meaning="these users can read all topics, and claim the causal log of any job.",
            fix="use a Kafka with users and ACLs, if you do not trust them: CLONOS_KAFKA__BOOTSTRAP_SERVERS.",
        )


def limits(values: Mapping[str, str | None]) -> Iterator[Check]:
    """Check that the brokers allow the transaction timeout of the Kafka sink. `values` are a broker's settings."""
    longest = int(values.get("transaction.max.timeout.ms") or 0)
    if longest < _TRANSACTION_MS:
        yield fail(
            "transaction limit",
            f"transaction.max.timeout.ms is {longest}",
            meaning=f"the broker rejects the {_TRANSACTION_MS} ms that sinks request.",
            fix=f"raise it to 900000 on the brokers, or set transaction_timeout_ms={longest} on sinks.",
        )
    else:
        yield ok("transaction limit", f"transaction.max.timeout.ms is {longest}")


def safety(values: Mapping[str, str | None], brokers: int, *, embedded: bool) -> Iterator[Check]:
    """Check that acknowledged records survive the loss of a broker. An embedded Kafka may have too few brokers."""
    names = {
        "default.replication.factor": _REPLICAS,
        "min.insync.replicas": _IN_SYNC,
        "transaction.state.log.replication.factor": _REPLICAS,
        "transaction.state.log.min.isr": _IN_SYNC,
    }
    if brokers < _REPLICAS:
        what = f"{brokers} broker{'s' if brokers != 1 else ''}"
        if embedded:
            yield ok("replication", f"{what} (embedded Kafka, for development)")
        else:
            yield warn(
                "replication",
                what,
                meaning="the loss of one disk may lose published records and the causal log.",
                fix=f"run at least {_REPLICAS} brokers.",
            )
    elif low := [name for name, least in names.items() if int(values.get(name) or 0) < least]:
        yield warn(
            "replication",
            ", ".join(f"{name}={values.get(name)}" for name in low),
            meaning="the loss of one broker may lose acknowledged records, or stop all transactions.",
            fix="set " + ", ".join(f"{name}={names[name]}" for name in low) + " (and alter the existing topics).",
        )
    else:
        yield ok("replication", ", ".join(f"{name}={values.get(name)}" for name in names))
    if values.get("unclean.leader.election.enable") == "true":
        yield fail(
            "leader election",
            "unclean.leader.election.enable=true",
            meaning="a lagging broker may become the leader, which loses acknowledged records.",
            fix="set it to false.",
        )


def _transactions(kafka: KafkaSettings, admin: AdminClient) -> Iterator[Check]:
    """Publish one record in a transaction to a temporary topic; its timestamp is the broker's clock."""
    try:
        with _topic(admin) as topic:
            begun = time.time() * 1000
            at = _publish(kafka, topic)
            ended = time.time() * 1000
    except (KafkaException, TimeoutError) as error:
        reason = error.args[0] if isinstance(error, KafkaException) else None
        yield fail(
            "transactions",
            f"{reason.name()}: {reason.str()}" if reason is not None else f"no answer in {_TIMEOUT_S:g} s",
            meaning="nothing can be published exactly once.",
            fix="allow CREATE, DESCRIBE and WRITE on topics and transactional ids with the prefix `clonos.`; "
            "see the brokers' logs for the transaction coordinator.",
        )
        return
    yield ok("transactions", f"published one record in {ended - begun:.0f} ms")
    yield clock(begun, at, ended)


@contextmanager
def _topic(admin: AdminClient) -> Iterator[str]:
    name = f"clonos.doctor.{secrets.token_hex(4)}"
    new_topic = NewTopic(name, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([new_topic])[name].result(_TIMEOUT_S)
    try:
        yield name
    finally:
        with suppress(KafkaException, TimeoutError):
            admin.delete_topics([name])[name].result(_TIMEOUT_S)


def _publish(kafka: KafkaSettings, topic: str) -> float:
    """Return the broker's timestamp of the record, in milliseconds since 1970."""
    reports: list[tuple[Any, Message]] = []
    producer = Producer(client_config(kafka, transactional_id="clonos.doctor", transaction_timeout_ms=10_000))
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"clonos doctor", on_delivery=lambda error, message: reports.append((error, message)))
    producer.commit_transaction(_TIMEOUT_S)
    error, message = reports[0]
    if error is not None:
        raise KafkaException(error)
    return float(message.timestamp()[1])


def clock(begun: float, at: float, ended: float) -> Check:
    """Compare the broker's time `at` with this machine's, before and after the record; all in ms since 1970."""
    skew = at - begun if at < begun else max(0.0, at - ended)
    if abs(skew) <= _SKEW_MS:
        return ok("clock", "differs from the broker's by less than a second")
    what = f"the broker's clock is {abs(skew) / 1000:.1f} s {'ahead' if skew > 0 else 'behind'}"
    meaning = "times in logs and events are inconsistent; processing-time windows are shifted."
    fix = "synchronise both machines with a time server (NTP)."
    result = fail if abs(skew) > _LARGE_SKEW_MS else warn
    return result("clock", what, meaning=meaning, fix=fix)
