"""A job on the platform, through crashes of its driver, the control plane and a host: exactly once, and told so."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.kafka import client_config
from clonos.settings import KafkaSettings
from integration.test_up_and_down import Machine
from observe import eventually, read_committed

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(600)]

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
_S = 120.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")


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

    def published(self) -> list[tuple[str, int]]:
        rows = read_committed(self._kafka, "out")
        return [((row.key() or b"").decode(), int((row.value() or b"").split()[0])) for row in rows]

    def await_all(self, why: str) -> None:
        eventually(lambda: len(self.published()) >= self.sent, why, timeout_s=_S)

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
            (run,) = self.http.get("/jobs/shout/runs", params={"limit": 1}).json()["data"]
            pid = run["pid"] if run["state"] == "RUNNING" else None
            return psutil.Process(pid) if pid and psutil.pid_exists(pid) else None

        process: psutil.Process = eventually(found, "a driver runs", timeout_s=_S)
        return process

    def kill(self, driver: psutil.Process | None = None) -> None:
        """The driver with all that it started, from outside."""
        driver = driver or self.driver()
        members = [driver, *driver.children(recursive=True)]
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(members, 10)


def test_crashes_of_everything(machine: Machine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    up = machine.json("up", "--detach")
    token = (machine.home / "admin.token").read_text().strip()
    plain = httpx.Client(base_url=f"{up['api']}/api/v1", headers={"Authorization": f"Bearer {token}"})
    request.addfinalizer(plain.close)
    shout = Shout(plain, up["kafka"])
    (tmp_path / "job.py").write_text(JOB)
    machine.json("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    shout.feed()
    shout.await_all("the first records are published")
    home = str(shout.job()["agent"])

    # The driver: its agent starts it again.
    shout.kill()
    shout.feed()
    shout.await_all("it goes on after its driver was killed")
    recovery = eventually(
        lambda: next((one for one in machine.json("recovery", "ls", "shout")["data"] if one["gap_ms"]), None),
        "the recovery is told",
        timeout_s=_S,
    )
    assert (recovery["failed_generation"], recovery["generation"], recovery["to_agent"]) == (1, 2, home)
    assert recovery["failure"]["error"] == "driver-died"
    assert machine.json("job", "inspect", "shout")["job"]["generation"] == 2

    # The control plane hangs, and the driver dies meanwhile: nobody is needed for the restart.
    state = json.loads((machine.home / "local" / "state.json").read_text())
    driver = shout.driver()
    control_plane = psutil.Process(state["control_plane"]["pid"])
    control_plane.suspend()
    try:
        shout.kill(driver)
        shout.feed()
        shout.await_all("it goes on although the control plane hangs")
    finally:
        control_plane.resume()
    eventually(lambda: shout.job()["generation"] == 3, "it is told afterwards", timeout_s=_S)

    # The host: its agent hangs and its driver is gone, so the job moves; the agent wakes up and leaves it alone.
    shout.driver()
    agent = psutil.Process(state["agents"][home]["pid"])
    agent.suspend()
    try:
        shout.kill()
        shout.feed()
        shout.await_all("it goes on on the other host")
        assert shout.job()["agent"] != home
    finally:
        agent.resume()
    shout.feed()
    shout.await_all("it goes on after the host is back")

    (job,) = plain.get("/jobs").json()["data"]
    assert (job["state"], job["generation"]) == ("RUNNING", 4)
    stopping = plain.post(f"/jobs/{job['id']}/stop", json={"mode": "graceful"})
    assert stopping.status_code == 202
    eventually(
        lambda: plain.get(f"/operations/{stopping.json()['id']}").json()["state"] == "COMPLETED",
        "it stops",
        timeout_s=_S,
    )
    assert plain.get(f"/jobs/{job['id']}").json()["state"] == "STOPPED"
    causes = [one["cause"] for one in plain.get(f"/jobs/{job['id']}/generations").json()["data"]]
    assert causes[::-1] == ["start", "crash", "crash", "host-lost"]
    shout.check()
    machine.clonos("down")
    assert machine.processes() == []


def test_sigterm_ends_all_with_a_driver_that_works(
    machine: Machine, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """And the next `clonos up` goes on with the job."""
    up = machine.json("up", "--detach")
    token = (machine.home / "admin.token").read_text().strip()
    plain = httpx.Client(base_url=f"{up['api']}/api/v1", headers={"Authorization": f"Bearer {token}"})
    request.addfinalizer(plain.close)
    shout = Shout(plain, up["kafka"])
    (tmp_path / "job.py").write_text(JOB)
    machine.json("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    shout.feed()
    shout.await_all("the first records are published")
    shout.feed(200)
    took_s = machine.sigterm()
    record_property("ended_s", round(took_s, 2))
    assert took_s < 3.0
    machine.json("up", "--detach", "--port", up["api"].rsplit(":", 1)[1])
    shout.feed()
    shout.await_all("the job goes on")
    shout.check()
