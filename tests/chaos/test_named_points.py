"""Kill, or stop and continue, a real driver at every named point of the protocol."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import (
    JOBS,
    SUPERSEDED,
    Driver,
    Feeder,
    JobRun,
    Published,
    caught_up,
    expected_counts,
    final_counts,
)

from clonos.faults import POINTS
from clonos.log.reading import shared_reader
from clonos.log.records import Marker
from clonos.log.topic import log_topic, partition_count
from clonos.settings import KafkaSettings
from observe import ends_agree, eventually, read_committed

pytestmark = pytest.mark.chaos

# In an epoch that no earlier attempt planned; claiming comes before any epoch.
EPOCH_POINTS = (
    "offsets-logged",
    "plan-committed",
    "determinants-acknowledged",
    "lane-initialised",
    "lane-tail-read",
    "lane-decided",
    "lane-begun",
    "lane-produced",
    "state-committed",
    "lane-marked",
    "lane-committed",
    "end-committed",
    "epoch-done",
)
CLAIM_POINTS = ("control-initialised", "control-claimed", "lane-claim-initialised", "lane-claimed", "claim-checked")
STATEFUL_POINTS = ("state-committed", "lane-committed")


def fresh(point: str, query: str = "plain") -> str:
    return f"{point},query={query},replay=False"


EVERY = [*map(fresh, EPOCH_POINTS), *(fresh(point, "counts") for point in STATEFUL_POINTS), *CLAIM_POINTS]
# Each point costs a cold start. The others are killed and stopped without Spark in tests/contracts.
KILLED = [
    *map(fresh, ("offsets-logged", "determinants-acknowledged", "lane-committed", "end-committed")),
    fresh("state-committed", "counts"),
]
STOPPED = [*map(fresh, ("plan-committed", "lane-marked", "epoch-done"))]


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {
        "input": make_topic(3, "in"),
        "output": make_topic(2, "out"),
        "counts": make_topic(2, "counts"),
    }
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "points.py", params)
    yield run
    run.end()


def test_the_chain_names_every_point() -> None:
    assert set(EPOCH_POINTS) | set(CLAIM_POINTS) == POINTS


@pytest.mark.timeout(1500)
def test_kill_and_stop_at_named_points(kafka: KafkaSettings, run: JobRun, every_point: bool) -> None:
    """Killed at each point, then stopped at each; a zombie wakes up when its successor has reached its own point."""
    with Feeder(kafka, run.params["input"], 3) as feeder:
        for fault in EVERY if every_point else KILLED:
            print("killing at", fault, flush=True)
            driver = run.start(f"{fault}:kill")
            driver.reached(fault)
            driver.died()
        asleep: list[Driver] = []
        unclaimed: list[Driver] = []
        for fault in EVERY if every_point else STOPPED:
            print("stopping at", fault, flush=True)
            driver = run.start(f"{fault}:stop")
            driver.reached(fault)
            if fault == "control-initialised":
                # It has not claimed, so it supersedes nobody: who woke up now would rightly go on.
                unclaimed.append(driver)
                continue
            for zombie in asleep:
                wakes_up_superseded(zombie)
            # Nor is it superseded: awake, it takes over as any start does, until the next one does.
            for starter in unclaimed:
                claims = len(run.told("claimed"))
                starter.signal(signal.SIGCONT)
                eventually(lambda n=claims: len(run.told("claimed")) > n, "the starter claims", timeout_s=90)
            asleep = [driver, *unclaimed]
            unclaimed.clear()
        claims = len(run.told("claimed"))
        final = run.start()
        eventually(lambda: len(run.told("claimed")) > claims, "the last one claims", timeout_s=90)
        for zombie in asleep:
            wakes_up_superseded(zombie)
    check_after(kafka, run, feeder, final)


def wakes_up_superseded(zombie: Driver) -> None:
    zombie.signal(signal.SIGCONT)
    code = zombie.wait()
    assert code == SUPERSEDED, f"the zombie ended with {code}:\n{zombie.tail()}"
    zombie.kill()


def check_after(kafka: KafkaSettings, run: JobRun, feeder: Feeder, final: Driver) -> None:
    """Multiset equality, per-key order, no open transaction, markers monotonic in (generation, epoch)."""
    output, counts = run.params["output"], run.params["counts"]
    eventually(lambda: caught_up(run, output, feeder.sent), "the output is complete", timeout_s=90)
    eventually(
        lambda: final_counts(kafka, counts) == expected_counts(feeder.sent), "the counts are complete", timeout_s=60
    )
    final.stop()
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    assert len(read_committed(kafka, output)) == len(feeder.sent)
    eventually(lambda: ends_agree(kafka, output) and ends_agree(kafka, counts), "no transaction is open")
    assert_markers_monotonic(kafka, run.name)


def assert_markers_monotonic(kafka: KafkaSettings, job: str) -> None:
    reader = shared_reader(kafka, log_topic(job))
    partitions = partition_count(kafka, log_topic(job))
    assert partitions > 1
    for partition in range(1, partitions):
        low, end = reader.bounds(partition)
        markers = [record for _, record in reader.stretch(partition, low, end) if isinstance(record, Marker)]
        steps = [(marker.owner.lineage, marker.epoch) for marker in markers]
        assert steps == sorted(set(steps))
        assert [m.owner.generation for m in markers] == sorted(m.owner.generation for m in markers)
