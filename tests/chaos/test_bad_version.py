"""Two queries of a job are in doubt under two versions: after a bad version, and while the control plane is killed.

Only commands that the product's own messages name bring the job back.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import SEQUENTIAL, client_config
from clonos.log.control import known_control
from clonos.resources.jobs import Failure
from clonos.testing.harness import PlatformJob, Stack, eventually, read_committed

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(1500)]

TIMEOUT_S: Final = 240.0
TOPICS: Final = ("payments", "clicks", "scored", "minutes")
GOOD: Final = """
import clonos
from pyspark.sql import functions as F

@clonos.udf("string")
def score(value: str) -> str:
    return value

@clonos.udf("string")
def minute(value: str) -> str:
    return value

@clonos.job(name="cards")
def cards(ctx):
    def values(topic):
        return ctx.source(topic).select("key", F.col("value").cast("string").alias("value"))

    ctx.sink(values("clicks").select("key", minute("value").alias("value")), topic="minutes", name="minutes")
    ctx.sink(values("payments").select("key", score("value").alias("value")), topic="scored", name="scored")
"""
# Its epoch of minutes is still in progress when scored fails.
BAD: Final = GOOD.replace(
    "def score(value: str) -> str:\n    return", "def score(value: str) -> str:\n    return 1 / 0 and"
).replace("def minute(value: str) -> str:\n", "def minute(value: str) -> str:\n    import time; time.sleep(20)\n")

# Each query waits while the test holds it, and its output names the version that computed it.
HELD: Final = """
import os, time

def held(query):
    while os.path.exists(f"FOLDER/{query}-held"):
        open(f"FOLDER/{query}-waits-in-VERSION", "w").close()
        time.sleep(0.05)
"""


class Cards(PlatformJob):
    """The job with two queries, its input, and what its readers see."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.client, "cards")
        self.client = stack.client
        self.stack = stack
        self.sent: Counter[str] = Counter()
        self._admin = AdminClient(client_config(stack.kafka))
        for created in self._admin.create_topics([NewTopic(topic, 1) for topic in TOPICS]).values():
            created.result(60)
        self._producer = Producer(client_config(stack.kafka, **SEQUENTIAL))

    def feed(self, count: int = 10) -> None:
        """Send the same new records to both sources."""
        self.send("clicks", self.send("payments", range(self.sent.total(), self.sent.total() + count)))

    def send(self, topic: str, numbers: range) -> range:
        """Send these records to one source; readers of both outputs will see them."""
        for number in numbers:
            self._producer.produce(topic, str(number), "k")
            self.sent[str(number)] = 1
        assert self._producer.flush(30) == 0
        return numbers

    def codes_in_doubt(self) -> dict[str, str]:
        """Query → hash of the code that planned its epoch in doubt."""
        state = known_control(self.stack.kafka, self.name)
        assert state is not None
        newest = {query: (state.newest_plan(query), state.committed.get(query, -1)) for query in ("scored", "minutes")}
        plans = {query: state.plan(query, planned) for query, (planned, done) in newest.items() if planned > done}
        return {query: plan.code for query, plan in plans.items() if plan is not None}

    @contextlib.contextmanager
    def feeding(self) -> Iterator[None]:
        """Feed two records a second in the background."""
        stopping = threading.Event()

        def feed() -> None:
            while not stopping.wait(0.5):
                self.feed(1)

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def read(self, topic: str) -> Counter[str]:
        """The numbers of the records in a topic."""
        return Counter(text[0] for text in self.texts(topic))

    def texts(self, topic: str) -> list[list[str]]:
        """The words of each record in a topic: its number, and the version that computed it if the job adds it."""
        return [(row.value() or b"").decode().split() for row in read_committed(self.stack.kafka, topic)]

    def delete(self, topic: str) -> None:
        for deleted in self._admin.delete_topics([topic]).values():
            deleted.result(60)

    def commands(self, text: str) -> list[list[str]]:
        """The complete commands of ``clonos`` that a message names, without the program's name."""
        found = re.findall(r"`clonos ((?:job|kafka) [^`…]+)`", " ".join(text.split()))
        return [shlex.split(command) for command in found]

    def named(self, text: str, *begin: str) -> list[str]:
        """The command that begins like this, from a message."""
        return next(command for command in self.commands(text) if tuple(command[: len(begin)]) == begin)

    def await_output(self, earlier: Counter[str] | None = None) -> None:
        """Wait until readers see each record once; `earlier` was in the topic that was deleted."""
        before = earlier if earlier is not None else Counter[str]()

        def complete() -> bool:
            return self.read("minutes") == self.sent and before + self.read("scored") == self.sent

        self.until(complete, "each record is published once", TIMEOUT_S)

    def await_failure(self) -> Failure:
        """Wait until the job fails."""
        self.until(lambda: self.get().state == "FAILED", "the job fails", TIMEOUT_S)
        failure = self.get().failure
        assert failure is not None
        return failure

    def newest_epoch(self, query: str) -> int:
        return self.client.jobs.metrics(self.name).queries[query].epoch


