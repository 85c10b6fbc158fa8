"""What a run of the demo stands on: Kafka, its topics, the HTTP server, a directory."""

from __future__ import annotations

import importlib.util
import json
import os
import random
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
from clonos.demo.screen import Counters
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import BrokerUnavailable, EnvironmentFault, SpecError
from clonos.kafka import await_brokers, client_config
from clonos.settings import KafkaSettings, Settings


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one run, by the job parameters that name them."""

    prefix: str
    names: tuple[str, ...]

    def of(self, name: str) -> str:
        """The topic that the parameter `name` names."""
        return f"{self.prefix}{name}"

    def params(self) -> dict[str, str]:
        """The job's parameters."""
        return {name: self.of(name) for name in self.names}

    def create(self, kafka: KafkaSettings, partitions: int) -> None:
        """Create all of them.

        Raises:
            BrokerUnavailable: Kafka refused.
        """
        brokers = len(await_brokers(kafka).brokers)
        wanted = [
            NewTopic(topic, num_partitions=partitions, replication_factor=min(3, brokers))
            for topic in self.params().values()
        ]
        admin = AdminClient(client_config(kafka))  # kept: the answers die with the client
        for topic, created in admin.create_topics(wanted).items():
            try:
                created.result(30)
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka did not create the topic {topic}: {error}") from error


def example_directory(name: str) -> Path:
    """Where ``examples/<name>`` is: packed into the wheel beside this module, or in the clone.

    Raises:
        SpecError: It is in neither place.
    """
    here = Path(__file__).resolve().parent
    for directory in (here / "examples" / name, here.parents[2] / "examples" / name):
        if (directory / "job.py").is_file():
            return directory
    raise SpecError(f"The demo's job (examples/{name}) is not here.", hint="run the demo from a clone.")


def messages_of(example: Path, moments: random.Random) -> Iterator[tuple[str, bytes]]:
    """Endless input, keys and values, from the example's own ``generate.py``.

    Raises:
        SpecError: There is no such file.
    """
    file = example / "generate.py"
    spec = importlib.util.spec_from_file_location(f"clonos_example_{example.name}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise SpecError(f"{file} is not here.", hint="run the demo from a clone.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: Iterator[tuple[str, bytes]] = module.messages(moments)
    return messages


def work_directory(settings: Settings) -> Path:
    """A fresh directory for one demo."""
    parent = settings.home / "demo"
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=parent))


def own_prefix(settings: Settings) -> str:
    """What keeps this run's names apart on a Kafka that lives on; nothing on one of its own."""
    return f"demo-{secrets.token_hex(3)}-" if settings.kafka.bootstrap_servers else ""


@contextmanager
def kafka_for(settings: Settings, directory: Path) -> Iterator[tuple[KafkaSettings, str]]:
    """The user's Kafka, or an embedded one; with the prefix that keeps this run's names apart on it."""
    if settings.kafka.bootstrap_servers:
        yield settings.kafka, own_prefix(settings)
        return
    with EmbeddedKafka(directory / "kafka", jars=ensure_jars(settings)) as broker:
        yield broker.kafka, ""


@contextmanager
def answer_server(script: Path, record: Path) -> Iterator[str]:
    """The HTTP server in a process of its own; yields its address.

    Raises:
        EnvironmentFault: It did not start.
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
    """Environment of a job process: this run's Kafka and home, the user's cache of jars."""
    # The package may be importable only because of how this process was started.
    source = str(Path(clonos.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
    return {
        "CLONOS_HOME": str(home),
        "CLONOS_CACHE": str(settings.cache),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": path,
    }


class EventLog:
    """Follows the file that ``clonos run --events`` appends to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0
        self._counters = Counters()

    def counters(self) -> Counters:
        """The sums over all events so far."""
        if not self._file.exists():
            return self._counters
        with self._file.open("rb") as file:
            file.seek(self._read)
            for row in file:
                if not row.endswith(b"\n"):
                    break  # still being written, or torn by a kill; a later event then starts on the same line
                self._read += len(row)
                with suppress(ValueError):
                    self._counters = _added(self._counters, json.loads(row))
        return self._counters


def _added(counters: Counters, event: dict[str, object]) -> Counters:
    def number(name: str) -> int:
        value = event.get(name, 0)
        return value if isinstance(value, int) else 0

    return Counters(
        generation=max(counters.generation, number("generation")),
        skipped_lanes=counters.skipped_lanes + number("skipped_lanes"),
        determinants_recorded=counters.determinants_recorded + number("recorded"),
        determinants_replayed=counters.determinants_replayed + number("replayed"),
    )
