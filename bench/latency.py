"""Latency of records from producer to read_committed reader: under steady loads, then one record at a time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench.outages.usage import cpu_s, memory_mb
from bench.progress import log_progress
from bench.spark_cluster import BenchCluster
from bench.subjects import PARTITIONS, SUBJECTS, RunningDriver, Subject, make_topic, running_driver
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_ARRIVAL_TIMEOUT_S = 30.0
RATE: Final = 200
_MANY: Final = 5000  # records a second, from which on the producer makes batches
_BATCHES_MS: Final = 5
_SHORTEST_SLEEP_S: Final = 0.001


@dataclass
class Arrivals:
    """A read_committed reader that notes the arrival time of each key."""

    kafka: KafkaSettings
    topic: str
    at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = Consumer(
            client_config(
                self.kafka,
                group_id="bench",
                isolation_level="read_committed",
                enable_auto_commit=False,
                fetch_wait_max_ms=5,
                fetch_error_backoff_ms=1,
                fetch_queue_backoff_ms=1,
            )
        )
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    log_progress(f"reader: {error.str()}")
                continue
            now = time.perf_counter()
            with self._changed:
                self.at.setdefault((message.key() or b"").decode(), now)
                self._changed.notify_all()
        consumer.close()

    def wait(self, key: str, timeout_s: float) -> float:
        """Wait for `key`; returns its arrival time."""
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.at, timeout_s):
                raise TimeoutError(f"{key} did not arrive in {timeout_s} s")
            return self.at[key]

    def has_arrived(self) -> bool:
        """Whether a record arrived."""
        return bool(self.at)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()


def quantiles(seconds: list[float]) -> dict[str, Any]:
    """Median and 99th percentile in milliseconds, with all samples."""
    ranked = sorted(value * 1000 for value in seconds)
    return {
        "p50": round(statistics.median(ranked), 1),
        "p99": round(ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))], 1),
        "n": len(ranked),
        "samples": [round(value, 1) for value in ranked],
    }


def measure(
    kafka: KafkaSettings,
    home: Path,
    *,
    singles: int,
    seconds: float,
    subjects: tuple[Subject, ...] = SUBJECTS,
    cluster: BenchCluster | None = None,
    kind: str = "identity",
    rates: Sequence[int] = (RATE,),
    brokers: Iterable[int] = (),
) -> dict[str, dict[str, Any]]:
    """``latency_ms`` of each subject, and ``latency_load_ms`` of each subject and rate in records per second.

    `brokers` are the process ids of the brokers, for their CPU time.
    """
    broker_processes = [psutil.Process(pid) for pid in brokers]
    results: dict[str, dict[str, Any]] = {"latency_ms": {}, "latency_load_ms": {}}
    for subject in subjects:
        source = make_topic(kafka, "in")
        producer = Producer(client_config(kafka, linger_ms=0))
        with running_driver(subject, kafka, home, source, cluster=cluster, kind=kind) as run:
            arrivals = Arrivals(kafka, run.output)
            try:
                run.await_start(arrivals.has_arrived, partial(produce, producer, source, "first", 0))
                results["latency_load_ms"][subject] = {}
                for rate in rates:
                    load = _Load(kafka, source, arrivals, rate, seconds)
                    results["latency_load_ms"][subject][rate] = measured = load.measure(run, broker_processes)
                    log_progress(f"{subject}, {rate} records/s: {_brief(measured)}, cores {measured['cores']}")
                # After the loads: the code of a driver that has just started is not compiled yet.
                results["latency_ms"][subject] = quantiles(_singles(producer, source, arrivals, singles))
                log_progress(f"{subject}, one at a time: {_brief(results['latency_ms'][subject])}")
            finally:
                arrivals.close()
                run.process.check_running()
    return results


def _brief(latency: dict[str, Any]) -> str:
    return f"{latency['p50']} ms, p99 {latency['p99']} ms"


def produce(producer: Producer, topic: str, key: str, number: int) -> float:
    """Send a small record; returns the time."""
    sent = time.perf_counter()
    producer.produce(
        topic,
        b'{"some": "payload", "of": "about", "eighty": "bytes", "which": "is", "all": 1}',
        key,
        partition=number % PARTITIONS,
    )
    producer.poll(0)
    return sent


def _singles(producer: Producer, topic: str, arrivals: Arrivals, count: int) -> list[float]:
    warm_up = 20
    took = []
    for number in range(warm_up + count):
        key = f"one-{number}"
        sent = produce(producer, topic, key, number)
        arrived = arrivals.wait(key, _ARRIVAL_TIMEOUT_S)
        if number >= warm_up:
            took.append(arrived - sent)
    return took


@dataclass
class _Load:
    """A steady load of `rate` records a second, for `seconds` after the warm-up."""

    kafka: KafkaSettings
    topic: str
    arrivals: Arrivals
    rate: int
    seconds: float

    def measure(self, run: RunningDriver, brokers: list[psutil.Process]) -> dict[str, Any]:
        """Latencies, CPU time of the driver and of the brokers in cores, and the driver's memory."""
        producer = Producer(client_config(self.kafka, linger_ms=_BATCHES_MS if self.rate >= _MANY else 0))
        self._send(producer, "warm", 20.0)  # class loading, code generation and JIT
        before, began = self._used(run, brokers), time.perf_counter()
        sent = self._send(producer, "load", self.seconds)
        took = time.perf_counter() - began
        cores = {name: round((used - before[name]) / took, 3) for name, used in self._used(run, brokers).items()}
        if producer.flush(30):
            raise TimeoutError("the load could not be written")
        latencies = [self.arrivals.wait(key, _ARRIVAL_TIMEOUT_S) - at for key, at in sent.items()]
        return {**quantiles(latencies), "cores": cores, "pss_mb": sum(memory_mb(run.process.members()).values())}

    def _used(self, run: RunningDriver, brokers: list[psutil.Process]) -> dict[str, float]:
        return {"driver": sum(cpu_s(run.process.members()).values()), "broker": sum(cpu_s(brokers).values())}

    def _send(self, producer: Producer, name: str, seconds: float) -> dict[str, float]:
        began = time.perf_counter()
        sent: dict[str, float] = {}
        for number in range(int(self.rate * seconds)):
            while (left := began + number / self.rate - time.perf_counter()) > 0:
                time.sleep(max(left, _SHORTEST_SLEEP_S))
            key = f"{name}-{self.rate}-{number}"
            sent[key] = produce(producer, self.topic, key, number)
        return sent
