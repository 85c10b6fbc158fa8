"""Planned moves with real agents: the drivers are small programs that fence each other through a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.testing.harness import eventually
from component.agent.hosts import ProcessAgent, settings
from support.scripted import upload
from support.serving import Served, served

DRIVER = """
import fcntl
from clonos.standby.promotion import PromotionMailbox

log, output = Path(FOLDER) / "log", Path(FOLDER) / "output"


def claimed():
    with log.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = len(file.readlines()) + 1
        file.write(f"{number}\\n")
    return number


asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
if WHEN == "warming":
    fail("job-code-failed", 14)
if "--standby" in sys.argv:
    mailbox = PromotionMailbox(Path(sys.argv[sys.argv.index("--standby") + 1]))
    for state in ("WARMING", "READY"):
        emit("standby", state=state)
    while not mailbox.promoted(0.02):
        if asked:
            end("STOPPED")
    emit("standby", state="PROMOTING")
    mailbox.close()
emit("state", state="CLAIMING")
generation = claimed()
emit("claimed", generation=generation, lineage=1, lanes=1, claim_id="d")
for state in ("RECONCILING", "RUNNING"):
    emit("state", state=state, generation=generation)
epoch = generation * 1000
while True:
    if WHEN == "running":
        fail("job-code-failed", 14)
    time.sleep(0.02)
    with log.open() as file:
        if len(file.readlines()) > generation:
            emit("state", state="SUPERSEDED")
            emit("superseded", error="superseded", what="newer", generation=generation)
            emit("summary", state="SUPERSEDED")
            sys.exit(70)
    with output.open("a") as file:
        file.write(json.dumps([VERSION, generation, time.time()]) + "\\n")
    epoch += 1
    figures = {"records_in": 1, "records_out": 1, "duration_ms": 20, "replay": False}
    emit("epoch", generation=generation, query="out", epoch=epoch, **figures)
    if asked:
        emit("state", state="STOPPING")
        emit("state", state="STOPPED")
        emit("stopped", generation=generation)
        time.sleep(1.0)  # as a JVM does
        emit("summary", state="STOPPED")
        sys.exit(0)
"""


class World:
    """A control plane, two hosts, and a job."""

    def __init__(self, client: httpx.Client, name: str, folder: Path) -> None:
        self.client, self.name, self.folder = client, name, folder

    def code(self, version: int, when: str = "") -> str:
        settings = f"FOLDER, VERSION, WHEN = {str(self.folder)!r}, {version}, {when!r}\n"
        return upload(self.client, (settings + DRIVER).encode())

    def job(self) -> dict[str, Any]:
        body: dict[str, Any] = self.client.get(f"/jobs/{self.name}").json()
        return body

    def runs(self, *, besides: str = "", version: int = 1) -> str:
        """Wait until it runs, somewhere else than `besides`; where."""

        def look() -> bool:
            job = self.job()
            return job["state"] == "RUNNING" and job["host"] != besides and job["observed_version"] == version

        eventually(look, f"version {version} runs on another host than {besides!r}", timeout_s=60)
        return str(self.job()["host"])

    def rows(self) -> list[tuple[int, int, float]]:
        return [tuple(json.loads(line)) for line in (self.folder / "output").read_text().splitlines()]

    def flows(self) -> None:
        count = len(self.rows())
        eventually(lambda: len(self.rows()) > count + 5, "there is output")

    def ended(self, what: str, **body: Any) -> dict[str, Any]:
        """Requests an action and returns its operation once it has ended."""
        answer = self.client.post(f"/jobs/{self.name}/{what}", json=body)
        assert answer.status_code == 202, answer.text
        return self.until_ended(answer.json()["id"])

    def until_ended(self, operation: str) -> dict[str, Any]:
        body: dict[str, Any] = {}

        def look() -> bool:
            body.update(self.client.get(f"/operations/{operation}").json())
            return bool(body["state"] != "IN_PROGRESS")

        eventually(look, "the operation ends", timeout_s=60)
        return body

    def change(self, artifact: str) -> None:
        version = self.job()["version"]
        answer = self.client.patch(
            f"/jobs/{self.name}", json={"artifact": artifact}, headers={"If-Match": f'"{version}"'}
        )
        assert answer.status_code == 200, answer.text

    def pause(self, what: str, change: Callable[[], Any]) -> Any:
        self.flows()
        since = time.time()
        answer = change()
        self.flows()
        came = [at for _, _, at in self.rows() if at > since]
        print(f"{what}: longest pause {max(later - earlier for earlier, later in pairwise(came)) * 1000:.0f} ms")
        return answer

    def causes(self) -> list[str]:
        return [recovery["cause"] for recovery in self.client.get(f"/jobs/{self.name}/recoveries").json()["data"]]


@pytest.fixture
def world(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Late heartbeats of a busy machine are not failures here.
    patient = {"host_lease_s": 60.0, "host_heartbeat_s": 5.0, "standby_heartbeat_s": 5.0}
    monkeypatch.setattr("clonos_api.reconcile.states.moving.HAND_OVER_S", 300.0)
    with ExitStack() as stack:
        shared = tmp_path / "shared"
        service: Served = stack.enter_context(
            served(tmp_path, reconcile=True, shared_checkpoints=str(shared), **patient)
        )
        client = stack.enter_context(service.client())
        eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
        for host in ("a", "b"):
            made = client.post("/tokens", json={"name": f"agent-{host}", "role": "agent", "host": host})
            token = tmp_path / f"{host}.token"
            token.write_text(made.json()["token"])
            token.chmod(0o600)
            more = {"name": host, "token_file": token, "slots": 4}
            agent = ProcessAgent(settings(tmp_path / host, service.url, **more), tmp_path / f"{host}.log")
            stack.callback(agent.end)
        eventually(lambda: len(client.get("/hosts").json()["data"]) == 2, "both hosts are there", timeout_s=60)
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "output").touch()
        world = World(client, name, tmp_path / "job")
        spec = {"metadata": {"name": name}, "spec": {"main": "job.py", "standby": {"replicas": 1}}}
        made = client.post("/jobs", json={"spec": spec, "artifact": world.code(1)})
        assert made.status_code == 201, made.text
        yield world
        client.post(f"/jobs/{name}/cancel")
        eventually(lambda: world.job()["state"] == "CANCELED", "it is cancelled")


def test_a_driver_is_replaced_while_it_runs(world: World) -> None:
    first = world.runs()
    moved = world.pause("move", lambda: world.ended("move"))
    assert moved["state"] == "COMPLETED", moved
    second = world.runs(besides=first)
    world.pause("drain", lambda: (world.client.post(f"/hosts/{second}/drain"), world.runs(besides=second)))
    world.client.post(f"/hosts/{second}/undrain")
    world.change(world.code(2))
    done = world.pause("upgrade", lambda: world.ended("upgrade"))
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 2), done
    world.change(world.code(3, "warming"))
    failed = world.pause("code that does not warm up", lambda: world.ended("upgrade"))
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "move-failed"), failed
    world.runs(version=2)
    world.change(world.code(4, "running"))
    failed = world.pause("code that fails at once", lambda: world.ended("upgrade"))
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "upgrade-failed"), failed
    world.runs(version=2)
    world.flows()
    assert world.causes() == ["rollback", "upgrade", "upgrade", "move", "move"]
    rows = world.rows()
    generations = [generation for _, generation, _ in rows]
    assert generations == sorted(generations), "no driver writes after a newer one has claimed"
    assert [version for version, _, _ in rows] == sorted(version for version, _, _ in rows)
    assert {version for version, _, _ in rows} == {1, 2}
