"""The drivers under comparison, each a process in its own session."""

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

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, eventually

Subject = Literal["clonos", "clonos_python", "spark_default", "spark_tuned"]  # clonos_python: with lanes in Python
SUBJECTS: tuple[Subject, ...] = ("clonos", "spark_default", "spark_tuned")
PARTITIONS = 4
_HERE = Path(__file__).parent
_SAMPLE_S = 0.5
_START_TIMEOUT_S = 120.0


def log_progress(text: str) -> None:
    """Print progress to stderr."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def make_topic(kafka: KafkaSettings, prefix: str) -> str:
    """A new topic of four partitions."""
    topic = f"{prefix}-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))  # closed clients lose their futures
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(15)
    return topic


@dataclass
class RunningDriver:
    """A running driver.

    Attributes:
        output: Output topic of the driver.
        folder: Where the driver stores its files.
        peak_rss_mb: Peak memory of all its processes; pages that forked workers share count once per process.
    """

    process: ChildProcess
    output: str
    folder: Path
    peak_rss_mb: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Sample memory until `_done`."""
        while not self._done.wait(_SAMPLE_S):
            total = 0
            for process in self.process.members():
                with suppress(psutil.Error):
                    total += process.memory_info().rss
            self.peak_rss_mb = max(self.peak_rss_mb, total / 1e6)

    def await_start(self, arrived: Callable[[], bool], send: Callable[[], object]) -> None:
        """Send one record and wait until it is published.

        Raises:
            ClonosError: The driver exited, with the end of its output.
        """

        def published() -> bool:
            self.process.check_running()
            return arrived()

        send()
        eventually(
            published,
            "the first record is published",
            timeout_s=_START_TIMEOUT_S,
            poll_s=0.1,
            details=self.process.tail,
        )

    def cpu_s(self) -> float:
        """CPU seconds that the live processes of this driver have used."""
        total = 0.0
        for process in self.process.members():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextmanager
def running_driver(
    subject: Subject,
    kafka: KafkaSettings,
    home: Path,
    source: str,
    *,
    kind: str = "identity",
    per_epoch: int = 0,
    depth: str = "full",
) -> Iterator[RunningDriver]:
    """Start a driver, and kill it at the end of the context."""
    out = make_topic(kafka, "out")
    folder = home / f"{subject}-{kind}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    if subject.startswith("clonos"):
        spec = {
            "apiVersion": "clonos/v1",
            "kind": "Job",
            "metadata": {"name": folder.name.replace("_", "-")},
            "spec": {
                "main": str(_HERE / "jobs" / "subject.py"),
                "sharingDepth": depth,
                "checkpoint": f"file://{folder / 'checkpoint'}",
                "params": {"kind": kind, "per_epoch": str(per_epoch), "input": source, "output": out},
            },
        }
        (folder / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
        command = [sys.executable, "-m", "clonos", "run", str(folder / "job.yaml")]
    else:
        command = [sys.executable, "-m", "bench.jobs.plain", "--session", subject.removeprefix("spark_")]
        command += ["--kind", kind, "--input", source, "--output", out, "--per-epoch", str(per_epoch)]
        command += ["--checkpoint", str(folder / "checkpoint")]
    environment = {
        "CLONOS_HOME": str(home),
        "CLONOS_LANES": "python" if subject == "clonos_python" else "driver",
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_HERE.parent), os.environ.get("PYTHONPATH", "")))),
    }
    process = ChildProcess(command, environment, folder / "driver.log")
    run = RunningDriver(process, out, folder)
    watcher = threading.Thread(target=run.watch, daemon=True)
    watcher.start()
    try:
        yield run
    finally:
        run._done.set()
        watcher.join()
        process.kill()
