"""A job on the platform as its users see it: submitted, fed, killed, and its output checked."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import Any, Final

import httpx
import psutil
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from integration.test_up_and_down import Machine
from observe import eventually, read_committed

JOB = """
import clonos
from pyspark.sql import functions as F

@clonos.udf("string")
def stamped(value: str) -> str:
    return f"{value} {clonos.uuid4(value)}"

@clonos.job(name="shout")
def shout(ctx):
    lines = ctx.source(ctx.params["in"]).select("key", F.col("value").cast("string").alias("value"))
    ctx.sink(lines.select("key", stamped("value").alias("value")), topic=ctx.params["out"], name="out")
"""
PATIENCE_S: Final = 120.0


def started(machine: Machine, request: pytest.FixtureRequest, *options: str) -> tuple[dict[str, Any], httpx.Client]:
    """What ``clonos up`` says, with these options, and a client of its API until the test is over."""
    up: dict[str, Any] = machine.json("up", "--detach", *options)
    token = (machine.home / "admin.token").read_text().strip()
    client = httpx.Client(base_url=f"{up['api']}/api/v1", headers={"Authorization": f"Bearer {token}"})
    request.addfinalizer(client.close)
    return up, client


class Shout:
    """The job's input and output."""

    def __init__(self, http: httpx.Client, kafka: str) -> None:
        self.http = http
        self._kafka = KafkaSettings(bootstrap_servers=kafka)
        admin = AdminClient(client_config(self._kafka))
        for made in admin.create_topics([NewTopic(name, 2) for name in ("in", "out")]).values():
            made.result(30)
        self._producer = Producer(client_config(self._kafka))
        self.sent = 0

    def feed(self, count: int = 20) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce("in", str(number), f"k{number % 4}", partition=number % 2)
        assert self._producer.flush(30) == 0
        self.sent += count

    def rows(self) -> list[Message]:
        """What readers of the output see."""
        return read_committed(self._kafka, "out")

    def published(self) -> list[tuple[str, int]]:
        return [((row.key() or b"").decode(), int((row.value() or b"").split()[0])) for row in self.rows()]

    def await_all(self, why: str) -> None:
        eventually(lambda: len(self.published()) >= self.sent, why, timeout_s=PATIENCE_S)

    def check(self) -> None:
        """Each input once, and the records of each key in order."""
        rows = self.published()
        assert Counter(number for _, number in rows) == Counter(range(self.sent))
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, number in rows:
            by_key[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())

    def job(self) -> Any:
        return self.http.get("/jobs/shout").json()

    def driver(self) -> psutil.Process:
        """The driver that runs, as told."""

        def found() -> psutil.Process | None:
            run = next(one for one in self.http.get("/jobs/shout/runs").json()["data"] if not one["standby"])
            pid = run["pid"] if run["state"] == "RUNNING" else None
            return psutil.Process(pid) if pid and psutil.pid_exists(pid) else None

        process: psutil.Process = eventually(found, "a driver runs", timeout_s=PATIENCE_S)
        return process

    def kill(self, driver: psutil.Process | None = None) -> None:
        """The driver with all that it started, from outside."""
        driver = driver or self.driver()
        members = [driver, *driver.children(recursive=True)]
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(members, 10)
