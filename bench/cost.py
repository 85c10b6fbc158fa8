"""CPU time per epoch: the driver's JVM by kind of thread, its Python, and the broker, at several rates of records."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Producer

from bench.latency import Arrivals, produce
from bench.outages.usage import cpu_s, memory_mb
from bench.progress import log_progress
from bench.subjects import RunningDriver, Subject, make_topic, running_driver
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_RATES: Final = (0, 1, 20, 200)
_WARM_UP_S: Final = 20.0  # class loading, code generation and JIT
_WARM_UP_RATE: Final = 200
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_THREADS: Final = {  # beginning of the thread's name; Linux keeps 15 bytes of it
    "C1 CompilerThre": "compiler",
    "C2 CompilerThre": "compiler",
    "G1 ": "garbage collection",
    "GC Thread": "garbage collection",
    "stream executio": "stream thread",
    "Executor task l": "tasks",
    "kafka-": "Kafka clients",
    "Thread-": "Python gateway",
    "spark-listener-": "listeners",
    "dispatcher-": "scheduler",
    "task-result-get": "scheduler",
    "dag-scheduler-e": "scheduler",
}


def measure(
    kafka: KafkaSettings, home: Path, brokers: Iterable[int], *, seconds: float, subjects: tuple[Subject, ...]
) -> dict[str, Any]:
    """``cost`` of each subject and rate; `brokers` are the process ids of the brokers."""
    costs: dict[str, Any] = {}
    broker_processes = [psutil.Process(pid) for pid in brokers]
    for subject in subjects:
        source = make_topic(kafka, "in")
        producer = Producer(client_config(kafka, linger_ms=0))
        with running_driver(subject, kafka, home, source) as run:
            arrivals = Arrivals(kafka, run.output)
            try:
                run.await_start(arrivals.has_arrived, partial(produce, producer, source, "first", 0))
            finally:
                arrivals.close()  # the reader's fetches would be part of the broker's time
            _send(producer, source, _WARM_UP_RATE, _WARM_UP_S)
            costs[subject] = {}
            for rate in _RATES:
                before = _sample(run, broker_processes)
                _send(producer, source, rate, seconds)
                costs[subject][rate] = _difference(before, _sample(run, broker_processes))
                log_progress(f"{subject}, {rate} records/s: {costs[subject][rate]}")
            costs[subject]["pss_mb"] = memory_mb(run.process.members())
            run.process.check_running()
    return {"cost": costs}


@dataclass
class _Sample:
    """What the processes have used so far; `cpu` and `threads` are CPU seconds."""

    time_s: float
    epochs: int
    cpu: dict[str, float]
    threads: dict[str, float]


def _sample(run: RunningDriver, brokers: list[psutil.Process]) -> _Sample:
    members = list(run.process.members())
    used = cpu_s(members)
    jvm = used.pop("java", 0.0)
    cpu = {"driver_jvm": jvm, "driver_python": sum(used.values()), "broker": sum(cpu_s(brokers).values())}
    threads: dict[str, float] = {}
    for member in members:
        with contextlib.suppress(psutil.Error):
            if member.name() == "java":
                threads = _threads(member.pid)
    threads["other"] = threads.get("other", 0.0) + jvm - sum(threads.values())
    return _Sample(time.perf_counter(), _epochs(run.folder), cpu, threads)


def _threads(pid: int) -> dict[str, float]:
    """CPU seconds of the live threads by kind."""
    used: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name, _, rest = (task / "stat").read_text().rpartition(")")
            name = name.partition("(")[2]
            kind = next((kind for prefix, kind in _THREADS.items() if name.startswith(prefix)), "other")
            used[kind] = used.get(kind, 0.0) + sum(int(field) for field in rest.split()[11:13]) / _TICKS
    return used


def _epochs(folder: Path) -> int:
    """Number of committed epochs of all queries."""
    total = 0
    for commits in folder.rglob("commits"):
        total += max((int(path.name) + 1 for path in commits.iterdir() if path.name.isdigit()), default=0)
    return total


def _difference(before: _Sample, after: _Sample) -> dict[str, Any]:
    elapsed_s = after.time_s - before.time_s
    epochs = after.epochs - before.epochs
    cpu = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
    threads = {name: used - before.threads.get(name, 0.0) for name, used in after.threads.items()}

    def per_epoch(used: dict[str, float]) -> dict[str, float]:
        return {name: round(1000 * value / max(epochs, 1), 1) for name, value in used.items()}

    figures: dict[str, Any] = {
        "epochs_per_s": round(epochs / elapsed_s, 2),
        "cores": {name: round(value / elapsed_s, 3) for name, value in cpu.items()},
        "jvm_cores": {name: round(value / elapsed_s, 3) for name, value in sorted(threads.items())},
    }
    if epochs:
        figures |= {"ms_per_epoch": per_epoch(cpu) | {"total": round(1000 * sum(cpu.values()) / epochs, 1)}}
    return figures


def _send(producer: Producer, topic: str, rate: int, seconds: float) -> None:
    """Send `rate` records per second, evenly."""
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        produce(producer, topic, f"cost-{number}", number)
    producer.flush(30)
    time.sleep(max(0.0, began + seconds - time.perf_counter()))
