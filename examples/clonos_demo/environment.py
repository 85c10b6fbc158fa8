"""The environment of a demo: Kafka, topics, the HTTP server of an example, and directories."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import clonos
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import BrokerUnavailable, EnvironmentFault
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings, Settings
from clonos_demo.screen import Counters


@dataclass(frozen=True, slots=True)
class Topics:
    """The Kafka topics of one job in the demo."""

    prefix: str  # beginning of the topics' names
    # Job parameters that hold the topics' names, such as ``source``; a topic's name is `prefix` plus its parameter.
    names: tuple[str, ...]

    def of(self, name: str) -> str:
        """Return the Kafka topic whose name the job parameter `name` holds."""
        return f"{self.prefix}{name}"

    def params(self) -> dict[str, str]:
        """Return the job parameters: parameter → topic."""
        return {name: self.of(name) for name in self.names}

    def create(self, kafka: KafkaSettings, partitions: int) -> None:
        """Create the topics, each with `partitions` partitions."""
        brokers = len(await_brokers(kafka).brokers)
        wanted = [
            NewTopic(topic, num_partitions=partitions, replication_factor=min(3, brokers))
            for topic in self.params().values()
        ]
        admin = AdminClient(client_config(kafka))  # a variable, because its futures fail when the client is deleted
        for topic, created in admin.create_topics(wanted).items():
            try:
                created.result(30)
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka did not create the topic {topic}: {error}") from error


def work_directory(settings: Settings) -> Path:
    """Create an empty directory for one demo."""
    parent = settings.home / "demo"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=parent))


def own_prefix(settings: Settings) -> str:
    """Return a prefix that makes the names of this demo's topics and jobs unique on a configured Kafka; empty for an
    embedded Kafka.
    """
    return f"demo-{secrets.token_hex(3)}-" if settings.kafka.bootstrap_servers else ""


@contextmanager
def kafka_for(settings: Settings, directory: Path) -> Iterator[tuple[KafkaSettings, str]]:
    """Yield the configured Kafka, or an embedded one that runs inside the context, and the prefix for names in it."""
    if settings.kafka.bootstrap_servers:
        yield settings.kafka, own_prefix(settings)
        return
    with EmbeddedKafka(directory / "kafka", jars=ensure_jars(settings)) as broker:
        yield broker.kafka, ""


@contextmanager
def answer_server(script: Path, record: Path) -> Iterator[str]:
    """Run the HTTP server of an example as a child process inside the context.

    Args:
        script: The server's Python file.
        record: File in which the server records each answer before it sends the answer.

    Yields:
        The server's address.
    """
    record.touch()
    command = [sys.executable, str(script), "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise EnvironmentFault(f"The HTTP server did not start (exit code {process.wait()}).")
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()


def environment_for(settings: Settings, kafka: KafkaSettings, home: Path) -> dict[str, str]:
    """Environment variables of a job's process: the demo's `kafka` and `home`, and the cache of jars of `settings`, the
    settings of the user who runs the demo.
    """
    # The package may be importable only because of how this process was started.
    source = str(Path(clonos.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
    return {
        "CLONOS_HOME": str(home),
        "CLONOS_CACHE": str(settings.cache),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": path,
    }


def event_counters(file: Path) -> Counters:
    """Return a job's newest generation, and its numbers of skipped lanes and of recorded and replayed determinants.

    They are computed from the events in `file`, which ``clonos run --events`` writes; 0 without the file.
    """
    events: list[dict[str, int]] = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with suppress(ValueError):  # still being written, or torn by a kill
            events.append(json.loads(line))

    def total(name: str) -> int:
        return sum(event.get(name) or 0 for event in events)

    return Counters(
        generation=max((event.get("generation") or 0 for event in events), default=0),
        skipped_lanes=total("skipped_lanes"),
        determinants_recorded=total("recorded_determinants"),
        determinants_replayed=total("replayed_determinants"),
    )
