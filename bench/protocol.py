"""Cost of the commit protocol without Spark: the claim of a job.

The baseline in the same run is a plain transaction with the same record, on a reused producer.
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings, Settings

_ROUNDS = 100


def _timed(name: str, rounds: int, step: Callable[[int], object]) -> dict[str, float]:
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        step(number)
        took.append((time.perf_counter() - began) * 1000)
    ranked = sorted(took)
    print(f"{name}: median {statistics.median(took):.1f} ms over {rounds}", file=sys.stderr, flush=True)
    return {"p50": round(statistics.median(ranked), 2), "p99": round(ranked[int(len(ranked) * 0.99) - 1], 2)}


def measure(kafka: KafkaSettings) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each step, in milliseconds."""
    topic, job = f"bench-{secrets.token_hex(3)}", f"bench-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(15)
    own = claim(kafka, job)
    own.ensure_lanes("out", 4)
    producer = TransactionalProducer(kafka, f"bare.{topic}", own.topic)
    return {
        "bare_transaction_ms": _timed("bare transaction", _ROUNDS, lambda _: producer.commit_all(topic, [b"value"], 0)),
        "claim_four_lanes_ms": _timed("claim a job of four lanes", 20, lambda _: claim(kafka, job)),
    }


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedKafka(Path(home) / "kafka", jars=ensure_jars(Settings())) as cluster,
    ):
        print(json.dumps(measure(cluster.kafka)))


if __name__ == "__main__":
    main()
