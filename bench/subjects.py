"""The drivers under comparison, each a real process in a session of its own."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.demo.victim import Victim
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

Subject = Literal["clonos", "spark_default", "spark_tuned"]
SUBJECTS: tuple[Subject, ...] = ("clonos", "spark_default", "spark_tuned")
PARTITIONS = 4
_HERE = Path(__file__).parent
_SAMPLE_S = 0.5
_FIRST_S = 120.0


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def make_topic(kafka: KafkaSettings, prefix: str) -> str:
    """A new topic of four partitions."""
    topic = f"{prefix}-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))  # kept until the answer is there
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(15)
    return topic


@dataclass
class Running:
    """A driver that runs.

    Attributes:
        output: Its output topic.
        peak_rss_mb: The most that its processes held together (pages shared by forked workers count in each).
    """

    victim: Victim
    output: str
    peak_rss_mb: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def watch(self, session: int) -> None:
        """Sample memory until `_done`."""
        while not self._done.wait(_SAMPLE_S):
            total = 0
            for process in psutil.process_iter():
                with suppress(psutil.Error, ProcessLookupError):
                    if os.getsid(process.pid) == session:
                        total += process.memory_info().rss
            self.peak_rss_mb = max(self.peak_rss_mb, total / 1e6)

    def await_start(self, arrived: Callable[[], bool], send: Callable[[], object]) -> None:
        """Send one record and wait until it has gone through; the driver must not end meanwhile.

        Raises:
            ClonosError: It ended, with its last words.
        """
        send()
        deadline = time.monotonic() + _FIRST_S
        while not arrived():
            self.victim.must_run()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was published in {_FIRST_S} s:\n{self.victim.last_words()}")
            time.sleep(0.1)

    def cpu_s(self) -> float:
        """CPU seconds that the live processes of this driver have used."""
        total = 0.0
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.victim.session:
                    times = process.cpu_times()
                    total += times.user + times.system
        return total


@contextmanager
def running(
    subject: Subject,
    kafka: KafkaSettings,
    home: Path,
    source: str,
    *,
    kind: str = "identity",
    per_epoch: int = 0,
    depth: str = "full",
) -> Iterator[Running]:
    """Start a driver; it is killed at the end."""
    out = make_topic(kafka, "out")
    place = home / f"{subject}-{kind}-{secrets.token_hex(3)}"
    place.mkdir(parents=True)
    if subject == "clonos":
        spec = {
            "apiVersion": "clonos/v1",
            "kind": "Job",
            "metadata": {"name": place.name.replace("_", "-")},
            "spec": {
                "main": str(_HERE / "jobs" / "subject.py"),
                "sharingDepth": depth,
                "checkpoint": f"file://{place / 'checkpoint'}",
                "params": {"kind": kind, "per_epoch": str(per_epoch), "input": source, "output": out},
            },
        }
        (place / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
        command = [sys.executable, "-m", "clonos", "run", str(place / "job.yaml")]
    else:
        command = [sys.executable, "-m", "bench.jobs.plain", "--session", subject.removeprefix("spark_")]
        command += ["--kind", kind, "--input", source, "--output", out, "--per-epoch", str(per_epoch)]
        command += ["--checkpoint", str(place / "checkpoint")]
    environment = {
        "CLONOS_HOME": str(home),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_HERE.parent), os.environ.get("PYTHONPATH", "")))),
    }
    victim = Victim(command, environment, place / "driver.log")
    victim.start()
    run = Running(victim, out)
    watcher = threading.Thread(target=run.watch, args=(victim.session,), daemon=True)
    watcher.start()
    try:
        yield run
    finally:
        run._done.set()
        watcher.join()
        victim.kill()
