"""Cost of the commit protocol without Spark: the claim of a job, by the number of its lanes.

``python -m bench.protocol``; ``--lanes 4 64 256 1000`` for more lanes than the default. The baseline in the same run is
a plain transaction with the same record, on a reused producer. ``threads`` is the maximum number of threads of this
process during the claims: each Kafka client has several.

With ``--clients``, ``openings_ms`` compares Kafka's Java client, in a warm JVM of Spark, with librdkafka for the steps
of a claim: fence the earlier producer of a transactional id and commit one record. The connections are new (``fresh``),
or ``prepared`` before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from bench.progress import exit_on_sigterm, log_progress
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.kafka import client_config, java_options
from clonos.log.claiming import claim
from clonos.log.transaction import TransactionalProducer, connect, producer_config
from clonos.settings import KafkaSettings, Settings

_ROUNDS = 100
_LANES = (4, 64, 256)
_SAMPLE_S = 0.05
_WARM_UPS: Final = 10
_AT_ONCE: Final = (1, 4)
# As for the producers of lanes: a transaction right after a fencing is refused until that is complete.
_JAVA: Final = {
    "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "linger.ms": "0",
    "retry.backoff.ms": "2",
    "transaction.timeout.ms": "60000",
    "enable.metrics.push": "false",
}


def _timed(name: str, rounds: int, step: Callable[[int], object]) -> dict[str, float]:
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        step(number)
        took.append((time.perf_counter() - began) * 1000)
    log_progress(f"{name}: median {statistics.median(took):.1f} ms over {rounds}")
    return _ranked(took)


def _ranked(took: list[float]) -> dict[str, float]:
    ranked = sorted(took)
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


def _openings(kafka: KafkaSettings, topic: str) -> dict[str, Any]:
    """Subject → number of transactional ids at once → duration of their fencing and first commit, in milliseconds."""
    jars = ensure_jars(Settings())
    paths = ",".join(map(str, jars.connector.glob("*.jar")))
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.jars": paths,
        "spark.driver.memory": "512m",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    jvm: Any = spark._jvm
    clients = jvm.org.apache.kafka.clients.producer

    def java(name: str) -> Any:
        properties = jvm.java.util.Properties()
        for key, value in (java_options(kafka) | _JAVA | {"transactional.id": name}).items():
            properties.setProperty(key, value)
        return clients.KafkaProducer(properties)

    def unprepared(_name: str) -> None:
        return None

    def prepared_java(name: str) -> Any:
        producer = java(name)
        producer.partitionsFor(topic)
        return producer

    def commit_java(name: str, prepared: Any) -> Callable[[], object]:
        producer = java(name) if prepared is None else prepared
        producer.initTransactions()
        producer.beginTransaction()
        producer.send(clients.ProducerRecord(topic, 0, None, bytearray(b"value")))
        producer.commitTransaction()
        return lambda: producer.close(jvm.java.time.Duration.ZERO)

    def prepared_librdkafka(name: str) -> Producer:
        producer = Producer(producer_config(kafka, name))
        connect(producer, topic, 5.0)
        return producer

    def commit_librdkafka(name: str, prepared: Producer | None) -> Callable[[], object]:
        producer = TransactionalProducer(kafka, name, topic, connected=[prepared].pop if prepared else None)
        producer.commit_all(topic, [b"value"], 0)
        return producer.dispose

    subjects: dict[str, tuple[Callable[[str], Any], Callable[[str, Any], Callable[[], object]]]] = {
        "librdkafka_fresh": (unprepared, commit_librdkafka),
        "java_fresh": (unprepared, commit_java),
        "librdkafka_prepared": (prepared_librdkafka, commit_librdkafka),
        "java_prepared": (prepared_java, commit_java),
    }
    took: dict[str, dict[int, list[float]]] = {subject: {ids: [] for ids in _AT_ONCE} for subject in subjects}
    with ThreadPoolExecutor(max(_AT_ONCE)) as pool:
        for number, ids in itertools.product(range(_WARM_UPS + _ROUNDS), _AT_ONCE):
            for subject in random.sample(list(subjects), len(subjects)):
                prepare, commit = subjects[subject]
                names = [f"{subject.split('_')[0]}.{ids}.{each}" for each in range(ids)]
                prepared = [prepare(name) for name in names]
                began = time.perf_counter()
                ends = list(pool.map(commit, names, prepared))
                if number >= _WARM_UPS:
                    took[subject][ids].append((time.perf_counter() - began) * 1000)
                for end in ends:
                    end()
    spark.stop()
    return {subject: {ids: _ranked(times) for ids, times in by_ids.items()} for subject, by_ids in took.items()}


def measure(kafka: KafkaSettings, lanes: list[int], *, clients: bool) -> dict[str, Any]:
    """Median and 99th percentile of each step, in milliseconds."""
    topic = f"bench-{secrets.token_hex(3)}"
    admin = AdminClient(client_config(kafka))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(15)
    producer = TransactionalProducer(kafka, f"bare.{topic}", topic)
    openings = {"openings_ms": _openings(kafka, topic)} if clients else {}
    return {
        **openings,
        "bare_transaction_ms": _timed("bare transaction", _ROUNDS, lambda _: producer.commit_all(topic, [b"value"], 0)),
        "claim_ms": {number: _claims(kafka, number, 20 if number <= 4 else 5) for number in lanes},
    }


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", nargs="+", type=int, default=list(_LANES), help="numbers of lanes to claim")
    parser.add_argument("--clients", action="store_true", help="compare Kafka's Java client with librdkafka, too")
    arguments = parser.parse_args()
    exit_on_sigterm()
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedKafka(Path(home) / "kafka", jars=ensure_jars(Settings())) as cluster,
    ):
        print(json.dumps(measure(cluster.kafka, arguments.lanes, clients=arguments.clients)))


if __name__ == "__main__":
    main()
