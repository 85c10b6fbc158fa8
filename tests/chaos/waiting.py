"""A job on a Spark cluster of real processes. One of its tasks waits while others of its epoch finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from drivers import JOBS, Driver, Feeder, JobRun, Published, caught_up, expected_counts, final_counts

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually

PARTITIONS: Final = 4
BEFORE, EPOCH, AFTER = 40, 80, 40
TRIGGER: Final = BEFORE + 37  # number of the record at which a task waits, once
_START_S: Final = 240.0


class Cluster(Protocol):
    """A cluster whose executors are processes of this machine."""

    def executors(self) -> list[int]: ...

    def executor_of(self, python: int) -> int: ...


C = TypeVar("C", bound=Cluster)


@dataclass
class Waiting(Generic[C]):
    """A job on the cluster; one of its tasks waits."""

    cluster: C
    run: JobRun
    driver: Driver
    waits: Path

    @property
    def python(self) -> int:
        """The process id of the Python worker that waits."""
        return int(self.waits.read_text())

    def release(self) -> None:
        """Let the waiting task continue, if it still exists."""
        Path(f"{self.waits}.go").touch()

    def other_executor(self) -> int:
        """The process id of an executor that does not run the waiting task."""
        executor = self.cluster.executor_of(self.python)
        return next(pid for pid in self.cluster.executors() if pid != executor)

    def restarts(self) -> int:
        """The number of claims after the first one."""
        return len(self.run.events_of("claimed")) - 1


@dataclass
class WaitingJobs(Generic[C]):
    """Starts jobs on a cluster.

    Attributes:
        cluster: The cluster.
        kafka: The Kafka cluster.
        name: The name of the next job.
        make_topic: Creates a topic.
        folder: A folder for the files of jobs.
        spec: More fields of the job's specification.
        arguments: More arguments of `clonos run`.
        environment: Environment variables of drivers.
        padding: Bytes that are added to each record of the output.
    """

    cluster: C
    kafka: KafkaSettings
    name: str
    make_topic: Callable[..., str]
    folder: Path
    spec: dict[str, Any]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    padding: int = 0

    def start(self, kind: str) -> tuple[JobRun, Callable[[], tuple[Waiting[C], Feeder]]]:
        """Prepare a job; the second result starts it and returns when a task waits."""
        source, waits = self.make_topic(PARTITIONS, "in"), self.folder / "waits"
        feeder = Feeder(self.kafka, source, PARTITIONS)
        params = {"input": source, "output": self.make_topic(1, "out"), "kind": kind, "waits": str(waits)}
        params["padding"] = str(self.padding)
        params["trigger"] = f"{chr(97 + TRIGGER % 7)}{TRIGGER}"
        run = JobRun(self.kafka, self.name, self.folder / "home", JOBS / "on_cluster.py", params, self.spec)

        def until_a_task_waits() -> tuple[Waiting[C], Feeder]:
            driver = run.start(arguments=self.arguments, environment=self.environment)
            feeder.burst(BEFORE)
            while_running(driver, lambda: bool(run.events_of("epoch")), "the first epoch is committed")
            feeder.burst(EPOCH)
            while_running(driver, lambda: waits.exists() and waits.read_text() != "", "a task waits")
            return Waiting(self.cluster, run, driver, waits), feeder

        return run, until_a_task_waits


def while_running(driver: Driver, check: Callable[[], bool], description: str) -> None:
    """Wait for a condition, as long as the driver runs."""

    def checked() -> bool:
        assert driver.running, driver.tail()
        return check()

    eventually(checked, description, timeout_s=_START_S, details=driver.tail)


def check_output(run: JobRun, feeder: Feeder, kind: str) -> None:
    """Wait until all input is published, and compare."""
    output = run.params["output"]
    driver = run.started[-1]
    if kind == "stateful":
        expected = expected_counts(feeder.sent)
        while_running(driver, lambda: final_counts(run.kafka, output) == expected, "all records are counted")
        return
    while_running(driver, lambda: caught_up(run, output, feeder.sent), "all records are published")
    assert Published.read(run.kafka, output).faults(feeder.sent) == {}
