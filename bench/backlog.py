"""A job that starts on a topic of old records, with a slow function, and is killed while it reads them.

``python -m bench.backlog --json``; ``--records`` and ``--kills`` choose a shorter run. The benchmark measures how long
a read_committed reader of the output waits for the stable offset, and checks that each record is published once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, TopicPartition

from bench.progress import exit_on_sigterm, log_progress
from bench.subjects import PARTITIONS, RunningDriver, running_driver
from bench.throughput import preload
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import ClonosError
from clonos.kafka import client_config
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings, Settings

_POLL_S: Final = 0.05
_ALLOWED_WAIT_S: Final = 2.0
_STALLED_S: Final = 120.0
_AT_ONCE: Final = 10_000
_EPOCH_S: Final = 4.0  # the target of the bound (`clonos.driver.epoch_bound`)
_DURATION: Final = re.compile(r"\] epoch .*\bduration_ms=(\d+)")


class StableOffsets:
    """Measures how long the last stable offset of each partition stays below its high watermark without a change.

    Args:
        kafka: The Kafka cluster.
        topic: The topic.

    Attributes:
        waits_s: The waits that have ended, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self.waits_s: list[float] = []
        self._offsets = OffsetClient(kafka)
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._waiting: dict[tuple[str, int], tuple[int, float]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    @contextmanager
    def watched(self) -> Iterator[StableOffsets]:
        """Poll inside the context."""
        self._thread.start()
        try:
            yield self
        finally:
            self._done.set()
            self._thread.join()

    def _poll(self) -> None:
        while not self._done.wait(_POLL_S):
            try:
                stable = self._offsets.ends(self._partitions)
                ends = self._offsets.ends(self._partitions, IsolationLevel.READ_UNCOMMITTED)
            except ClonosError as failure:
                log_progress(f"the offsets could not be read: {failure}")
                continue
            self._compare(stable, ends, time.monotonic())

    def _compare(self, stable: dict[tuple[str, int], int], ends: dict[tuple[str, int], int], now: float) -> None:
        for partition, offset in stable.items():
            waiting = self._waiting.get(partition)
            if waiting is not None and waiting[0] != offset:
                self.waits_s.append(now - waiting[1])
                del self._waiting[partition]
            if ends[partition] > offset:
                self._waiting.setdefault(partition, (offset, now))


class Published:
    """Counts the records of the output by their ids, as a read_committed reader.

    Args:
        kafka: The Kafka cluster.
        topic: The output topic.
        records: Number of records of the input.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, records: int) -> None:
        config = client_config(kafka, group_id="bench", isolation_level="read_committed", enable_partition_eof=False)
        self._consumer = Consumer(config)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._counts = bytearray(records)
        self.distinct = 0
        self.doubled = 0

    def read(self) -> int:
        """Read what has arrived; returns the number of records."""
        messages = self._consumer.consume(_AT_ONCE, 0.1)
        for message in messages:
            number = json.loads(message.value() or b"")["id"]
            self.distinct += not self._counts[number]
            self.doubled += bool(self._counts[number])
            self._counts[number] = 1
        return len(messages)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def measure(kafka: KafkaSettings, home: Path, *, records: int, kills: int) -> dict[str, Any]:
    """Drain a topic of old records, with kills at equal shares of it; `bench/README.md` lists the keys."""
    source = preload(kafka, records)
    with (
        running_driver("clonos", kafka, home, source, kind="slow") as run,
        StableOffsets(kafka, run.output).watched() as stable,
    ):
        published = Published(kafka, run.output, records)
        began = time.monotonic()
        longest_gap_s = _drain(run, published, records, kills)
        drained_s = time.monotonic() - began
        while published.read():  # a record that is published twice may come after the last one
            pass
        published.close()
        epochs_s = [int(found) / 1000 for found in _DURATION.findall(run.process.log.read_text())]
    return {
        "records": records,
        "kills": kills,
        "drained_s": round(drained_s, 1),
        "rows_per_s": round(records / drained_s),
        "lost": records - published.distinct,
        "doubled": published.doubled,
        "epochs": len(epochs_s),
        "epoch_s": {"p50": round(median(epochs_s), 2), "max": round(max(epochs_s), 2)},
        "longest_gap_s": round(longest_gap_s, 2),
        "longest_stable_wait_s": round(max(stable.waits_s, default=0.0), 2),
        "stable_waits_over_2s": sum(wait > _ALLOWED_WAIT_S for wait in stable.waits_s),
    }


def _drain(run: RunningDriver, published: Published, records: int, kills: int) -> float:
    """Read the output until it is complete; returns the longest time between two arrivals, in seconds."""
    kills_at = [records * number // (kills + 1) for number in range(1, kills + 1)]
    arrived = time.monotonic()
    longest = 0.0
    draw, due = random.Random(7), None
    while published.distinct < records:
        run.process.check_running()
        if published.read():
            now = time.monotonic()
            longest, arrived = max(longest, now - arrived), now
        elif time.monotonic() - arrived > _STALLED_S:
            raise TimeoutError(f"{published.distinct} of {records} were published, and none for {_STALLED_S:.0f} s")
        if kills_at and published.distinct >= kills_at[0]:
            kills_at.pop(0)
            due = time.monotonic() + draw.uniform(0, _EPOCH_S)  # records arrive only when an epoch ends
        if due is not None and time.monotonic() >= due:
            log_progress(f"kill at {published.distinct} records")
            run.restart()
            due = None
    return longest


def main() -> None:
    """Start a broker, run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object last (always; for symmetry)")
    parser.add_argument("--records", type=int, default=2_000_000, help="of the input")
    parser.add_argument("--kills", type=int, default=3, help="of the driver, with SIGKILL")
    arguments = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        log_progress("starting a broker")
        with EmbeddedKafka(place / "kafka", jars=ensure_jars(Settings())) as cluster:
            figures = measure(cluster.kafka, place, records=arguments.records, kills=arguments.kills)
            print(json.dumps({"cores": len(os.sched_getaffinity(0)), "backlog": figures}), flush=True)


if __name__ == "__main__":
    main()
