"""A Spark standalone cluster of real processes on this machine, whose executors a test can kill."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, Self

import psutil

from clonos.embedded.jars import ensure_jars
from clonos.embedded.java import java_binary
from clonos.embedded.layout import free_ports
from clonos.embedded.processes import ProcessRecord, spawn, stop_all
from clonos.embedded.standalone_spark import StandaloneSpark, WorkerSize
from clonos.settings import Settings
from clonos.spark.jvm import executor_cache
from clonos.testing.harness import eventually

_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
_START_S: Final = 120


class StandaloneCluster:
    """A master, and workers that have room for one executor of one core each.

    Args:
        folder: Directory for logs and for the files of workers.
        workers: Number of workers.
        size: What each worker offers to executors.
    """

    def __init__(
        self, folder: Path, workers: int = 2, *, size: WorkerSize = WorkerSize(cores=1, memory_mb=900)
    ) -> None:
        self._folder = folder
        self._workers = [f"worker-{number}" for number in range(workers)]
        port, ui_port = free_ports(2)
        cache = executor_cache(ensure_jars(Settings()), java_binary())
        self.spark = StandaloneSpark(folder / "spark", port=port, ui_port=ui_port, size=size, cache=cache)
        self.processes: dict[str, ProcessRecord] = {}
        self._paused: list[int] = []

    @property
    def master(self) -> str:
        """The master's URL."""
        return self.spark.master

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that builds its own session: a Java that Spark's launcher can start, and the
        cluster's secret.
        """
        java = self.spark.environment()["JAVA_HOME"]
        return {"JAVA_HOME": java, "CLONOS_CLUSTER_SECRET": self.spark.secret}

    def __enter__(self) -> Self:
        self.spark.prepare()
        try:
            self.start("master")
            eventually(lambda: self.spark.report() is not None, "the master answers", timeout_s=_START_S)
            for worker in self._workers:
                self.start(worker)
            self._await_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, name: str) -> None:
        """Start ``master`` or a worker, also again after it was killed."""
        command = self.spark.master_command() if name == "master" else self.spark.worker_command(name)
        self.processes[name] = spawn(
            command, output=self._log(name), directory=self._folder, environment=self.spark.environment()
        )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def log(self, name: str) -> str:
        """The log of ``master``, or of a worker."""
        return self._log(name).read_text(errors="replace")

    def executors(self) -> list[int]:
        """The process ids of the executors."""
        workers = [self.processes[name].pid for name in self._workers]
        return [pid for worker in workers for pid in children_of(worker) if _EXECUTOR in _command(pid)]

    def executor_of(self, python: int) -> int:
        """The process id of the executor of a Python worker."""
        return next(pid for pid in self.executors() if python in children_of(pid))

    def worker_of(self, python: int) -> str:
        """The name of the worker that started the executor of a Python worker."""
        return next(name for name in self._workers if python in children_of(self.processes[name].pid))

    def kill_executor(self, python: int) -> None:
        """Send SIGKILL to the executor of a Python worker, and to all of its Python workers."""
        self.kill(self.executor_of(python))

    def kill_worker(self, name: str) -> None:
        """Send SIGKILL to a worker, its executors and their Python workers: the loss of a host."""
        self.kill(self.processes[name].pid)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a process and all its descendants."""
        _signal_tree(pid, signal.SIGKILL)

    def pause(self, pid: int) -> None:
        """Send SIGSTOP to a process and all its descendants."""
        self._paused.append(pid)
        _signal_tree(pid, signal.SIGSTOP)

    def resume_all(self) -> None:
        """Send SIGCONT to all processes that were paused."""
        for pid in self._paused:
            _signal_tree(pid, signal.SIGCONT)
        self._paused.clear()

    def start_missing(self) -> None:
        """Start the processes again that were killed, and wait until all workers have registered."""
        for name, process in list(self.processes.items()):
            if process.find() is None:
                self.start(name)
        self._await_workers()

    def _await_workers(self) -> None:
        eventually(
            lambda: (report := self.spark.report()) is not None and report.workers == len(self._workers),
            "all workers have registered",
            timeout_s=_START_S,
        )

    def __exit__(self, *_: object) -> None:
        self.resume_all()
        for name in self._workers:
            if name in self.processes:
                self.kill_worker(name)
        stop_all(list(self.processes.values()), grace_s=30)


def _signal_tree(root: int, number: signal.Signals) -> None:
    for pid in [root, *children_of(root)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    """The process ids of the children of a process, and of theirs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
