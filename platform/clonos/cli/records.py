"""``clonos kafka create``, ``produce`` and ``consume``: topics and records by hand, on the Kafka that jobs use."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clonos.cli.options import Listed, Output, until_interrupted
from clonos.errors import BrokerUnavailable, EnvironmentFault, TopicMissing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from clonos.settings import KafkaSettings

_TIMEOUT_S = 30.0
_POLL_S = 0.5

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=10_000)] = 3,
    replication: Annotated[int | None, typer.Option(min=1, help="Copies (default: what the broker says).")] = None,
) -> None:
    """Create topics; those that are there stay as they are."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from clonos.kafka import client_config

    admin = AdminClient(client_config(_kafka()))
    wanted = [NewTopic(name, partitions, replication or -1) for name in dict.fromkeys(topics)]
    for name, made in admin.create_topics(wanted, request_timeout=_TIMEOUT_S).items():
        try:
            made.result(_TIMEOUT_S)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _not_created(name, reason) from error
            typer.echo(f"{name} is there already")
        else:
            typer.echo(f"{name} created")


def produce(
    topic: Topic,
    separator: Annotated[
        str, typer.Option(help="Between key and value; a line without one has no key.", show_default="tab")
    ] = "\t",
) -> None:
    """Write one record for each line of stdin: key, tab, value."""
    from clonos.kafka import topics_missing

    kafka = _kafka()
    if topics_missing(kafka, [topic]):
        raise _missing(topic)
    with until_interrupted():
        _produce(kafka, topic, separator)


def _produce(kafka: KafkaSettings, topic: str, separator: str) -> None:
    from confluent_kafka import Producer

    from clonos.kafka import client_config

    refused: list[str] = []

    def told(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error.str())

    producer = Producer(client_config(kafka, enable_idempotence=True, linger_ms=5, queue_buffering_max_messages=10_000))
    try:
        for line in sys.stdin.buffer:
            key, found, value = line.rstrip(b"\r\n").partition(separator.encode())
            _send(producer, topic, key if found else None, value if found else key, told)
            if refused:
                break
    finally:
        left = producer.flush(_TIMEOUT_S)
    if refused or left:
        why = refused[0] if refused else f"no answer for {left} records"
        raise BrokerUnavailable(f"Kafka did not take all records of {topic!r}: {why}.", kept="what it took is there.")


def _send(producer: Any, topic: str, key: bytes | None, value: bytes, told: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=told)
            producer.poll(0)
        except BufferError:  # the broker is slower than stdin
            producer.poll(_POLL_S)
        else:
            return


def consume(
    topic: Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Only what comes from now on; implies -f.")] = False,
    output: Listed = Output.TABLE,
) -> None:
    """Print the committed records of a topic: key, tab, value; up to its present end, or until Ctrl-C with `-f`.

    In order for each partition. What a transaction has not committed (yet) is not printed: the view of a reader with
    ``isolation.level=read_committed``.
    """
    with until_interrupted():
        _consume(topic, _kafka(), follow=follow or new, new=new, as_json=output is Output.JSON)


def _consume(topic: str, kafka: KafkaSettings, *, follow: bool, new: bool, as_json: bool) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

    from clonos.kafka import client_config

    reader = Consumer(
        client_config(
            kafka,
            group_id="clonos-cli",  # librdkafka asks for one; nothing is committed
            enable_auto_commit=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
        )
    )
    try:
        found = reader.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise _missing(topic)
        start = OFFSET_END if new else OFFSET_BEGINNING
        reader.assign([TopicPartition(topic, partition, start) for partition in found.partitions])
        open_ends = set(found.partitions)
        while follow or open_ends:
            message = reader.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                typer.echo(_as_json(message) if as_json else _as_text(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition() or 0)
            elif not error.retriable():
                raise BrokerUnavailable(f"Kafka stopped answering about {topic!r}: {error.str()}.")
    finally:
        reader.close()


def _as_text(message: Message) -> str:
    return f"{_text(message.key()) or ''}\t{_text(message.value()) or ''}"


def _as_json(message: Message) -> str:
    return json.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            "key": _text(message.key()),
            "value": _text(message.value()),
            "headers": [[one[0], _text(one[1])] for one in message.headers() or []],
        },
        ensure_ascii=False,
    )


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def _kafka() -> KafkaSettings:
    from clonos.embedded.reachable import reachable_kafka
    from clonos.settings import Settings

    return reachable_kafka(Settings())


def _missing(topic: str) -> TopicMissing:
    return TopicMissing(f"There is no topic {topic!r}.", hint=f"create it: clonos kafka create {topic}")


def _not_created(name: str, error: KafkaError) -> EnvironmentFault:
    return EnvironmentFault(
        f"Kafka did not create {name!r}: {error.str()}.", kept="topics before it in the list are there."
    )