def write_job(folder: Path, code: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(code)
    spec = {"main": "job.py", "restartPolicy": {"attempts": 0}}
    document = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "cards"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return str(folder)


@pytest.mark.chaos(fault="bad version, deleted sink topic, two queries in doubt", target="driver", topology="clonos up")
@pytest.mark.turn(7)
def test_a_bad_version_is_left_by_the_commands_that_the_messages_name(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    job = Cards(stack)
    good, bad = write_job(tmp_path / "good", GOOD), write_job(tmp_path / "bad", BAD)
    job.feed()
    stack.cli("apply", good)
    job.await_output()

    # An upgrade that fails: the version that works is what each later start runs.
    with job.feeding():
        assert stack.run("apply", bad).returncode != 0
    assert job.get().version == 1
    job.await_output()

    # A sink topic is deleted: the job fails with an epoch in doubt.
    before = job.read("scored")
    job.delete("scored")
    numbers = job.send("payments", range(job.sent.total(), job.sent.total() + 10))
    failure = job.await_failure()
    stack.cli(*job.named(failure.hint, "kafka", "create"))
    assert job.named(failure.hint, "job", "start") == ["job", "start", "cards"]

    # A mistake: the bad version is stored, and accepted for that epoch. It fails in an epoch of scored, while one of
    # minutes is in progress: two queries are in doubt, under two versions.
    job.send("clicks", numbers)
    stack.cli("apply", bad, "--no-start")
    epoch = str(job.newest_epoch("scored") + 1)
    refused = stack.run("job", "resolve", "cards", "--query", "scored", "--epoch", epoch, "--new-code", "--yes")
    assert refused.returncode != 0, "a start that fails seconds later is not a success"
    failure = job.await_failure()
    assert failure.error == "job-code-failed", failure
    codes = job.codes_in_doubt()
    assert codes.keys() == {"scored", "minutes"}
    assert len(set(codes.values())) == 2, "neither version planned both"

    # The way back, as the message says.
    stack.cli(*job.named(failure.hint, "job", "rollback"))
    assert (job.get().version, job.get().observed_version) == (1, 1)
    job.feed()
    job.await_output(before)


class Holds:
    """Queries whose epochs wait until the test lets them continue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def code(self, version: int) -> str:
        """The job whose functions wait while their query is held."""
        code = HELD.replace("FOLDER", str(self._folder)).replace("VERSION", str(version)) + GOOD
        for query, function in (("scored", "score"), ("minutes", "minute")):
            head = f"def {function}(value: str) -> str:\n"
            assert f"{head}    return value\n" in code
            code = code.replace(
                f"{head}    return value\n", f'{head}    held("{query}")\n    return f"{{value}} {version}"\n'
            )
        return code

    def hold(self, query: str) -> None:
        """Let each epoch of the query wait."""
        (self._folder / f"{query}-held").touch()

    def release(self, query: str) -> None:
        (self._folder / f"{query}-held").unlink()

    def await_waiting(self, query: str, version: int) -> None:
        """Wait until this version computes an epoch of the query, which waits."""
        reported = self._folder / f"{query}-waits-in-{version}"
        eventually(reported.exists, f"version {version} computes an epoch of {query}", timeout_s=TIMEOUT_S)


@contextlib.contextmanager
def control_plane_killed(stack: Stack) -> Iterator[None]:
    """Kill the control plane with SIGKILL; at the end, wait until `clonos up` has started another one."""
    killed = stack.state()["control_plane"]["pid"]
    psutil.Process(killed).kill()
    yield
    eventually(lambda: stack.state()["control_plane"]["pid"] != killed, "a control plane is started")


@pytest.mark.chaos(fault="SIGKILL, two queries in doubt", target="driver; control plane", topology="clonos up")
@pytest.mark.full
def test_each_epoch_in_doubt_is_finished_by_its_version_while_the_control_plane_is_killed(
    stack: Stack, tmp_path: Path
) -> None:
    stack.up()
    job, holds = Cards(stack), Holds(tmp_path)
    first, second, third = (write_job(tmp_path / str(version), holds.code(version)) for version in (1, 2, 3))
    job.feed()
    stack.cli("apply", first)
    job.await_output()

    # The driver is killed in an epoch of scored, which version 1 has planned.
    holds.hold("scored")
    numbers = job.send("payments", range(job.sent.total(), job.sent.total() + 10))
    holds.await_waiting("scored", 1)
    job.kill_driver()
    job.await_failure()

    # Version 2 may compute that epoch too; it is killed in it and in an epoch of minutes, which it has planned.
    holds.hold("minutes")
    job.send("clicks", numbers)
    stack.cli("apply", second, "--no-start")
    epoch = str(job.newest_epoch("scored") + 1)
    stack.cli("job", "resolve", "cards", "--query", "scored", "--epoch", epoch, "--new-code", "--yes", "--no-wait")
    for query in ("scored", "minutes"):
        holds.await_waiting(query, 2)
    job.kill_driver()
    job.await_failure()
    codes = job.codes_in_doubt()
    assert codes.keys() == {"scored", "minutes"}
    assert len(set(codes.values())) == 2, "no version planned both"

    # The upgrade runs version 2, version 1, then version 3. The control plane is killed in an epoch of each, which
    # ends before the next control plane runs.
    for report in tmp_path.glob("*-waits-in-*"):
        report.unlink()
    with ThreadPoolExecutor() as pool:
        applied = pool.submit(stack.run, "apply", third)
        for query, version in (("minutes", 2), ("scored", 1), ("minutes", 3)):
            holds.await_waiting(query, version)
            if version == 1:
                holds.hold("minutes")
                job.feed()
            with control_plane_killed(stack):
                holds.release(query)
        assert applied.result().returncode == 0, applied.result().stderr
    job.await_output()
    assert (job.get().state, job.get().version, job.get().observed_version) == ("RUNNING", 3, 3)
    # The epoch in doubt begins with the first of the records; the last ones may have come too late for it.
    computed_by = {topic: dict(job.texts(topic))[str(numbers[0])] for topic in ("scored", "minutes")}
    assert computed_by == {"scored": "1", "minutes": "2"}
