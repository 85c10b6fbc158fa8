"""Driver processes for the chaos tests: `clonos run` in separate sessions, and the records that they published."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import SEQUENTIAL, client_config, undelivered
from clonos.settings import KafkaSettings
from clonos.testing.faults import triggered
from clonos.testing.harness import ChildProcess, eventually, read_committed

JOBS = Path(__file__).parent / "jobs"
SUPERSEDED = 70  # exit code


class Driver(ChildProcess):
    """A driver process with everything it started, and the faults that are injected into it.

    Args:
        command: The command.
        environment: Added to the test's environment.
        log: File for its output.
        faults: File with a line for each fault that was triggered.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path, faults: Path) -> None:
        super().__init__(command, {**environment, "CLONOS_FAULT_LOG": str(faults)}, log)
        self.faults = faults

    def await_kill(self) -> None:
        """Wait until the injected fault killed the driver and its Python workers."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"exit code {code}:\n{self.tail()}"
        self.kill()

    def await_fault(self, fault: str, timeout_s: float = 120.0) -> None:
        """Wait until the fault was triggered."""

        def triggered() -> bool:
            return self.triggered(fault) or not self.running

        eventually(triggered, f"fault {fault}", timeout_s=timeout_s)
        assert self.triggered(fault), f"exit code {self.exit_code} before {fault}:\n{self.tail()}"

    def triggered(self, fault: str) -> bool:
        return triggered(self.faults, fault)

    def release(self, fault: str) -> None:
        """Let the process continue that waits at `fault`."""
        Path(f"{self.faults}.{fault}.go").touch()

    def stop_gracefully(self) -> None:
        code = self.stop(300)
        assert code == 0, f"exit code {code}:\n{self.tail()}"


@dataclass
class JobRun:
    """One job, run by any number of driver processes one after the other or at once."""

    kafka: KafkaSettings
    name: str
    home: Path
    job: Path
    params: Mapping[str, str]
    spec: dict[str, Any] = field(default_factory=dict)
    started: list[Driver] = field(default_factory=list)

    def start(
        self, fault: str = "", *, arguments: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
    ) -> Driver:
        self.home.mkdir(exist_ok=True)
        number = len(self.started)
        log, faults = self.home / f"driver-{number}.log", self.home / f"faults-{number}"
        settings = {
            "CLONOS_HOME": str(self.home),
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "CLONOS_FAULT": fault,
            **(environment or {}),
        }
        driver = Driver([*self.command(), *arguments], settings, log, faults)
        self.started.append(driver)
        return driver

    def command(self) -> list[str]:
        """Write the job's specification; return the `clonos run` command."""
        specification = self.home / "job.yaml"
        body = {
            "main": str(self.job),
            "params": dict(self.params),
            "master": "local[2]",
            "driver": {"memory": "512m"},
            **self.spec,
        }
        specification.write_text(
            yaml.safe_dump({"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": body})
        )
        return [sys.executable, "-m", "clonos", "run", str(specification), "--events", str(self.events)]

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"

    def events_of(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        if not self.events.exists():
            return []
        lines = self.events.read_text().splitlines()
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [record for record in records if record["event"] == event]

    def end(self) -> None:
        """Kill all drivers of the test that still run."""
        for driver in self.started:
            driver.kill()


class Feeder:
    """Produces records with unique ids at a steady rate, from a thread; `sent` lists the records."""

    def __init__(self, kafka: KafkaSettings, topic: str, partitions: int, *, every_s: float = 0.05) -> None:
        self.sent: list[tuple[int, str]] = []
        # A retry after a lost answer must not become a second record.
        self._producer = Producer(client_config(kafka, linger_ms=0, **SEQUENTIAL))
        self._failures: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def burst(self, count: int) -> None:
        """Produce `count` records at once, over all partitions."""
        for _ in range(count):
            self._produce_next()
        self._flush()

    def _flush(self) -> None:
        assert self._producer.flush(30) == 0
        assert not self._failures

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if (failure := undelivered(error, message)) is not None:
            self._failures.append(failure)

    def _produce_next(self) -> None:
        number = len(self.sent)
        partition, word = number % self._partitions, f"{chr(97 + number % 7)}{number}"
        self._producer.produce(self._topic, word.encode(), partition=partition, on_delivery=self._delivered)
        self.sent.append((partition, word))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._produce_next()
            self._producer.poll(0)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._flush()


def make_topics(kafka: KafkaSettings, **partitions: int) -> dict[str, str]:
    """Create topics; return their names by role."""
    admin = AdminClient(client_config(kafka))
    new = {role: NewTopic(role, count) for role, count in partitions.items()}
    for future in admin.create_topics(list(new.values())).values():
        future.result(60)
    return {role: topic.topic for role, topic in new.items()}


@dataclass
class Published:
    """The records of the query `plain` that a read_committed reader sees; `faults` compares them with the input."""

    records: list[dict[str, Any]]

    @classmethod
    def read(cls, kafka: KafkaSettings, topic: str) -> Published:
        return cls([json.loads(message.value() or b"{}") for message in read_committed(kafka, topic)])

    def words(self) -> Counter[str]:
        return Counter(record["word"] for record in self.records)

    def faults(self, sent: list[tuple[int, str]]) -> dict[str, list[Any]]:
        """Duplicates, losses, order breaks per source partition, contradicting answers, equal UUIDs; with examples."""
        expected, seen = Counter(word for _, word in sent), self.words()
        answers: defaultdict[tuple[int, int, str], set[str]] = defaultdict(set)
        breaks = []
        last: dict[int, int] = {}
        for record in self.records:
            verdict, partition = record["verdict"], record["partition"]
            answers[verdict["epoch"], partition, record["word"][0]].add(verdict["answer"])
            if record["offset"] <= last.get(partition, -1):
                breaks.append((partition, record["offset"]))
            last[partition] = record["offset"]
        uuids = Counter(record["verdict"]["uuid"] for record in self.records)
        findings = {
            "duplicates": [word for word, count in (seen - expected).items() if count],
            "lost": list((expected - seen).elements()),
            "order_breaks": breaks,
            "contradictions": [key for key, replies in answers.items() if len(replies) > 1],
            "equal_uuids": [uuid for uuid, count in uuids.items() if count > 1],
        }
        return {kind: examples for kind, examples in findings.items() if examples}


def final_counts(kafka: KafkaSettings, topic: str) -> dict[str, int]:
    """The last count published for each letter; counts of a letter must only grow."""
    counts: dict[str, int] = {}
    for message in read_committed(kafka, topic):
        record = json.loads(message.value() or b"{}")
        assert record["count"] > counts.get(record["letter"], 0), f"{record} after {counts}"
        counts[record["letter"]] = record["count"]
    return counts


def expected_counts(sent: list[tuple[int, str]]) -> dict[str, int]:
    return dict(Counter(word[0] for _, word in sent))


def caught_up(run: JobRun, topic: str, sent: list[tuple[int, str]]) -> bool:
    """Whether at least as many records are visible as were sent."""
    return len(read_committed(run.kafka, topic)) >= len(sent)
