"""Kill, or stop and continue, a real driver at every named point of the protocol."""

from __future__ import annotations

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

from clonos.faults import CLAIM_POINTS, EPOCH_POINTS
from clonos.log.reading import shared_reader
from clonos.log.records import Marker
from clonos.log.topic import log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import end_offsets, eventually, has_open_transaction, read_committed

STATEFUL_POINTS = ("state-committed", "lane-committed")


# A fault at a point of an epoch triggers only in a first attempt, not in a replay. Claim points precede all epochs.
def fresh(point: str, query: str = "plain") -> str:
    return f"{point},query={query},replay=False"


EVERY = [*map(fresh, EPOCH_POINTS), *(fresh(point, "counts") for point in STATEFUL_POINTS), *CLAIM_POINTS]
# Each point costs a cold start. Tests in tests/integration reach the others with claims and tasks alone.
KILLED = [*map(fresh, ("determinants-acknowledged", "lane-committed")), fresh("state-committed", "counts")]
STOPPED = [*map(fresh, ("lane-marked", "epoch-done"))]


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


@pytest.mark.turn(1, 5, 9, 13)  # test_partition_matrix.py kills drivers in other turns
@pytest.mark.chaos(fault="SIGKILL, SIGSTOP at each protocol point", target="driver", topology="clonos run")
@pytest.mark.timeout(3000)
def test_a_driver_is_killed_and_paused_at_each_protocol_point(
    kafka: KafkaSettings, run: JobRun, every_point: bool
) -> None:
    """Kill a driver at each point, then pause one at each; a zombie resumes once its successor is at its point."""
    killed, stopped = (EVERY, EVERY) if every_point else (KILLED, STOPPED)
    with Feeder(kafka, run.params["input"], 3) as feeder:
        for fault in killed:
            print("killing at", fault, flush=True)
            driver = run.start(f"{fault}:kill")
            driver.await_fault(fault)
            driver.await_kill()
        asleep: list[Driver] = []
        unclaimed: list[Driver] = []
        for fault in stopped:
            print("stopping at", fault, flush=True)
            driver = run.start(f"{fault}:stop")
            driver.await_fault(fault)
            if fault == "control-initialised":
                # It has not claimed, so it supersedes no driver: a driver resumed now would rightly continue.
                unclaimed.append(driver)
                continue
            for zombie in asleep:
                resume_superseded(zombie)
            # No driver supersedes it either: once resumed, it takes over as any start does.
            for starter in unclaimed:
                claims = len(run.events_of("claimed"))
                starter.resume()
                eventually(lambda n=claims: len(run.events_of("claimed")) > n, "the starter claims", timeout_s=90)
            asleep = [driver, *unclaimed]
            unclaimed.clear()
        claims = len(run.events_of("claimed"))
        final = run.start()
        eventually(lambda: len(run.events_of("claimed")) > claims, "the last one claims", timeout_s=90)
        for zombie in asleep:
            resume_superseded(zombie)
    check_after(kafka, run, feeder, final)


def resume_superseded(zombie: Driver) -> None:
    zombie.resume()
    code = zombie.wait()
    assert code == SUPERSEDED, f"the zombie exited with {code}:\n{zombie.tail()}"
    zombie.kill()


def check_after(kafka: KafkaSettings, run: JobRun, feeder: Feeder, final: Driver) -> None:
    """Multiset equality, per-key order, no open transaction, markers monotonic in (generation, epoch)."""
    output, counts = run.params["output"], run.params["counts"]
    eventually(lambda: caught_up(run, output, feeder.sent), "the output is complete", timeout_s=90)
    eventually(
        lambda: final_counts(kafka, counts) == expected_counts(feeder.sent), "the counts are complete", timeout_s=60
    )
    final.stop_gracefully()
    assert Published.read(kafka, output).faults(feeder.sent) == {}
    assert len(read_committed(kafka, output)) == len(feeder.sent)
    eventually(
        lambda: not has_open_transaction(kafka, output, counts),
        "no transaction is open",
    )
    assert_markers_monotonic(kafka, run.name)


def assert_markers_monotonic(kafka: KafkaSettings, job: str) -> None:
    reader = shared_reader(kafka, log_topic(job))
    partitions = len(end_offsets(kafka, log_topic(job)))
    assert partitions > 1
    for partition in range(1, partitions):
        low, end = reader.bounds(partition)
        markers = [record for _, record in reader.read(partition, low, end) if isinstance(record, Marker)]
        steps = [(marker.owner.lineage, marker.epoch) for marker in markers]
        assert steps == sorted(set(steps))
        assert [m.owner.generation for m in markers] == sorted(m.owner.generation for m in markers)
