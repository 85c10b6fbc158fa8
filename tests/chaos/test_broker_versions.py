"""Jobs on older brokers, and jobs whose ids of producers and transactions expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from drivers import JOBS, Driver, Feeder, JobRun, Published, caught_up, expected_counts, final_counts, make_topics

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import Jars, ensure_jars
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from support.brokers.interface import HEAP_MB
from support.jars import fetched_jars

pytestmark = [pytest.mark.full, pytest.mark.embedded]

# Version → checksum of its jars.
VERSIONS: Final = {
    "3.4.1": "f1aea37ee49485dafa8eb263da95ee9d187c0a3d3f92c36ff39c3a7d0cdd0c1a",
    "3.9.1": "91dfee5da8faf06be9ad302c4052ffd7a1f0a166e6c696f00eb4ab1d833471e8",
}
_EXPIRES_MS: Final = "15000"
_PROPERTIES: Final = {
    "transactional.id.expiration.ms": _EXPIRES_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": _EXPIRES_MS,
    "producer.id.expiration.check.interval.ms": "1000",
}


@pytest.fixture(params=VERSIONS)
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaSettings]:
    """A broker of one of `VERSIONS`, where unused ids expire after 15 s."""
    broker = fetched_jars("org.apache.kafka", "kafka_2.13", request.param, VERSIONS[request.param])
    # Not below the folder of the embedded version: its start-up cache fits its jars only.
    jars = Jars(connector=broker / "connector", broker=broker, compiler=ensure_jars(Settings()).compiler)
    with EmbeddedKafka(tmp_path / "kafka", jars=jars, properties=_PROPERTIES, heap_mb=HEAP_MB) as cluster:
        yield cluster.kafka


@pytest.mark.chaos(fault="SIGKILL; ids expire", target="driver", topology="clonos run, brokers of two versions")
@pytest.mark.timeout(900)
def test_brokers_of_other_versions_and_ids_that_expire(older: KafkaSettings, name: str, tmp_path: Path) -> None:
    """A driver is killed with a lane that is published and not committed in the checkpoint. The ids of its successor
    expire while that one runs without input, and those of the last driver while no driver runs.
    """
    topics = make_topics(older, input=3, output=2, counts=2)
    run = JobRun(older, name, tmp_path / "home", JOBS / "points.py", topics)
    feeder = Feeder(older, topics["input"], 3)

    def complete() -> bool:
        return caught_up(run, topics["output"], feeder.sent) and (
            final_counts(older, topics["counts"]) == expected_counts(feeder.sent)
        )

    def exact(driver: Driver) -> None:
        eventually(lambda: complete() or not driver.running, "the output is complete", timeout_s=90)
        assert driver.running, driver.tail()
        assert Published.read(older, topics["output"]).faults(feeder.sent) == {}
        assert final_counts(older, topics["counts"]) == expected_counts(feeder.sent)

    try:
        feeder.burst(20)
        killed = run.start("lane-committed,query=plain:kill")
        killed.await_fault("lane-committed,query=plain")
        killed.await_kill()
        running = run.start()
        exact(running)
        known = expired(older, name)
        eventually(lambda: expired(older, name) > known, "an id has expired beside the driver", timeout_s=60)
        feeder.burst(20)
        exact(running)
        running.stop_gracefully()
        known = expired(older, name)
        eventually(lambda: expired(older, name) > known, "an id has expired without a driver", timeout_s=60)
        last = run.start()
        feeder.burst(20)
        exact(last)
        last.stop_gracefully()
        eventually(lambda: not has_open_transaction(older, topics["output"], topics["counts"]), "nothing is open")
    finally:
        run.end()


def expired(kafka: KafkaSettings, job: str) -> int:
    """The number of times that Kafka has removed a transactional id of the job."""
    records = read_committed(kafka, "__transaction_state")
    return sum(record.value() is None and f"clonos.{job}.".encode() in (record.key() or b"") for record in records)
