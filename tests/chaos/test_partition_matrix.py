"""Topics of 1, 2, 3, 4, 5 and 9 partitions, with and without a shuffle, killed with some lanes committed.

`make test` runs 1, 3 and 9 partitions.

Spark runs a small topic's partitions in one order the first time and in another in a replay; what dedups on
Spark's partition index loses one partition and doubles another here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, Driver, Feeder, JobRun

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed

COUNTS = (1, 3, 9)
ALL_COUNTS = (1, 2, 3, 4, 5, 9)
SHUFFLED_LANES = 4


def lanes_of(query: str) -> int:
    return SHUFFLED_LANES if query.startswith("shuffled") else int(query.removeprefix("same"))


def queries_of(counts: tuple[int, ...]) -> list[str]:
    return [f"{kind}{count}" for count in counts for kind in ("same", "shuffled")]


def half_committed(queries: list[str]) -> tuple[str, list[str], list[str]]:
    """Faults that hold the upper half of each query's lanes before they commit; which lanes commit, which wait."""
    held, free = [], []
    for query in queries:
        lanes = lanes_of(query)
        for lane in range(lanes):
            (held if lane >= max(1, lanes // 2) else free).append(f"query={query},lane={lane},replay=False")
    waits = [f"lane-begun,{lane}" for lane in held]
    commits = [f"lane-committed,{lane}" for lane in free]
    # An epoch cannot end while a lane waits; a topic of one partition has no other lane, so it waits itself.
    actions = {point: "hold" if "query=same1," in point else "note" for point in commits}
    return ";".join(f"{point}:{actions.get(point, 'hold')}" for point in [*waits, *commits]), waits, commits


@pytest.fixture
def counts(every_point: bool) -> tuple[int, ...]:
    """The numbers of partitions."""
    return ALL_COUNTS if every_point else COUNTS


@pytest.fixture
def run(
    kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path, counts: tuple[int, ...]
) -> Iterator[JobRun]:
    params = {"partitions": " ".join(map(str, counts))}
    for count in counts:
        params[f"in{count}"] = make_topic(count, f"in{count}")
    for query in queries_of(counts):
        params[f"out-{query}"] = make_topic(1, f"out-{query}")
    # Waiting tasks keep their slots.
    spec = {
        "master": "local[28]",
        "sparkConf": {"spark.sql.shuffle.partitions": SHUFFLED_LANES},
        "driver": {"memory": "1024m"},
    }
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "matrix.py", params, spec)
    yield run
    run.end()


def await_half(driver: Driver, points: list[str]) -> None:
    def all_there() -> bool:
        assert driver.running, driver.tail()
        return driver.faults.exists() and set(points) <= set(driver.faults.read_text().splitlines())

    def missing() -> str:
        seen = set(driver.faults.read_text().splitlines()) if driver.faults.exists() else set()
        return ", ".join(sorted(set(points) - seen))

    eventually(all_there, "half of the lanes", timeout_s=120, details=lambda: f"missing {missing()}\n{driver.tail()}")


@pytest.mark.turn(3, 7, 11, 15)  # test_named_points.py kills drivers in other turns
@pytest.mark.chaos(
    fault="SIGKILL with half of the lanes committed", target="driver", topology="clonos run, 1 to 9 partitions"
)
@pytest.mark.timeout(3000)
def test_a_replay_publishes_the_lanes_that_are_not_committed(
    kafka: KafkaSettings,
    run: JobRun,
    counts: tuple[int, ...],
    every_point: bool,
) -> None:
    feeders = {count: Feeder(kafka, run.params[f"in{count}"], count) for count in counts}
    queries = queries_of(counts)
    fault, waits, commits = half_committed(queries)
    rounds = 3 if every_point else 1  # the job's first epoch, then ones that follow a replay
    for _ in range(rounds):
        for count, feeder in feeders.items():
            feeder.burst(30 * count)
        driver = run.start(fault)
        await_half(driver, [*waits, *commits])
        driver.kill()
    final = run.start()
    for query in queries:
        sent = feeders[int(query.removeprefix("same").removeprefix("shuffled"))].sent
        topic = run.params[f"out-{query}"]

        def complete(topic: str = topic, count: int = len(sent)) -> bool:
            assert final.running, final.tail()
            return len(read_committed(kafka, topic)) >= count

        eventually(complete, f"{query} is complete", timeout_s=90, details=final.tail)
    final.stop_gracefully()
    for query in queries:
        sent = feeders[int(query.removeprefix("same").removeprefix("shuffled"))].sent
        records = [json.loads(m.value() or b"{}") for m in read_committed(kafka, run.params[f"out-{query}"])]
        assert Counter(record["word"] for record in records) == Counter(word for _, word in sent), query
        if query.endswith("3"):
            assert len({record["verdict"]["uuid"] for record in records}) == len(records)
        if query.startswith("same"):
            assert_order(records, query)
        eventually(lambda t=run.params[f"out-{query}"]: not has_open_transaction(kafka, t), "no transaction is open")
    skipped = sum(event["skipped_lanes"] for event in run.events_of("epoch"))
    assert skipped >= rounds * len(commits)


def assert_order(records: list[dict[str, int]], query: str) -> None:
    last: dict[int, int] = {}
    for record in records:
        assert record["offset"] > last.get(record["partition"], -1), (query, record)
        last[record["partition"]] = record["offset"]
