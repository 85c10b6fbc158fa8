"""`clonos.exactly_once` in plain PySpark programs, killed at named points; and the program of docs/attached.md."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from drivers import Driver, Feeder, JobRun, Published, caught_up

from clonos.faults import EPOCH_POINTS, LANE_POINTS
from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed
from support.java import java_home

pytestmark = [pytest.mark.full]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "attached.md"
LANE_STEPS = ("lane-begun", "lane-marked", "lane-committed")  # the other points of a lane are in test_named_points.py
POINTS = ("claim-checked", *(point for point in EPOCH_POINTS if point not in LANE_POINTS or point in LANE_STEPS))


@dataclass
class ProgramRun(JobRun):
    """A program instead of `clonos run`."""

    def command(self) -> list[str]:
        return [sys.executable, str(self.job), *self.params.values()]


@pytest.fixture
def java(tmp_path: Path) -> dict[str, str]:
    return {"JAVA_HOME": java_home(tmp_path / "java")}


@pytest.mark.chaos(fault="SIGKILL at each protocol point", target="driver", topology="PySpark program")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("delivery", ["exactly-once", "atomic-epoch"])
def test_a_program_killed_at_named_points(
    kafka: KafkaSettings,
    name: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    java: dict[str, str],
    every_point: bool,
    delivery: str,
) -> None:
    source, out = make_topic(3, "in"), make_topic(2, "out")
    params = {"name": name, "source": source, "target": out, "delivery": delivery}
    run = ProgramRun(kafka, name, tmp_path / "home", HERE / "programs" / "etl.py", params)
    selected = {"exactly-once": ("determinants-acknowledged", "lane-committed"), "atomic-epoch": ("lane-marked",)}
    try:
        with Feeder(kafka, source, 3) as feeder:
            for point in POINTS if every_point else selected[delivery]:
                fault = point if point == "claim-checked" else f"{point},replay=False"
                print("killing at", fault, flush=True)
                driver = run.start(f"{fault}:kill", environment=java)
                driver.await_fault(fault)
                driver.await_kill()
            final = run.start(environment=java)
            eventually(lambda: len(run.events_of("epoch")) > 0, "the last one publishes", timeout_s=90)
        eventually(lambda: caught_up(run, out, feeder.sent), "the output is complete", timeout_s=90)
        assert final.running, final.tail()
        final.kill()
        assert Published.read(kafka, out).faults(feeder.sent) == {}
        fresh = run.start(environment=java)  # a last claim aborts the transactions that the kill left open
        eventually(lambda: not has_open_transaction(kafka, out) or not fresh.running, "nothing is open", timeout_s=90)
        assert not has_open_transaction(kafka, out), fresh.tail()
    finally:
        run.end()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example of docs/attached.md, as printed."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    examples = [block for block in blocks if "clonos.exactly_once" in block]
    assert len(examples) == 1
    assert len([line for line in examples[0].splitlines() if line.strip()]) <= 12
    program = tmp_path / "clean.py"
    program.write_text(examples[0])
    return program


@pytest.fixture
def topics(kafka: KafkaSettings, example: Path) -> Iterator[tuple[str, str]]:
    """The topics that the example names."""
    source = re.findall(r'clonos\.source\(spark, "([^"]+)"', example.read_text())[0]
    target = re.findall(r'topic="([^"]+)"', example.read_text())[0]
    admin = AdminClient(client_config(kafka))
    for created in admin.create_topics([NewTopic(source, 3), NewTopic(target, 2)]).values():
        created.result(60)
    yield source, target
    for deleted in admin.delete_topics([source, target]).values():
        deleted.result(60)


@pytest.mark.ci
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="PySpark program")
@pytest.mark.timeout(3000)
def test_the_documented_example_survives_kill_9(
    kafka: KafkaSettings, example: Path, topics: tuple[str, str], tmp_path: Path, java: dict[str, str]
) -> None:
    source, target = topics
    run = ProgramRun(kafka, "readme", tmp_path / "home", example, {})
    here = Path.cwd()
    os.chdir(tmp_path)  # its checkpoint is a relative path
    try:
        sent: Counter[str] = Counter()
        for start in (0, 40):
            driver = run.start(environment=java)
            sent += feed(kafka, source, start)
            await_words(kafka, target, sent, driver)
            driver.kill()
        assert words(kafka, target) == sent
    finally:
        os.chdir(here)
        run.end()


def feed(kafka: KafkaSettings, topic: str, start: int) -> Counter[str]:
    producer = Producer(client_config(kafka))
    lines = [f"  line {number} " for number in range(start, start + 40)]
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % 3)
    assert producer.flush(30) == 0
    return Counter(line.strip() for line in lines)


def words(kafka: KafkaSettings, topic: str) -> Counter[str]:
    return Counter((message.value() or b"").decode() for message in read_committed(kafka, topic))


def await_words(kafka: KafkaSettings, topic: str, sent: Counter[str], driver: Driver) -> None:
    def there() -> bool:
        assert driver.running, driver.tail()
        return words(kafka, topic).total() >= sent.total()

    eventually(there, "the output is complete", timeout_s=120)
