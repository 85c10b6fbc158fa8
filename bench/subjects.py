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

from bench.outages.usage import memory_mb
from bench.peers.environments import command as peer_command
from bench.spark_cluster import BenchCluster
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, eventually

# clonos_cluster, spark_cluster: on a standalone cluster.
# clonos_live: in steps instead of epochs.
# clonos_atomic: on the cluster, with epochs that the driver publishes. clonos_local: with as many task slots as the
# cluster. flink_tuned, quix_tuned: with settings for short latencies and restarts.
Subject = Literal[
    "clonos",
    "clonos_live",
    "clonos_local",
    "clonos_cluster",
    "clonos_atomic",
    "spark_default",
    "spark_tuned",
    "spark_cluster",
    "flink",
    "flink_tuned",
    "quix",
    "quix_tuned",
]
SUBJECTS: tuple[Subject, ...] = ("clonos", "spark_default", "spark_tuned")
PARTITIONS = 4
_HERE = Path(__file__).parent
_SAMPLE_S = 0.5
_START_TIMEOUT_S = 120.0


def make_topic(kafka: KafkaSettings, prefix: str, *, partitions: int = PARTITIONS) -> str:
    """A new topic, of four partitions by default."""
    topic = f"{prefix}-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))  # closed clients lose their futures
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(15)
    return topic


@dataclass
class RunningDriver:
    """A running driver.

    Attributes:
        start: Starts the driver's process.
        output: Output topic of the driver.
        folder: Where the driver stores its files.
        process: The newest process of the driver.
        peak_pss_mb: Peak memory of all its processes; shared pages count proportionally (PSS).
    """

    start: Callable[[], ChildProcess]
    output: str
    folder: Path
    peak_pss_mb: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.process = self.start()

    def watch(self) -> None:
        """Sample memory until `_done`."""
        while not self._done.wait(_SAMPLE_S):
            total = sum(memory_mb(self.process.members()).values())
            self.peak_pss_mb = max(self.peak_pss_mb, total)

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

    def restart(self) -> float:
        """Kill all processes of the driver with SIGKILL and start it again; returns the time of the kill."""
        moment = time.monotonic()
        self.process.kill()
        self.process = self.start()
        return moment

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
    cluster: BenchCluster | None = None,
    partitions: int = 0,
) -> Iterator[RunningDriver]:
    """Start a driver, and kill it at the end of the context.

    Args:
        subject: What runs the job; some need `cluster`.
        kafka: The Kafka cluster of input and output.
        home: Directory for the driver's files.
        source: Input topic.
        kind: Kind of job (`bench.jobs.subject`).
        per_epoch: Maximum number of records of an epoch; 0: no maximum.
        depth: Sharing depth of the causal log.
        cluster: The Spark cluster; ``clonos_local`` has as many task slots.
        partitions: Number of shuffle partitions; 0: the default.
    """
    out = make_topic(kafka, "out")
    folder = home / f"{subject}-{kind}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    command = _command(
        subject,
        kafka,
        folder,
        source,
        out,
        kind=kind,
        per_epoch=per_epoch,
        depth=depth,
        cluster=cluster,
        partitions=partitions,
    )
    environment = {
        "CLONOS_HOME": str(home),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_HERE.parent), os.environ.get("PYTHONPATH", "")))),
    }
    if cluster is not None:
        environment["CLONOS_CLUSTER_SECRET"] = cluster.secret
    run = RunningDriver(lambda: ChildProcess(command, environment, folder / "driver.log"), out, folder)
    watcher = threading.Thread(target=run.watch, daemon=True)
    watcher.start()
    try:
        yield run
    finally:
        run._done.set()
        watcher.join()
        run.process.kill()


def _command(
    subject: Subject,
    kafka: KafkaSettings,
    folder: Path,
    source: str,
    out: str,
    *,
    kind: str,
    per_epoch: int,
    depth: str,
    cluster: BenchCluster | None,
    partitions: int,
) -> list[str]:
    if subject in ("flink", "flink_tuned", "quix", "quix_tuned"):
        return peer_command(
            "flink" if subject.startswith("flink") else "quix",
            tuned=subject.endswith("_tuned"),
            bootstrap=kafka.bootstrap_servers,
            kind=kind,
            source=source,
            output=out,
            folder=folder / "checkpoint",
        )
    if subject.startswith("spark_"):
        command = [sys.executable, "-m", "bench.jobs.plain", "--session", subject.removeprefix("spark_")]
        command += ["--kind", kind, "--input", source, "--output", out, "--per-epoch", str(per_epoch)]
        if subject == "spark_cluster":
            assert cluster is not None
            command += ["--master", cluster.master, "--executors", str(cluster.executors)]
        return [*command, "--checkpoint", str(folder / "checkpoint")]
    place: dict[str, object] = {}
    if subject == "clonos_live":
        per_epoch = 0  # an epoch lasts minutes, and a limit of its records is refused
    if subject == "clonos_cluster" or subject == "clonos_atomic":
        assert cluster is not None
        place = cluster.spec() | ({"delivery": "atomic-epoch"} if subject == "clonos_atomic" else {})
    elif subject == "clonos_live":
        place = {"trigger": {"mode": "live"}}
    elif subject == "clonos_local":
        assert cluster is not None
        place = {"master": f"local[{cluster.executors}]"}
    width = partitions or (200 if kind == "counts" else 0)
    spec = {
        "apiVersion": "clonos/v1",
        "kind": "Job",
        "metadata": {"name": folder.name.replace("_", "-")},
        "spec": {
            "main": str(_HERE / "jobs" / "subject.py"),
            "sharingDepth": depth,
            **place,
            **({"shufflePartitions": width} if width else {}),
            "checkpoint": f"file://{folder / 'checkpoint'}",
            "params": {"kind": kind, "per_epoch": str(per_epoch), "input": source, "output": out},
        },
    }
    (folder / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
    events = str(folder / "events.jsonl")
    return [sys.executable, "-m", "clonos", "run", str(folder / "job.yaml"), "--events", events]
