"""A bad version of a job: its upgrade fails, a sink topic goes, and two queries are in doubt under two versions.

Only commands that the product's own messages name bring the job back.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import SEQUENTIAL, client_config
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
    'def score(value: str) -> str:\n    return', 'def score(value: str) -> str:\n    return 1 / 0 and'
).replace('def minute(value: str) -> str:\n', 'def minute(value: str) -> str:\n    import time; time.sleep(20)\n')


class Cards(PlatformJob):
    """The job with two queries, its input, and what its readers see."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.client, "cards")
        self.stack = stack
        self.sent: Counter[str] = Counter()
        self._admin = AdminClient(client_config(stack.kafka))
        for created in self._admin.create_topics([NewTopic(topic, 1) for topic in TOPICS]).values():
            created.result(60)
        self._producer = Producer(client_config(stack.kafka, **SEQUENTIAL))

    def feed(self, count: int = 10) -> None:
        """Send the same new records to both sources."""
        for number in range(self.sent.total(), self.sent.total() + count):
            for topic in ("payments", "clicks"):
                self._producer.produce(topic, str(number), "k")
            self.sent[str(number)] = 1
        assert self._producer.flush(30) == 0

    def read(self, topic: str) -> Counter[str]:
        return Counter((row.value() or b"").decode() for row in read_committed(self.stack.kafka, topic))

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

    def in_doubt(self) -> set[str]:
        """The queries with an epoch in doubt."""
        listed = self.stack.run("causal-log", "ls", self.name, "-o", "json").stdout
        return set(re.findall(r"scored|minutes", listed))


def write_job(folder: Path, code: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(code)
    spec = {"main": "job.py", "restartPolicy": {"attempts": 0}}
    document = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "cards"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return str(folder)


@pytest.mark.chaos(fault="bad version, deleted sink topic, two queries in doubt", target="driver", topology="clonos up")
@pytest.mark.turn
def test_a_bad_version_is_left_by_the_commands_that_the_messages_name(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    job = Cards(stack)
    good, bad = write_job(tmp_path / "good", GOOD), write_job(tmp_path / "bad", BAD)
    job.feed()
    stack.cli("apply", good)
    job.until(lambda: job.read("scored") == job.sent and job.read("minutes") == job.sent, "it publishes", TIMEOUT_S)

    # An upgrade that fails: the version that works is what each later start runs.
    feeding = stack.run("apply", bad, "--timeout", "120")
    assert feeding.returncode != 0
    job.feed()
    job.until(lambda: job.get().version == 1, "version 1 is the next start's", TIMEOUT_S)

    # A sink topic is deleted: the job fails with its epoch in doubt, and the start of the good version continues.
    job.until(lambda: job.get().state == "RUNNING" and job.get().observed_version == 1, "version 1 runs", TIMEOUT_S)
    job.until(lambda: job.read("scored") == job.sent and job.read("minutes") == job.sent, "it publishes", TIMEOUT_S)
    lost = job.read("scored")
    job.delete("scored")
    job.feed()
    job.until(lambda: job.get().state == "FAILED", "the job fails", TIMEOUT_S)
    failure = job.get().failure
    assert failure is not None
    stack.cli(*job.named(failure.hint, "kafka", "create"))

    # A mistake: the bad version is accepted for the epoch in doubt. It fails, with an epoch of the other query in doubt.
    epoch = re.search(r"epoch (\d+)", stack.run("causal-log", "ls", "cards").stdout)
    assert epoch is not None
    stack.cli("apply", bad, "--no-start")
    newest = max(query["epoch"] for query in [{"epoch": job_epoch(stack, "scored")}])
    refused = stack.run("job", "resolve", "cards", "--query", "scored", "--epoch", str(newest), "--new-code", "--yes")
    assert refused.returncode != 0
    job.until(lambda: job.get().state == "FAILED", "the bad version fails", TIMEOUT_S)
    failure = job.get().failure
    assert failure is not None
    assert failure.error == "job-code-failed", failure

    # The way back, as the message says.
    back = job.named(failure.hint, "job", "rollback")
    stack.cli(*back)
    assert job.get().observed_version == 1
    job.feed()
    job.until(
        lambda: job.read("minutes") == job.sent and lost + job.read("scored") == job.sent, "all is published", TIMEOUT_S
    )
    assert job.read("minutes") == job.sent


def job_epoch(stack: Stack, query: str) -> int:
    """The epoch after the newest finished one of a query: the one in doubt."""
    return eventually(lambda: stack.client.jobs.metrics("cards").queries[query].epoch + 1, "the epoch is known")
