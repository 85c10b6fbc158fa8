"""A day with a takeover each minute, without Spark: what grows on the brokers.

``python -m bench.day --json``; ``--takeovers``, ``--epochs``. Simulates 1,440 takeovers, and 12 epochs after each: a
twentieth of a day's epochs at four a second. A takeover is a claim of a job with four lanes. An epoch is its plan, a
transaction for each lane, and its commit; the causal log is truncated each 100 epochs. After each takeover, new Python
workers write determinants with producers of their own. A driver ends between two epochs, so no takeover finds an open
transaction. Lanes use librdkafka, which keeps its producer id; Kafka's Java client takes a new one after some 32,000
transactions (KIP-890).

Segments of the causal log and of Kafka's log of transactions are shorter by `_EPOCH_DIVISOR`, and time limits of the
broker by `_TIME_DIVISOR`, because the day takes about 20 minutes. The broker forgets a producer after two simulated
hours, not after a day, so that the run shows where their number ends.

Samples have the number of transactional ids, of idempotent producers that the broker remembers for the partitions of
the causal log and of the output, the offsets that the causal log spans, and the megabytes of the causal log and of
Kafka's log of transactions. ``slopes`` has their growth per simulated hour, as in `bench.endurance`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.endurance import Sample, megabytes, slopes
from bench.outages.transactions import producers, transactions
from bench.progress import exit_on_sigterm, log_progress
from bench.subjects import PARTITIONS, make_topic
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.kafka import client_config
from clonos.log.claiming import Ownership, claim
from clonos.log.control import RETAINED_EPOCHS, lane_id
from clonos.log.records import Determinant, Determinants, EpochCommitted, InputSlice, Marker, Plan, encode
from clonos.log.topic import SEGMENT_BYTES
from clonos.log.transaction import TransactionalProducer
from clonos.log.truncation import truncate
from clonos.settings import KafkaSettings, Settings

_LANES: Final = PARTITIONS
_TAKEOVERS: Final = 24 * 60
_EPOCHS_PER_S: Final = 4
# A day has this many times as many epochs.
_EPOCH_DIVISOR: Final = 20
_EPOCHS: Final = 60 * _EPOCHS_PER_S // _EPOCH_DIVISOR  # after each takeover
_WORKERS: Final = 4  # Python workers of a driver that write determinants
_SAMPLES: Final = 48
_QUERY: Final = "out"
_RECORDS: Final = 10  # in each lane of an epoch
_TIME_DIVISOR: Final = 72
_MIN_SEGMENT_BYTES: Final = 1 << 20  # Kafka's
# Kafka's own values: a day, ten minutes, five minutes, one minute, 100 MB.
_BROKER: Final = {
    "producer.id.expiration.ms": str(2 * 3_600_000 // _TIME_DIVISOR),
    "producer.id.expiration.check.interval.ms": str(600_000 // _TIME_DIVISOR),
    "log.retention.check.interval.ms": str(300_000 // _TIME_DIVISOR),
    "log.segment.delete.delay.ms": str(60_000 // _TIME_DIVISOR),
    "transaction.state.log.segment.bytes": str(100 * _MIN_SEGMENT_BYTES // _EPOCH_DIVISOR),
}


class _Driver:
    """Commits epochs of an owned job, one lane after another, without Spark."""

    def __init__(self, kafka: KafkaSettings, job: str, output: str) -> None:
        self.own: Ownership = claim(kafka, job)
        self._partitions = self.own.ensure_lanes(_QUERY, _LANES)
        if not self.own.markers:  # only new lanes are claimed by `ensure_lanes`
            self.own.claim_lanes(self.own.state.assignments())
        self._output = output
        self._lanes = [
            TransactionalProducer(kafka, lane_id(job, _QUERY, lane), self.own.topic) for lane in range(_LANES)
        ]

    def record_determinants(self, epoch: int) -> None:
        """Write a record of determinants from new workers, each with an idempotent producer of its own."""
        answers = (Determinant(bytes(16), b"answer", service="bench"),)
        config = client_config(self.own.kafka, enable_idempotence=True, linger_ms=0)
        workers = [Producer(config) for _ in range(_WORKERS)]
        for number, worker in enumerate(workers):
            record = Determinants(self.own.owner, _QUERY, epoch, "operator", number, answers)
            worker.produce(self.own.topic, encode(record), partition=self._partitions[number % _LANES])
        assert all(worker.flush(15) == 0 for worker in workers)

    def commit_epoch(self, epoch: int) -> None:
        """Commit the plan, all lanes and the epoch; truncate the log when a driver does."""
        own = self.own
        slices = tuple(
            InputSlice("range", "in", lane, _RECORDS * epoch, _RECORDS * (epoch + 1)) for lane in range(_LANES)
        )
        plan = Plan(
            own.owner,
            _QUERY,
            epoch,
            input_slices=slices,
            scans=(slices,),
            log_partitions=self._partitions,
            start_offsets={partition: own.tail_offsets[partition] for partition in self._partitions},
            seed=secrets.randbits(63),
            code="",
            offsets=json.dumps({"in": {each.partition: each.until for each in slices}}),
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        own.state.take(own.control.append(plan), plan)
        for lane, producer in enumerate(self._lanes):
            marker = Marker(own.owner, _QUERY, epoch, lane, slices[lane], _RECORDS, bytes(16))
            producer.begin()
            for number in range(_RECORDS):
                producer.produce(self._output, b"%032d" % number, partition=lane)
            producer.produce(own.topic, encode(marker), partition=self._partitions[lane])
            producer.commit()
        committed = EpochCommitted(own.owner, _QUERY, epoch, _RECORDS * _LANES)
        own.state.take(own.control.append(committed), committed)
        if epoch % RETAINED_EPOCHS == RETAINED_EPOCHS - 1:
            truncate(own)
            # The renewed claims of the lanes fenced their producers.
            self._lanes = [
                TransactionalProducer(own.kafka, producer.transactional_id, own.topic) for producer in self._lanes
            ]

    def close(self) -> None:
        """Release the producers, as the end of a process does."""
        for producer in self._lanes:
            producer.dispose()
        self.own.control.dispose()


def measure(kafka: KafkaSettings, data: Path, *, takeovers: int, epochs: int) -> dict[str, Any]:
    """Run `takeovers` drivers one after another, each with `epochs` epochs.

    Args:
        kafka: A cluster of one broker, with the settings `_BROKER`.
        data: The directory of the broker.
        takeovers: Number of drivers.
        epochs: Epochs of each driver.

    Returns:
        ``samples``: the figures over the simulated time, and their ``slopes``.
    """
    job, output = f"bench-{secrets.token_hex(3)}", make_topic(kafka, "out")
    samples: list[Sample] = []
    epoch = 0
    for takeover in range(takeovers):
        driver = _Driver(kafka, job, output)
        if takeover == 0:
            _shorten_segments(kafka, driver.own.topic)
        driver.record_determinants(epoch)
        for _ in range(epochs):
            driver.commit_epoch(epoch)
            epoch += 1
        if (takeover + 1) % max(1, takeovers // _SAMPLES) == 0:
            samples.append(Sample(60.0 * (takeover + 1), _figures(kafka, data, driver.own, output)))
            log_progress(f"hour {(takeover + 1) / 60:.1f}: {samples[-1].figures}")
        driver.close()
    return {
        "takeovers": takeovers,
        "epochs": epoch,
        "slopes": slopes(samples),
        "samples": [asdict(sample) for sample in samples],
    }


def _shorten_segments(kafka: KafkaSettings, topic: str) -> None:
    size = max(_MIN_SEGMENT_BYTES, SEGMENT_BYTES // _EPOCH_DIVISOR)
    entry = ConfigEntry("segment.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(client_config(kafka))
    admin.incremental_alter_configs([resource])[resource].result(15)


def _figures(kafka: KafkaSettings, data: Path, own: Ownership, output: str) -> dict[str, float]:
    partitions = [0, *own.state.lanes.values()]
    bounds = [own.reader.bounds(partition) for partition in partitions]
    remembered = producers(kafka, {own.topic: partitions, output: list(range(PARTITIONS))})
    return {
        "transactional_ids": len(transactions(kafka)),
        "remembered_producers": sum(remembered.values()),
        "causal_log_offsets": sum(high - low for low, high in bounds),
        "causal_log_mb": megabytes(data, f"{own.topic}-"),
        "transaction_log_mb": megabytes(data, "__transaction_state-"),
    }


def main() -> int:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--takeovers", type=int, default=_TAKEOVERS, help="claims by a new driver")
    parser.add_argument("--epochs", type=int, default=_EPOCHS, help="epochs after each takeover")
    arguments = parser.parse_args()
    exit_on_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as home,
        EmbeddedKafka(Path(home), jars=ensure_jars(Settings()), properties=_BROKER) as cluster,
    ):
        results = measure(cluster.kafka, Path(home), takeovers=arguments.takeovers, epochs=arguments.epochs)
    print(json.dumps(results) if arguments.json else json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
