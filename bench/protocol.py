"""Cost of the commit protocol without Spark: the claim of a job, by the number of its lanes.

``python -m bench.protocol``; ``--lanes 4 64 256 1000`` for more lanes than the default. The baseline in the same run is
a plain transaction with the same record, on a reused producer. ``threads`` is the maximum number of threads of this
process during the claims: each Kafka client has several.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench.progress import log_progress
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings, Settings

_ROUNDS = 100
_LANES = (4, 64, 256)
_SAMPLE_S = 0.05


def _timed(name: str, rounds: int, step: Callable[[int], object]) -> dict[str, float]:
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        step(number)
        took.append((time.perf_counter() - began) * 1000)
    ranked = sorted(took)
    log_progress(f"{name}: median {statistics.median(took):.1f} ms over {rounds}")
    return {"p50": round(statistics.median(ranked), 2), "p99": round(ranked[int(len(ranked) * 0.99) - 1], 2)}


def _claims(kafka: KafkaSettings, lanes: int, rounds: int) -> dict[str, Any]:
    """The duration of claims of a job with `lanes` lanes in ms, and the maximum number of threads."""
    job = f"bench-{secrets.token_hex(3)}"
    claim(kafka, job).ensure_lanes("out", lanes)
    done, threads = threading.Event(), [0]

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            threads.append(psutil.Process().num_threads())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        took = _timed(f"claim a job of {lanes} lanes", rounds, lambda _: claim(kafka, job))
    finally:
        done.set()
        sampler.join()
    return {**took, "threads": max(threads)}


def measure(kafka: KafkaSettings, lanes: list[int]) -> dict[str, Any]:
    """Median and 99th percentile of each step, in milliseconds."""
    topic = f"bench-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(15)
    producer = TransactionalProducer(kafka, f"bare.{topic}", topic)
    return {
        "bare_transaction_ms": _timed("bare transaction", _ROUNDS, lambda _: producer.commit_all(topic, [b"value"], 0)),
        "claim_ms": {number: _claims(kafka, number, 20 if number <= 4 else 5) for number in lanes},
    }


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", nargs="+", type=int, default=list(_LANES), help="numbers of lanes to claim")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedKafka(Path(home) / "kafka", jars=ensure_jars(Settings())) as cluster,
    ):
        print(json.dumps(measure(cluster.kafka, arguments.lanes)))


if __name__ == "__main__":
    main()
