"""Savepoints of stateful checkpoints, taken while the job runs, and jobs that start from a savepoint."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import JobOwner
from clonos.driver.savepoint import Copied
from clonos.errors import CheckpointForeign
from clonos.jobs.context import JobContext
from clonos.jobs.definition import JobFunction
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.spark.local_folder import LocalFolder
from clonos.testing.harness import read_committed

MakeTopic = Callable[..., str]


def feed(kafka: KafkaSettings, topic: str, words: list[str]) -> None:
    producer = Producer(client_config(kafka))
    for number, word in enumerate(words):
        producer.produce(topic, word.encode(), partition=number % 2)
    assert producer.flush(30) == 0


def counting(source: str, out: str, *, per_epoch: int | None = None) -> JobFunction:
    def define(ctx: JobContext) -> None:
        words = ctx.source(source, max_per_epoch=per_epoch).select(F.col("value").cast("string").alias("word"))
        counts = words.groupBy("word").count()
        row = counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))
        ctx.sink(row, topic=out, name="out", mode="update")

    return define


def take_savepoint(checkpoint: Path, target: Path, job: str) -> Copied:
    return savepoint.take(LocalFolder(str(checkpoint)), LocalFolder(str(target)), owner=JobOwner(job))


def restore_savepoint(location: Path, checkpoint: Path, job: str) -> None:
    savepoint.restore(LocalFolder(str(location)), LocalFolder(str(checkpoint)), JobOwner(job))


def totals(kafka: KafkaSettings, topic: str) -> dict[str, int]:
    """The newest count of each word."""
    newest: dict[str, int] = {}
    for message in read_committed(kafka, topic):
        newest[(message.key() or b"").decode()] = int(message.value() or b"0")
    return newest


def words(count: int, start: int = 0) -> list[str]:
    return [f"w{number % 5}" for number in range(start, start + count)]


def test_a_job_continues_from_a_savepoint_taken_while_it_ran(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, words(120))
    taken: list[Copied] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_job(counting(source, out, per_epoch=4), name)
        except BaseException as error:
            failed.append(error)

    running = threading.Thread(target=run)
    running.start()
    commits = tmp_path / "checkpoint" / "out" / "commits"
    while running.is_alive():
        # Output may be visible before Spark has committed its epoch.
        newest = max((int(file.name) for file in commits.glob("[0-9]*")), default=-1)
        if len(read_committed(kafka, out)) > len(taken) * 8 and newest > (taken[-1].epochs["out"] if taken else -1):
            taken.append(take_savepoint(tmp_path / "checkpoint", tmp_path / f"kept-{len(taken)}", name))
        running.join(0.05)
    assert not failed, failed
    assert totals(kafka, out) == Counter(words(120))
    epochs = [copied.epochs["out"] for copied in taken]
    assert len(epochs) > 3
    assert epochs == sorted(set(epochs))
    # Each savepoint is complete: another job, with an empty log, continues its counts.
    for number in (1, len(taken) - 1):
        elsewhere = make_topic(1, "out")
        restore_savepoint(tmp_path / f"kept-{number}", tmp_path / f"from-{number}", f"{name}-{number}")
        run_job(counting(source, elsewhere), f"{name}-{number}", new_lineage=True, checkpoint=f"from-{number}")
        assert totals(kafka, elsewhere).items() <= Counter(words(120)).items()
        assert totals(kafka, elsewhere) or epochs[number] == max(epochs)


@pytest.mark.turn
def test_a_return_to_a_savepoint_publishes_again_once_and_only_on_request(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(2, "in"), make_topic(1, "out")
    feed(kafka, source, words(10))
    run_job(counting(source, out), name)
    kept = tmp_path / "kept"
    take_savepoint(tmp_path / "checkpoint", kept, name)
    feed(kafka, source, words(10, start=10))
    run_job(counting(source, out), name)
    before = len(read_committed(kafka, out))
    # Without a new lineage the log decides: the job replays the epochs whose plans it holds, and publishes nothing.
    restore_savepoint(kept, tmp_path / "again", name)
    run_job(counting(source, out), name, checkpoint="again")
    assert len(read_committed(kafka, out)) == before
    restore_savepoint(kept, tmp_path / "back", name)
    run_job(counting(source, out), name, checkpoint="back", new_lineage=True, request_key="back-to-kept")
    after = len(read_committed(kafka, out))
    assert after > before
    # A start after a crash repeats the same request.
    run_job(counting(source, out), name, checkpoint="back", new_lineage=True, request_key="back-to-kept")
    assert len(read_committed(kafka, out)) == after
    assert {event["lineage"] for event in run_job.events_of("claimed")} == {1, 2}
    feed(kafka, source, words(5, start=20))
    run_job(counting(source, out), name, checkpoint="back", new_lineage=True, request_key="back-to-kept")
    assert totals(kafka, out) == Counter(words(25))


def test_the_checkpoint_of_another_job_is_refused(
    kafka: KafkaSettings, run_job: Any, name: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, out = make_topic(1, "in"), make_topic(1, "out")
    feed(kafka, source, words(4))
    run_job(counting(source, out), name)
    owner = tmp_path / "checkpoint" / "owner.json"
    assert json.loads(owner.read_text()) == {"job": name, "lineage": 1}
    for _ in range(2):
        with pytest.raises(CheckpointForeign, match=f"is the checkpoint of {name}, not the checkpoint of other-{name}"):
            run_job(counting(source, out), f"other-{name}")
    run_job(counting(source, make_topic(1, "out")), name, new_lineage=True)
    assert json.loads(owner.read_text())["lineage"] == 2
