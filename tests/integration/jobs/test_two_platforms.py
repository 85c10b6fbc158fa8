"""Two platforms run a job of one name on one Kafka: the second is refused by name, and may adopt the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from clonos.driver.options import RunOptions
from clonos.errors import CheckpointOutdated, JobForeign
from clonos.jobs.context import JobContext
from clonos.kafka import client_config
from clonos.log.claiming import Claimant
from clonos.log.platform_identity import Platform
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, eventually, read_committed
from support.driver_thread import DriverThread

MakeTopic = Callable[..., str]
EAST = Platform("e" * 32, "the control plane at https://east", control_plane=True)
WEST = Platform("f" * 32, "`clonos run` on west with the home /h")
_DEADLINE_S = 120.0


class Words:
    """The input of a job, with unique records, and what was published of it."""

    def __init__(self, kafka: KafkaSettings, source: str, out: str) -> None:
        self._kafka = kafka
        self.source, self.out = source, out
        self.sent: list[tuple[int, str]] = []

    def feed(self, count: int = 20) -> None:
        producer = Producer(client_config(self._kafka))
        for number in range(len(self.sent), len(self.sent) + count):
            producer.produce(self.source, f"r{number}", partition=number % 2)
            self.sent.append((number % 2, f"r{number}"))
        assert producer.flush(30) == 0

    def published(self) -> list[tuple[int, str]]:
        found = [json.loads(message.value() or b"{}") for message in read_committed(self._kafka, self.out)]
        return [(record["partition"], record["value"]) for record in found]

    @property
    def all_published(self) -> bool:
        return len(self.published()) >= len(self.sent)

    def check(self) -> None:
        """Each record once, and the records of a partition in order."""
        published = self.published()
        assert Counter(published) == Counter(self.sent)
        for partition in (0, 1):
            assert [p for p in published if p[0] == partition] == [s for s in self.sent if s[0] == partition]

    def job(self, ctx: JobContext) -> None:
        rows = ctx.source(self.source).selectExpr("to_json(struct(partition, cast(value as string) value)) value")
        ctx.sink(rows, topic=self.out, name="out")


@pytest.fixture
def words(kafka: KafkaSettings, make_topic: MakeTopic) -> Words:
    return Words(kafka, make_topic(2, "in"), make_topic(1, "out"))


@pytest.fixture
def start(spark: SparkSession, kafka: KafkaSettings, words: Words, name: str) -> Iterator[Callable[..., DriverThread]]:
    """Runs the job on a platform until the test ends."""
    started: list[DriverThread] = []

    def begin(**options: Any) -> DriverThread:
        session = spark.newSession()  # Spark runs two queries of one name only in two sessions
        started.append(DriverThread(session, kafka, words.job, name, RunOptions(**options)))
        return started[-1]

    yield begin
    for thread in started:
        thread.driver.stop()
        thread.join()


def _has_claimed(events: Path) -> bool:
    return events.exists() and '"claimed"' in events.read_text()


def events_of(thread: DriverThread, kind: str) -> list[Any]:
    return [event for event in thread.events if event["event"] == kind]


def test_the_second_platform_is_refused_until_it_adopts_the_job(
    start: Callable[..., DriverThread], words: Words, tmp_path: Path
) -> None:
    words.feed()
    east = start(checkpoint=str(tmp_path / "east"), platform=EAST)
    east.await_(lambda: words.all_published, "the first platform publishes")

    refused = start(checkpoint=str(tmp_path / "west"), platform=WEST)
    refused.join()
    assert isinstance(refused.failure, JobForeign)
    assert EAST.name in refused.failure.what
    assert not events_of(refused, "restart")
    words.feed()
    east.await_(lambda: words.all_published, "the first platform continues")
    assert len(events_of(east, "claimed")) == 1, "it was not fenced"

    west = start(checkpoint=str(tmp_path / "west"), platform=WEST, adopt=True)
    west.await_(lambda: bool(events_of(west, "claimed")), "the second platform claims")
    words.feed()
    west.await_(lambda: words.all_published, "the second platform publishes")
    east.join()
    assert isinstance(east.failure, JobForeign)
    assert f"{WEST.name} took over the job" in east.failure.what
    assert events_of(east, "failed")[-1]["error"] == JobForeign.slug
    assert len(events_of(east, "restart")) <= 1, "it does not try again"

    claims = len(events_of(west, "claimed"))
    again = start(checkpoint=str(tmp_path / "east"), platform=EAST)
    again.join()
    assert isinstance(again.failure, JobForeign)
    other = start(checkpoint=str(tmp_path / "west"), platform=EAST)
    other.join()
    assert isinstance(other.failure, JobForeign)
    assert "is the checkpoint of" in other.failure.what
    words.feed()
    west.await_(lambda: words.all_published, "the second platform continues")
    assert len(events_of(west, "claimed")) == claims, "it was not fenced"
    words.check()


def test_without_a_control_plane_the_job_is_where_its_checkpoint_is(
    start: Callable[..., DriverThread], words: Words, tmp_path: Path
) -> None:
    """A container has a new home after each start: the checkpoint in shared storage identifies the job."""
    for number in range(2):
        words.feed()
        home = Platform(str(number), f"`clonos run` on host {number}")
        thread = start(checkpoint=str(tmp_path / "shared"), platform=home)
        thread.await_(lambda: words.all_published, "the job publishes")
        thread.driver.stop()
        thread.join()
        assert thread.failure is None
    words.check()


@pytest.mark.turn
def test_an_adoption_without_the_checkpoint_fences_nothing(
    kafka: KafkaSettings, start: Callable[..., DriverThread], name: str, tmp_path: Path
) -> None:
    own = Claimant(kafka, name, platform=EAST).claim(new_lineage={"out": 300})  # the log has none of their plans
    west = start(checkpoint=str(tmp_path / "west"), platform=WEST, adopt=True)
    west.join()
    assert isinstance(west.failure, CheckpointOutdated)
    own.ensure_lanes("out", 1)  # it was not fenced


@pytest.mark.full
def test_clonos_run_in_two_homes(kafka: KafkaSettings, words: Words, name: str, tmp_path: Path) -> None:
    started: list[ChildProcess] = []

    def run(home: str, *options: str) -> ChildProcess:
        folder = tmp_path / home
        folder.mkdir(exist_ok=True)
        (folder / "job.py").write_text(
            f"import clonos\n\n\n@clonos.job(name={name!r}, master='local[2]')\n"
            "def job(ctx):\n"
            f"    rows = ctx.source({words.source!r})\n"
            "    rows = rows.selectExpr('to_json(struct(partition, cast(value as string) value)) value')\n"
            f"    ctx.sink(rows, topic={words.out!r}, name='out')\n"
        )
        command = [sys.executable, "-m", "clonos", "run", str(folder / "job.py"), "--plain", *options]
        command += ["--events", str(folder / "events.jsonl")]
        environment = {
            "CLONOS_HOME": str(folder),
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        }
        started.append(ChildProcess(command, environment, folder / f"log-{len(started)}"))
        return started[-1]

    def published(process: ChildProcess) -> None:
        words.feed()
        eventually(lambda: words.all_published or not process.running, "it publishes", timeout_s=_DEADLINE_S)
        assert process.running, process.tail()

    try:
        first = run("first")
        published(first)
        second = run("second")
        assert second.wait() == JobForeign.exit_code, second.tail()
        assert str(tmp_path / "first") in second.tail()
        assert "clonos run … --adopt" in second.tail()
        published(first)
        adopting = run("second", "--adopt")
        claimed = partial(_has_claimed, tmp_path / "second" / "events.jsonl")
        eventually(lambda: claimed() or not adopting.running, "the second claims", timeout_s=_DEADLINE_S)
        words.feed()  # a driver without input writes nothing, and does not notice
        eventually(lambda: not first.running, "the first ends", timeout_s=_DEADLINE_S)
        assert first.exit_code == JobForeign.exit_code, first.tail()
        published(adopting)
        again = run("first")
        assert again.wait() == JobForeign.exit_code, again.tail()
        claims = subprocess.run(
            [sys.executable, "-m", "clonos", "causal-log", "cat", name, "--kind", "claim", "-o", "json"],
            env={**os.environ, "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers},
            capture_output=True,
            text=True,
            check=False,
        )
        assert str(tmp_path / "second") in claims.stdout, claims.stderr
        words.check()
    finally:
        for process in started:
            process.kill()
