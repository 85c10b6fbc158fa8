"""Records flow steadily while a job is moved, drained, upgraded, and upgraded to code that is broken."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from shouting import JOB, PATIENCE_S, Shout, started

from clonos.kafka import client_config
from integration.test_up_and_down import Machine
from observe import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(900)]

UPGRADED: Final = JOB.replace('f"{value} {clonos', 'f"{value} new {clonos')
RAISES: Final = JOB.replace("    return f", '    raise ValueError("broken")\n    return f')
UNDEFINED: Final = JOB.replace('    lines = ctx.source(ctx.params["in"])', "    lines = no_such_name")
_EVERY_S: Final = 0.02


class Watched(Shout):
    """A job whose input never ends, and whose output somebody reads as it comes."""

    def __init__(self, http: httpx.Client, kafka: str) -> None:
        super().__init__(http, kafka)
        self._over = threading.Event()
        self._came: list[float] = []
        options = {"group_id": "watches", "isolation_level": "read_committed", "enable_auto_commit": False}
        self._reader = Consumer(client_config(self._kafka, fetch_wait_max_ms=5, **options))
        self._reader.assign([TopicPartition("out", partition, 0) for partition in range(2)])
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._feed, self._read)]
        for one in self._threads:
            one.start()

    def _feed(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.feed(2)

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._reader.poll(0.1)
            if message is not None and message.error() is None:
                self._came.append(time.time())
        self._reader.close()

    def flows(self) -> None:
        """Wait until records come that are newer than this moment."""
        now = time.time()
        eventually(lambda: self._came and self._came[-1] > now + 1.0, "records flow", timeout_s=PATIENCE_S)

    def during(self, what: str, change: Callable[[], Any]) -> Any:
        """Do it, while records flow before and after."""
        self.flows()
        begun = time.time()
        answer = change()
        self.flows()
        print(f"{what}: done after {time.time() - begun:.1f} s, load {os.getloadavg()[0]:.1f}")
        return answer

    def recovered(self, found: dict[str, Any]) -> None:
        """Print how long the reader waited around a recovery, and in what the time went."""
        began, ended = (datetime.fromisoformat(found[name]).timestamp() for name in ("started_at", "ended_at"))
        came = [at for at in self._came if began - 1.0 < at < ended + 1.0]
        longest = max(later - earlier for earlier, later in pairwise(came))
        phases = {one["name"]: round(one["duration_ms"]) for one in found["phases"]}
        print(f"  {found['cause']}: the reader waited {longest * 1000:.0f} ms, gap {found['gap_ms']:.0f} ms, {phases}")

    def close(self) -> None:
        """No more input; all of it is published."""
        self._over.set()
        for one in self._threads:
            one.join(30)
        self.await_all("all is published")

    def runs(self, agent: str | None = None, version: int | None = None) -> None:
        """Wait until the job runs, there and so."""

        def look() -> bool:
            job = self.job()
            there = agent in (None, job["agent"]) and version in (None, job["observed_version"])
            return bool(job["state"] == "RUNNING" and there)

        eventually(look, f"it runs on {agent or 'some host'}", timeout_s=PATIENCE_S)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")


def written(folder: Path, code: str, replicas: int = 1) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(code)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": replicas}}
    whole = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "shout"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(whole))
    return str(folder)


@pytest.mark.story
def test_records_flow_while_the_driver_is_replaced(
    machine: Machine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    up, plain = started(machine, request)
    shout = Watched(plain, up["kafka"])
    machine.json("submit", written(tmp_path / "job", JOB))
    shout.runs()

    def standby() -> None:
        def look() -> bool:
            page = plain.get("/jobs/shout/standbys").json()["data"]
            return any(one["state"] == "READY" for one in page)

        eventually(look, "a standby is READY", timeout_s=PATIENCE_S)

    def recovery() -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            newest: dict[str, Any] = machine.json("recovery", "ls", "shout")["data"][0]
            return newest if newest["outcome"] == "finished" else None

        found: dict[str, Any] = eventually(ended, "its first epoch is told", timeout_s=PATIENCE_S)
        shout.recovered(found)
        return found

    # To another host, where a standby is ready.
    home = shout.job()["agent"]
    (other,) = {one["name"] for one in plain.get("/hosts").json()["data"]} - {home}
    standby()
    done = shout.during("move", lambda: machine.json("job", "move", "shout", "--to", other))
    assert done["state"] == "COMPLETED"
    shout.runs(other)
    found = recovery()
    assert (found["cause"], found["from_agent"], found["to_agent"]) == ("move", home, other)

    # Off a host that is drained.
    standby()

    def drain() -> None:
        machine.clonos("host", "drain", other)
        shout.runs(home)

    shout.during("drain", drain)
    assert recovery()["cause"] == "move"
    machine.clonos("host", "undrain", other)

    # To other code.
    standby()
    better = written(tmp_path / "better", UPGRADED)
    done = shout.during("upgrade", lambda: machine.json("job", "upgrade", "shout", better))
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 2)
    assert recovery()["cause"] == "upgrade"
    shout.runs(version=2)

    # To code that no standby gets ready with: the driver does not notice.
    generation = shout.job()["generation"]
    undefined = written(tmp_path / "undefined", UNDEFINED)
    failed(shout.during("upgrade to code without a job", lambda: operation(machine, plain, undefined)), "not-moved")
    assert (shout.job()["generation"], shout.job()["observed_version"]) == (generation, 2)

    # To code that fails with the first record: the version before has it again.
    standby()
    raises = written(tmp_path / "raises", RAISES)
    failed(shout.during("upgrade to code that raises", lambda: operation(machine, plain, raises)), "upgrade-failed")
    shout.runs(version=5)
    assert recovery()["failure"]["error"] == "job-code-failed"
    newest, *older = plain.get("/jobs/shout/versions").json()["data"]
    assert newest["artifact"] == next(one["artifact"] for one in older if one["version"] == 2)

    shout.close()
    shout.check()
    texts = [(row.value() or b"").decode().split() for row in shout.rows()]
    assert {text[1] == "new" for text in texts} == {True, False}


def operation(machine: Machine, http: httpx.Client, path: str) -> dict[str, Any]:
    """An upgrade that fails, as its operation."""
    with pytest.raises(AssertionError):
        machine.clonos("job", "upgrade", "shout", path)
    found: dict[str, Any] = http.get("/operations", params={"job": "shout"}).json()["data"][0]
    return found


def failed(operation: dict[str, Any], error: str) -> None:
    print(operation["failure"])
    assert (operation["kind"], operation["state"]) == ("upgrade", "FAILED")
    assert operation["failure"]["error"] == error
