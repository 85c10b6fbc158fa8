"""``clonos kafka create``, ``produce`` and ``consume``: topics and records of the Kafka that jobs use."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Listed, Output, echo, until_interrupted
from clonos.errors import BrokerUnavailable, EnvironmentFault, TopicMissing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from clonos.settings import KafkaSettings

_TIMEOUT_S = 30.0
_POLL_S = 0.5

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=10_000, help="Number of partitions.")] = 3,
    replication: Annotated[int | None, typer.Option(min=1, help="Replication factor (default: the broker's).")] = None,
) -> None:
    """Create topics; existing topics stay unchanged."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from clonos.kafka import client_config

    admin = AdminClient(client_config(_kafka()))
    new_topics = [NewTopic(name, partitions, replication or -1) for name in dict.fromkeys(topics)]
    for name, future in admin.create_topics(new_topics, request_timeout=_TIMEOUT_S).items():
        try:
            future.result(_TIMEOUT_S)
        except TimeoutError as error:
            raise BrokerUnavailable(f"Kafka did not create the topic {name!r} in {_TIMEOUT_S:g} s.") from error
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _not_created(name, reason) from error
            echo(f"{name} exists already")
        else:
            echo(f"{name} created")


def produce(
    topic: Topic,
    separator: Annotated[
        str, typer.Option(help="Separator of key and value; a line without it has no key.", show_default="tab")
    ] = "\t",
) -> None:
    """Produce one record per line of stdin: key, tab, value."""
    from clonos.kafka import topics_missing

    kafka = _kafka()
    if topics_missing(kafka, [topic]):
        raise _missing(topic)
    with until_interrupted():
        _produce(kafka, topic, separator)


def _produce(kafka: KafkaSettings, topic: str, separator: str) -> None:
    from confluent_kafka import Producer

    from clonos.kafka import SEQUENTIAL, client_config, undelivered
    from clonos.kafka import produce as queue_record

    rejections: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if (rejection := undelivered(error, message)) is not None:
            rejections.append(rejection)

    producer = Producer(client_config(kafka, **SEQUENTIAL, linger_ms=5, queue_buffering_max_messages=10_000))
    try:
        for line in sys.stdin.buffer:
            key, split, value = line.rstrip(b"\r\n").partition(separator.encode())
            queue_record(producer, topic, value if split else key, key if split else None, on_delivery=delivered)
            producer.poll(0)
            if rejections:
                break
    finally:
        pending = producer.flush(_TIMEOUT_S)
    if rejections or pending:
        why = rejections[0] if rejections else f"no acknowledgement for {pending} records"
        raise BrokerUnavailable(
            f"Kafka did not accept all records of {topic!r}: {why}.", kept="acknowledged records are stored."
        )


def consume(
    topic: Topic,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new records.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Show new records only; implies -f.")] = False,
    output: Listed = Output.TABLE,
) -> None:
    """Print the committed records of a topic (key, tab, value) up to its current end; -f follows until Ctrl-C.

    Records are ordered within each partition. The reader uses ``isolation.level=read_committed``.
    """
    with until_interrupted():
        _consume(topic, _kafka(), follow=follow or new, new=new, as_json=output is Output.JSON)


def _consume(topic: str, kafka: KafkaSettings, *, follow: bool, new: bool, as_json: bool) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

    from clonos.kafka import about_the_group, assigned_reader

    reader = assigned_reader(kafka, group="clonos-cli", enable_partition_eof=True)
    try:
        metadata = reader.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise _missing(topic)
        start = OFFSET_END if new else OFFSET_BEGINNING
        reader.assign([TopicPartition(topic, partition, start) for partition in metadata.partitions])
        open_ends = set(metadata.partitions)
        newest_at = time.monotonic()
        while follow or open_ends:
            message = reader.poll(_POLL_S)
            if message is None:
                if not follow and time.monotonic() - newest_at > _TIMEOUT_S:
                    raise BrokerUnavailable(f"Reading {topic!r}: Kafka sent nothing for {_TIMEOUT_S:g} s.")
                continue
            newest_at = time.monotonic()
            error = message.error()
            if error is None:
                echo(_as_json(message) if as_json else _as_text(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition() or 0)
            elif not error.retriable() and not about_the_group(error):
                raise BrokerUnavailable(f"Reading {topic!r} failed: {error.str()}.")
    finally:
        reader.close()


def _as_text(message: Message) -> str:
    return f"{_text(message.key()) or ''}\t{_text(message.value()) or ''}"


def _as_json(message: Message) -> bytes:
    text = json.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            "key": _text(message.key()),
            "value": _text(message.value()),
            "headers": [[header[0], _text(header[1])] for header in message.headers() or []],
        },
        ensure_ascii=False,
    )
    return text.encode()


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def _kafka() -> KafkaSettings:
    from clonos.embedded.reachable import reachable_kafka
    from clonos.settings import Settings

    return reachable_kafka(Settings())


def _missing(topic: str) -> TopicMissing:
    return TopicMissing(f"The topic {topic!r} does not exist.", hint=f"create it: `clonos kafka create {topic}`.")


def _not_created(name: str, error: KafkaError) -> EnvironmentFault:
    return EnvironmentFault(
        f"Kafka did not create {name!r}: {error.str()}.", kept="the topics before it in the list exist."
    )
