"""Epochs with many partitions: 64 of the source, and 200 of a shuffle; and with many lanes on a cluster."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from bench.latency import Arrivals, quantiles
from bench.progress import log_progress
from bench.spark_cluster import BenchCluster
from bench.subjects import RunningDriver, Subject, make_topic, running_driver
from clonos.kafka import client_config
from clonos.log.records import EpochCommitted, Marker, Plan, Record, decode
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import read_committed

LANES: Final = (4, 64, 256)
_WARM_UP: Final = 10
_TIMEOUT_S: Final = 60.0
_DURATION: Final = re.compile(r"\] epoch .*\bduration_ms=(\d+)")


def measure(kafka: KafkaSettings, home: Path, *, bursts: int, subjects: list[Subject]) -> dict[str, Any]:
    """``width_ms``: by shape and subject the latency of a whole burst, and the duration of its epochs.

    A shuffle cannot run live. Instead of durations of epochs, ``clonos_live`` has the longest steps of seconds.
    """
    shapes: dict[str, Any] = {"source_64": {}, "shuffle_200": {}}
    for subject in subjects:
        for shape, kind, partitions in (("source_64", "identity", 64), ("shuffle_200", "counts", 4)):
            if subject == "clonos_live" and kind == "counts":
                continue
            source = make_topic(kafka, "in", partitions=partitions)
            with running_driver(subject, kafka, home, source, kind=kind) as run:
                shapes[shape][subject] = _bursts(kafka, run, source, partitions, bursts)
            log_progress(f"{subject} {shape}: {shapes[shape][subject]['all_visible']['p50']} ms")
    return {"width_ms": shapes}


def measure_lanes(
    kafka: KafkaSettings, home: Path, cluster: BenchCluster, *, lanes: list[int], bursts: int
) -> dict[str, Any]:
    """``lanes``: by subject and the number of partitions with rows in each epoch on a Spark cluster, the latency of a
    burst to all of them, the duration of its epoch, the size of its plan, the log's bytes and transactions for it, and
    the duration of a claim. Each partition is a lane of ``clonos_cluster``; all are one lane of ``clonos_atomic``.
    """
    measured: dict[Subject, dict[int, Any]] = {"clonos_cluster": {}, "clonos_atomic": {}}
    for subject, results in measured.items():
        for partitions in lanes:
            source = make_topic(kafka, "in", partitions=partitions)
            with running_driver(subject, kafka, home, source, cluster=cluster) as run:
                results[partitions] = _bursts(kafka, run, source, partitions, bursts)
                log = log_topic(run.folder.name.replace("_", "-"))
                results[partitions] |= _log_of_an_epoch(kafka, log)
                run.restart()
                _bursts(kafka, run, source, partitions, 1)
                results[partitions]["claim_s"] = _claim_s(run)
            log_progress(f"{subject}, {partitions} partitions: {results[partitions]['all_visible']['p50']} ms")
    return {"lanes": measured}


def _log_of_an_epoch(kafka: KafkaSettings, log: str) -> dict[str, int]:
    """The median size of a plan, and the log's bytes and transactions for an epoch.

    Plan, marker of a lane, and end of the epoch are a transaction each (docs/protocol.md).
    """
    sizes: dict[type[Record], list[int]] = {}
    for message in read_committed(kafka, log):
        value = message.value() or b""
        sizes.setdefault(type(decode(value, where=log)), []).append(len(value))
    of_epochs = [size for kind in (Plan, Marker, EpochCommitted) for size in sizes.get(kind, [])]
    epochs = len(sizes[Plan])
    return {
        "plan_bytes": round(statistics.median(sizes[Plan])),
        "log_bytes": round(sum(of_epochs) / epochs),
        "transactions": round(len(of_epochs) / epochs),
    }


def _claim_s(run: RunningDriver) -> float:
    """Seconds from the beginning of the newest claim to its end."""
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    claimed = max(event["at"] for event in events if event["event"] == "claimed")
    begun = max(event["at"] for event in events if event.get("state") == "CLAIMING" and event["at"] <= claimed)
    return float(round(claimed - begun, 3))


def _bursts(kafka: KafkaSettings, run: RunningDriver, source: str, partitions: int, bursts: int) -> dict[str, Any]:
    producer = Producer(client_config(kafka, linger_ms=0))
    arrivals = Arrivals(kafka, run.output)
    took: list[float] = []

    def send(burst: int) -> list[str]:
        keys = [f"{burst}-{number}" for number in range(partitions)]
        for number, key in enumerate(keys):
            producer.produce(source, b"{}", key, partition=number)
        producer.flush(30)
        return keys

    try:
        run.await_start(arrivals.has_arrived, lambda: send(-1))
        for burst in range(_WARM_UP + bursts):
            began = time.perf_counter()
            newest = max(arrivals.wait(key, _TIMEOUT_S) for key in send(burst))
            if burst >= _WARM_UP:
                took.append(newest - began)
    finally:
        arrivals.close()
    durations = [int(number) / 1000 for number in _DURATION.findall(run.process.log.read_text())][-bursts:]
    return {"all_visible": quantiles(took), **({"epoch": quantiles(durations)} if durations else {})}
