"""Real driver processes for the chaos tests: `clonos run` in sessions of their own, and what they published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from observe import eventually, read_committed, touched

JOBS = Path(__file__).parent / "jobs"
SUPERSEDED = 70  # exit code


@dataclass
class Driver:
    """One driver process with everything it started."""

    process: subprocess.Popen[bytes]
    log: Path
    faults: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout_s: float = 120.0) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            states = [(process.pid, process.name(), process.status()) for process in self._session()]
            raise AssertionError(f"the driver did not end: {states}\n{self.tail()}") from None

    def died(self) -> None:
        """Wait until the fault killed it, Python workers included."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"exit code {code}:\n{self.tail()}"
        self.kill()

    def reached(self, fault: str, timeout_s: float = 120.0) -> None:
        """Wait until the fault was triggered."""
        eventually(
            lambda: touched(self.faults, fault) or self.process.poll() is not None,
            f"fault {fault}",
            timeout_s=timeout_s,
        )
        assert touched(self.faults, fault), f"ended with {self.process.returncode} before {fault}:\n{self.tail()}"

    def go_on(self, fault: str) -> None:
        """Let go of what is held at `fault`."""
        Path(f"{self.faults}.{fault}.go").touch()

    def signal(self, number: int) -> None:
        """To every process of its session: Spark's Python workers have a process group of their own."""
        for process in self._session():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _session(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(ProcessLookupError):
                if os.getsid(process.pid) == self.pid:
                    yield process

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        """Gracefully, as a service manager does: the whole process group is asked."""
        os.killpg(self.pid, signal.SIGTERM)
        code = self.wait(60)
        assert code == 0, f"exit code {code}:\n{self.tail()}"

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


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
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*self.command(), *arguments],
                env={
                    **os.environ,
                    "CLONOS_HOME": str(self.home),
                    "CLONOS_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
                    "CLONOS_FAULT": fault,
                    "CLONOS_FAULT_LOG": str(faults),
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        driver = Driver(process, log, faults)
        self.started.append(driver)
        return driver

    def command(self) -> list[str]:
        """What starts a driver: `clonos run` with a specification of its own."""
        specification = self.home / "job.yaml"
        body = {
            "main": str(self.job),
            "params": dict(self.params),
            "master": "local[2]",
            "driverMemoryMb": 512,
            **self.spec,
        }
        specification.write_text(
            yaml.safe_dump({"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": body})
        )
        return [sys.executable, "-m", "clonos", "run", str(specification), "--events", str(self.events)]

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        if not self.events.exists():
            return []
        lines = self.events.read_text().splitlines()
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [record for record in records if record["event"] == event]

    def end(self) -> None:
        """Whatever still runs, at the end of a test."""
        for driver in self.started:
            driver.kill()


class Feeder:
    """Produces records with unique ids, steadily, from a thread; knows what was acknowledged."""

    def __init__(self, kafka: KafkaSettings, topic: str, partitions: int, *, every_s: float = 0.05) -> None:
        self.sent: list[tuple[int, str]] = []
        # A retry after a lost answer must not become a second record.
        self._producer = Producer(client_config(kafka, linger_ms=0, enable_idempotence=True))
        self._topic = topic
        self._partitions = partitions
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def burst(self, count: int) -> None:
        """So many records at once, over all partitions."""
        for _ in range(count):
            self._one()
        assert self._producer.flush(30) == 0

    def _one(self) -> None:
        number = len(self.sent)
        partition, word = number % self._partitions, f"{chr(97 + number % 7)}{number}"
        self._producer.produce(self._topic, word.encode(), partition=partition)
        self.sent.append((partition, word))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._one()
            self._producer.poll(0)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(30) == 0


def make_topics(kafka: KafkaSettings, **partitions: int) -> dict[str, str]:
    """Topics by their roles."""
    admin = AdminClient(client_config(kafka))
    new = {role: NewTopic(role, count) for role, count in partitions.items()}
    for future in admin.create_topics(list(new.values())).values():
        future.result(15)
    return {role: topic.topic for role, topic in new.items()}


@dataclass
class Published:
    """What a read_committed reader sees of the query `plain`, checked against what was fed."""

    records: list[dict[str, Any]]

    @classmethod
    def read(cls, kafka: KafkaSettings, topic: str) -> Published:
        return cls([json.loads(message.value() or b"{}") for message in read_committed(kafka, topic)])

    def words(self) -> Counter[str]:
        return Counter(record["word"] for record in self.records)

    def faults(self, sent: list[tuple[int, str]]) -> dict[str, list[Any]]:
        """Duplicates, losses, strangers, order breaks per source partition, contradicting answers."""
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
        found = {
            "duplicates": [word for word, count in (seen - expected).items() if count],
            "lost": list((expected - seen).elements()),
            "order_breaks": breaks,
            "contradictions": [key for key, given in answers.items() if len(given) > 1],
            "equal_uuids": [uuid for uuid, count in uuids.items() if count > 1],
        }
        return {kind: examples for kind, examples in found.items() if examples}


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
    """Whether as many records are visible as were fed."""
    return len(read_committed(run.kafka, topic)) >= len(sent)
