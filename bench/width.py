"""Duration of an epoch with many partitions: 64 of the source, and 200 of a shuffle."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from bench.latency import Arrivals, quantiles
from bench.progress import log_progress
from bench.subjects import RunningDriver, Subject, make_topic, running_driver
from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_WARM_UP: Final = 10
_TIMEOUT_S: Final = 60.0
_DURATION: Final = re.compile(r"\] epoch .*\bduration_ms=(\d+)")


def measure(kafka: KafkaSettings, home: Path, *, bursts: int, subjects: list[Subject]) -> dict[str, Any]:
    """``width_ms``: by shape and subject the latency of a whole burst, and the duration of its epochs."""
    shapes: dict[str, Any] = {"source_64": {}, "shuffle_200": {}}
    for subject in subjects:
        for shape, kind, partitions in (("source_64", "identity", 64), ("shuffle_200", "counts", 4)):
            source = make_topic(kafka, "in", partitions=partitions)
            with running_driver(subject, kafka, home, source, kind=kind) as run:
                shapes[shape][subject] = _bursts(kafka, run, source, partitions, bursts)
            log_progress(f"{subject} {shape}: {shapes[shape][subject]['all_visible']['p50']} ms")
    return {"width_ms": shapes}


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
