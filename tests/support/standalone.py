"""A Spark standalone cluster of real processes on this machine, from the wheel of PySpark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import pyspark

from clonos.embedded.layout import free_ports
from clonos.testing.harness import eventually
from support.java import java_home

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """A master, and workers of one core with one executor each.

    Args:
        folder: Directory for logs and for the files of workers.
        workers: Number of workers.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        ports = free_ports(2 + 2 * workers)
        self._ports = ports
        self.master = f"spark://127.0.0.1:{ports[0]}"
        self.environment = {"JAVA_HOME": java_home(folder / "java")}

    def __enter__(self) -> Self:
        address = ["--host", "127.0.0.1", "--port"]
        try:
            self._start("master", _MASTER, *address, str(self._ports[0]), "--webui-port", str(self._ports[1]))
            eventually(lambda: "I have been elected leader" in self.log("master"), "the master leads", timeout_s=60)
            for number in range(self._workers):
                port, ui = self._ports[2 + 2 * number : 4 + 2 * number]
                limits = ["--cores", "1", "--memory", "900m", "--webui-port", str(ui)]
                folder = str(self._folder / f"worker-{number}")
                self._start(
                    f"worker {number}", _WORKER, *address, str(port), *limits, "--work-dir", folder, self.master
                )
            eventually(
                lambda: self.log("master").count("Registering worker") == self._workers,
                "all workers have registered",
                timeout_s=60,
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name: str, *command: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, **self.environment, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
        log = (self._folder / f"{name}.log").open("wb")
        self._logs.append(log)
        self._processes.append(
            subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        )

    def log(self, name: str) -> str:
        """The log of the master, or of a worker."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def executors(self) -> list[int]:
        """The process ids of the executors."""
        return [pid for worker in self._processes[1:] for pid in _descendants(worker.pid) if _EXECUTOR in _command(pid)]

    def kill_executor(self, python: int) -> None:
        """Send SIGKILL to the executor of a Python worker, and to all of its Python workers."""
        (executor,) = [pid for pid in self.executors() if python in _descendants(pid)]
        for pid in [executor, *_descendants(executor)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            for pid in _descendants(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait(30)
        for log in self._logs:
            log.close()


def _descendants(pid: int) -> Iterator[int]:
    """The children of a process, and theirs."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
