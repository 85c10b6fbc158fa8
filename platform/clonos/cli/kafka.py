"""``clonos kafka`` and ``transactions``: the embedded Kafka; topics, records and transactions of the Kafka of jobs."""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import show
from clonos.cli.options import Listed, Listing, Lists, Output, Yes, confirm, echo, kafka_of_jobs, until_interrupted
from clonos.errors import BrokerUnavailable, DirectoryInUse, EnvironmentFault, SpecError, TopicMissing
from clonos.signals import stop_on_signals

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.cluster import ClusterStatus
    from clonos.settings import KafkaSettings

app = typer.Typer(no_args_is_help=True, help="Manage the embedded Kafka; create topics, produce and consume records.")
transactions = typer.Typer(no_args_is_help=True, help="Show and abort open transactions of Kafka.")

_TIMEOUT_S = 30.0
_POLL_S = 0.5

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]

Directory = Annotated[
    Path | None, typer.Option("--directory", help="Data directory of Kafka (default: kafka in CLONOS_HOME).")
]


@app.command()
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=10_000, help="Number of partitions.")] = 3,
    replication: Annotated[int | None, typer.Option(min=1, help="Replication factor (default: the broker's).")] = None,
) -> None:
    """Create topics; existing topics stay unchanged."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from clonos.kafka import client_config

    admin = AdminClient(client_config(kafka_of_jobs()))
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


@app.command()
def produce(
    topic: Topic,
    separator: Annotated[
        str, typer.Option(help="Separator of key and value; a line without it has no key.", show_default="tab")
    ] = "\t",
) -> None:
    """Produce one record per line of stdin: key, tab, value."""
    from clonos.kafka import topics_missing

    kafka = kafka_of_jobs()
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


@app.command()
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
        _consume(topic, kafka_of_jobs(), follow=follow or new, new=new, as_json=output is Output.JSON)


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


def _missing(topic: str) -> TopicMissing:
    return TopicMissing(f"The topic {topic!r} does not exist.", hint=f"create it: `clonos kafka create {topic}`.")


def _not_created(name: str, error: KafkaError) -> EnvironmentFault:
    return EnvironmentFault(
        f"Kafka did not create {name!r}: {error.str()}.", kept="the topics before it in the list exist."
    )


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(min=1, max=9, help="Number of brokers (default: the previous number, else 1).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the first broker; the others use the next ones (default: free ports)."
        ),
    ] = None,
    directory: Directory = None,
    detach: Annotated[
        bool, typer.Option("--detach/--foreground", help="Run in the background, or until this command stops.")
    ] = True,
) -> None:
    """Start Kafka and print its address."""
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings

    settings = Settings()
    home = directory or settings.home / "kafka"
    count = brokers or len(EmbeddedKafka(home).status().brokers) or 1
    cluster = EmbeddedKafka(
        home,
        brokers=brokers,
        ports=[port + offset for offset in range(count)] if port else None,
        jars=ensure_jars(settings),
    )
    cluster.start()
    status = cluster.status()
    echo(f"Kafka is running at {status.bootstrap_servers}")
    for broker in status.brokers:
        echo(f"  log of broker {broker.node}: {broker.log}")
    if detach:
        option = f" --directory {directory}" if directory else ""
        echo(f"Stop it with: clonos kafka stop{option}")
        return
    echo("Stop it with Ctrl-C.")
    try:
        _wait(cluster)
    finally:
        cluster.stop()
        echo("Kafka has stopped; its data stays.")


@app.command()
def stop(
    directory: Directory = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, although a platform uses this Kafka.")] = False,
) -> None:
    """Stop Kafka; its data stays. Asks if the platform of `clonos up` uses it."""
    cluster = _kafka(directory)
    servers = cluster.status().bootstrap_servers
    if not cluster.status().running:
        echo("Kafka is not running.")
        return
    if not yes:
        _confirm_stop(servers)
    cluster.stop()
    echo("Kafka has stopped; its data stays.")


def _confirm_stop(servers: str) -> None:
    """Ask before the Kafka of a running platform is stopped; `DirectoryInUse` without a terminal to ask on."""
    from clonos.local.state import Folder, State
    from clonos.settings import Settings

    state = State.read(Folder.of(Settings().home))
    if state is None or not state.supervised or state.kafka != servers:
        return
    used = "The platform of `clonos up` uses this Kafka: its jobs would wait, and it starts Kafka again."
    if not sys.stdin.isatty():
        raise DirectoryInUse(
            used, kept="Kafka is running.", hint="stop both with `clonos down`, or repeat the command with --yes."
        )
    typer.confirm(f"{used} Stop Kafka?", abort=True, err=True)


@app.command()
def status(directory: Directory = None, output: Listed = Output.TABLE) -> None:
    """Show whether Kafka runs, and its address."""
    cluster = _kafka(directory).status()
    if output is Output.JSON:
        echo(json.dumps({"running": cluster.running, **asdict(cluster)}, default=str))
        return
    _print(cluster)


def _print(cluster: ClusterStatus) -> None:
    if not cluster.brokers:
        echo(f"There is no Kafka in {cluster.directory}. Start one with: clonos kafka start")
        return
    echo(f"Kafka is running at {cluster.bootstrap_servers}" if cluster.running else "Kafka is not running.")
    from rich.table import Table

    from clonos.telemetry.printable import console

    table = Table("broker", "state", "address", "pid", "log", box=None, pad_edge=False)
    for broker in cluster.brokers:
        table.add_row(str(broker.node), broker.state, broker.address, str(broker.pid or "-"), str(broker.log))
    console(soft_wrap=True).print(table)


def _wait(cluster: EmbeddedKafka) -> None:
    """Wait for SIGINT, SIGTERM or the exit of all brokers."""
    stopping = threading.Event()
    stop_on_signals(stopping.set)
    while not stopping.wait(_POLL_S) and cluster.status().running:
        pass


def _kafka(directory: Path | None) -> EmbeddedKafka:
    from clonos.embedded.broker import EmbeddedKafka
    from clonos.settings import Settings

    return EmbeddedKafka(directory or Settings().home / "kafka")


@transactions.command("ls")
def list_transactions(
    everything: Annotated[
        bool, typer.Option("--all", help="Also transactional ids without an open transaction.")
    ] = False,
    job: Annotated[str | None, typer.Option(help="Show the transactions of this job only.")] = None,
    output: Lists = Listing.TABLE,
) -> None:
    """List open transactions, the oldest first, with the job that owns each: read_committed readers wait for them."""
    import msgspec
    from rich.table import Table

    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings
    from clonos.spark import transactions as stored

    rows = [
        row
        for row in stored.transactions(kafka_of_jobs(), ensure_jars(Settings()))
        if (everything or row.is_open) and job in (None, row.job)
    ]
    if output is Listing.JSON:
        data = [msgspec.to_builtins(row) | {"job": row.job} for row in rows]
        echo(msgspec.json.encode({"data": data, "has_more": False, "next": None}))
    elif output is Listing.NAME:
        for row in rows:
            echo(row.id)
    elif not rows:
        echo("No transaction is open.", err=True)
    else:
        table = Table("transactional id", "job", "state", "since", "timeout", "topics", box=None, header_style="dim")
        for row in rows:
            since = show.clock(dt.datetime.fromtimestamp(row.started_ms / 1000, dt.UTC)) if row.started_ms > 0 else "-"
            topics = ", ".join(row.topics) or "-"
            table.add_row(row.id, row.job or "-", row.state, since, f"{row.timeout_ms / 1000:g} s", topics)
        show.console().print(table)


@transactions.command()
def abort(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Transactional ids.")] = None,
    job: Annotated[str | None, typer.Option(help="Abort all open transactions of this job.")] = None,
    yes: Yes = False,
) -> None:
    """Abort open transactions, and fence their producers. A running job replays its epoch; nothing is lost."""
    from clonos.embedded.jars import ensure_jars
    from clonos.settings import Settings
    from clonos.spark import transactions as stored

    if bool(ids) == (job is not None):
        raise SpecError("Name transactional ids, or a job with --job.", hint="`clonos transactions ls` lists both.")
    kafka, jars = kafka_of_jobs(), ensure_jars(Settings())
    listed = stored.transactions(kafka, jars)
    unknown = sorted(set(ids or ()) - {row.id for row in listed})
    if unknown:
        raise SpecError(
            f"Kafka knows no transactional id {unknown[0]!r}.", hint="`clonos transactions ls --all` lists them."
        )
    due = [row.id for row in listed if row.is_open and (row.job == job if job is not None else row.id in (ids or ()))]
    if not due:
        echo("None of them has an open transaction.", err=True)
        return
    if not yes:
        confirm(f"Abort {len(due)} open transactions: {', '.join(due)}?")
    stored.abort(kafka, jars, due)
    for name in due:
        echo(name)
