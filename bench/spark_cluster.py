"""A Spark standalone cluster for benchmarks: a master and workers of one core each, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clonos.embedded.jars import ensure_jars
from clonos.embedded.java import java_binary
from clonos.embedded.layout import free_ports
from clonos.embedded.processes import spawn, stop_all
from clonos.embedded.standalone_spark import StandaloneSpark, WorkerSize
from clonos.settings import Settings
from clonos.spark.jvm import executor_cache
from clonos.testing.harness import eventually

EXECUTOR_MEMORY: Final = "1g"
_ROOM_MB: Final = 1600
_START_S: Final = 120.0


@dataclass(frozen=True)
class BenchCluster:
    """A running cluster, and the size of the applications on it.

    Attributes:
        master: URL of the master.
        secret: The secret that applications authenticate with.
        executors: Executors of an application, of one core each.
    """

    master: str
    secret: str
    executors: int

    def spec(self) -> dict[str, Any]:
        """The part of a job's specification that places it on the cluster."""
        executor = {"instances": self.executors, "cores": 1, "memory": EXECUTOR_MEMORY}
        return {"master": self.master, "executor": executor}


@contextmanager
def bench_cluster(folder: Path, *, workers: int) -> Iterator[BenchCluster]:
    """Start a cluster, and stop it at the end of the context."""
    folder.mkdir(parents=True)
    port, ui_port = free_ports(2)
    size = WorkerSize(cores=1, memory_mb=_ROOM_MB)
    cache = executor_cache(ensure_jars(Settings()), java_binary())
    spark = StandaloneSpark(folder / "spark", port=port, ui_port=ui_port, size=size, cache=cache)
    spark.prepare()
    commands = {"master": spark.master_command()}
    commands |= {name: spark.worker_command(name) for name in (f"worker-{number}" for number in range(workers))}
    processes = []

    def registered() -> int:
        report = spark.report()
        return report.workers if report is not None else -1

    try:
        for name, command in commands.items():
            log = folder / f"{name}.log"
            processes.append(spawn(command, output=log, directory=folder, environment=spark.environment()))
            if name == "master":
                eventually(lambda: registered() >= 0, "the master answers", timeout_s=_START_S)
        eventually(lambda: registered() == workers, "all workers have registered", timeout_s=_START_S)
        yield BenchCluster(spark.master, spark.secret, workers)
    finally:
        stop_all(processes[::-1], grace_s=30)
