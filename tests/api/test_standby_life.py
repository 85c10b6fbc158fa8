"""A standby's life through the routes, with the reconciler of the service and hosts that are played."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from observe import eventually
from scripted import ScriptedAgent, spec, upload
from serving import Served, served


class World:
    """A service with hosts, and one job that is to have standbys."""

    def __init__(self, service: Served, client: httpx.Client, hosts: list[ScriptedAgent], name: str) -> None:
        self.client = client
        self.hosts = {host.name: host for host in hosts}
        self.name = name
        self.beat_s: dict[str, float] = {}
        self._reports: dict[str, dict[str, dict[str, Any]]] = {host.name: {} for host in hosts}

    def beat(self) -> None:
        """All hosts that are heard of say how their runs are."""
        for name, host in self.hosts.items():
            ordered = {one["run"] for one in host.work()["runs"]}
            reports = [one for run, one in self._reports[name].items() if run in ordered]
            host.heartbeat(*reports, beat_s=self.beat_s.get(name, 1.0))

    def tell(self, host: str, run: str, state: str, driver_state: str = "", **more: Any) -> None:
        """A host says how a run is."""
        report = {"run": run, "state": state, "driver_state": driver_state, "attempts": 1, "pid": 42, **more}
        self._reports[host][run] = report
        self.beat()

    def order(self, goal: str = "RUN", *, standby: bool, but: str = "") -> tuple[str, dict[str, Any]]:
        """The host that is ordered to have the job's driver, or its standby; and the order."""
        found: list[tuple[str, dict[str, Any]]] = []

        def look() -> bool:
            self.beat()
            found[:] = [
                (name, one)
                for name, host in self.hosts.items()
                for one in host.work()["runs"]
                if one["name"] == self.name and one["goal"] == goal and one["run"] != but
                if one.get("standby", False) == standby
            ]
            return bool(found)

        eventually(look, f"an order {goal}, standby {standby}", timeout_s=15)
        return found[-1]

    def standby(self, state: str) -> dict[str, Any]:
        """The job's standby, once it is so."""
        found: dict[str, Any] = {}

        def look() -> bool:
            self.beat()
            page = self.client.get(f"/jobs/{self.name}/standbys").json()["data"]
            found.update(next((one for one in page if one["state"] == state), {}))
            return bool(found)

        eventually(look, f"a standby is {state}", timeout_s=15)
        return found

    def drive(self, host: str, run: str, generation: int) -> None:
        """A driver claims, and works."""
        common = {"job": self.name, "generation": generation, "at": time.time()}
        claimed = {**common, "event": "claimed", "lineage": 1, "lanes": 1}
        self.hosts[host].tell(run, claimed, {**common, "event": "state", "state": "RUNNING"})
        self.tell(host, run, "RUNNING", "RUNNING")

    def guarded(self) -> tuple[str, str, str, str]:
        """The job runs and its standby is READY: hosts and runs of both."""
        primary, order = self.order(standby=False)
        self.drive(primary, order["run"], 1)
        other, waiting = self.order(standby=True)
        self.tell(other, waiting["run"], "RUNNING", "READY")
        assert self.standby("READY")["agent"] == other
        return primary, order["run"], other, waiting["run"]

    def job(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get(f"/jobs/{self.name}").json()
        return answer


def pages(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """A list, one entry at a time."""
    after: dict[str, str] = {}
    while True:
        page = client.get(path, params={"limit": 1, **after}).json()
        yield from page["data"]
        if not page["has_more"]:
            return
        assert page["next"] != after.get("starting_after"), "it goes on"
        after = {"starting_after": page["next"]}


@pytest.fixture(scope="module")
def leading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("leading")
    with served(
        folder, reconcile=True, agent_lease_s=4.0, agent_heartbeat_s=1.0, shared_checkpoints=str(folder / "shared")
    ) as service:
        yield service


@pytest.fixture
def world(leading: Served, name: str) -> Iterator[World]:
    with ExitStack() as stack:
        client = stack.enter_context(leading.client())
        eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
        hosts = [stack.enter_context(ScriptedAgent(leading, f"{name}-{letter}")) for letter in "abc"]
        for host in hosts:
            host.register()
        made = World(leading, client, hosts, name)
        wanted = spec(name)
        wanted["spec"]["standby"] = {"replicas": 1, "aloneAfterS": 10}
        created = client.post("/jobs", json={"spec": wanted, "artifact": upload(client)})
        assert created.status_code == 201, created.text
        yield made
        client.post(f"/jobs/{name}/cancel")
        for host in hosts:
            client.delete(f"/hosts/{host.id}")


def test_it_takes_over_from_a_driver_that_died(world: World) -> None:
    primary, fell, other, waiting = world.guarded()
    assert other != primary
    yields = world.order(standby=False)[1]["restart"]
    eventually(lambda: world.order(standby=False)[1]["restart"]["yield_s"] > 1, f"its agent yields, not {yields}")

    world.tell(primary, fell, "EXITED", exit_code=-9)
    host, order = world.order(standby=False)
    assert (host, order["run"]) == (other, waiting), "the same run, which only waited before"
    assert world.order("GONE", standby=False)[1]["run"] == fell, "whatever is left of the old one is killed"
    assert world.standby("PROMOTING")["id"] == waiting
    world.drive(other, waiting, 2)
    eventually(lambda: world.job()["state"] == "RUNNING", "it runs again")
    job = world.job()
    assert (job["agent"], job["generation"], job["run"]) == (other, 2, waiting)
    assert world.standby("PROMOTED")["id"] == waiting
    driver = world.client.get(f"/jobs/{world.name}/runs/{waiting}").json()
    assert (driver["id"], driver["agent"], driver["standby"]) == (waiting, other, False)
    (recovery,) = world.client.get(f"/jobs/{world.name}/recoveries").json()["data"]
    assert (recovery["cause"], recovery["from_agent"], recovery["to_agent"]) == ("crash", primary, other)
    # Another one is placed, away from the new driver.
    replacement, next_order = world.order(standby=True)
    found = [next_order["run"], waiting]
    assert [one["id"] for one in pages(world.client, f"/jobs/{world.name}/standbys")] == found
    assert {one["id"] for one in pages(world.client, "/standbys") if one["job"] == world.job()["id"]} == set(found)
    over = world.client.get(f"/jobs/{world.name}/standbys?state=PROMOTED&state=FAILED").json()["data"]
    assert [one["id"] for one in over] == [waiting]
    assert replacement != other
    assert next_order["run"] not in (fell, waiting)


def test_it_takes_over_from_a_host_that_is_gone(world: World) -> None:
    primary, fell, other, waiting = world.guarded()
    gone = world.hosts.pop(primary)
    host, order = world.order(standby=False)
    assert (host, order["run"]) == (other, waiting)
    world.drive(other, waiting, 2)
    eventually(lambda: world.job()["agent"] == other, "it is told")
    # It comes back: its driver is to be killed.
    world.hosts[primary] = gone
    gone.register()
    assert world.order("GONE", standby=False)[1]["run"] == fell


def test_it_takes_over_from_a_host_that_was_to_be_heard_of_sooner(world: World) -> None:
    """Its lease runs still; the missing heartbeats are enough where a standby is ready."""
    primary, fell, other, waiting = world.guarded()
    world.beat_s[primary] = 0.5
    eventually(lambda: world.order(standby=False)[1]["restart"]["yield_s"] > 0, "its agent knows of the standby")
    ordered = world.hosts[primary].work()["runs"]
    # As after an outage of the service itself: it has to have listened for a while.
    until = time.monotonic() + 10
    eventually(lambda: world.beat() or time.monotonic() > until, "it has listened", timeout_s=20)
    assert world.hosts[primary].work()["runs"] == ordered, "nothing was done as long as it was heard of"
    quiet = world.hosts.pop(primary)
    host, order = world.order(standby=False)
    assert (host, order["run"]) == (other, waiting)
    assert world.client.get(f"/hosts/{quiet.id}").json()["state"] == "READY"
    world.drive(other, waiting, 2)
    eventually(lambda: world.job()["agent"] == other, "it is told")
    world.hosts[primary] = quiet
    assert world.order("GONE", standby=False)[1]["run"] == fell, "if it lives, its driver is to be killed"
    (recovery,) = world.client.get(f"/jobs/{world.name}/recoveries").json()["data"]
    assert (recovery["cause"], recovery["standby"]) == ("host-lost", waiting)
    assert [one["name"] for one in recovery["phases"][:2]] == ["detect", "decide"]


def test_nobody_takes_over_when_no_host_is_heard_of(world: World) -> None:
    """Then it is the service, or its database, that is in trouble."""
    primary, fell, other, _ = world.guarded()
    world.beat_s |= {primary: 0.5, other: 0.5}
    until = time.monotonic() + 10
    eventually(lambda: world.beat() or time.monotonic() > until, "it has listened", timeout_s=20)
    until = time.monotonic() + 3.0
    eventually(lambda: time.monotonic() > until, "all are silent, within their lease")
    orders = {one["run"]: one["goal"] for one in world.hosts[primary].work()["runs"]}
    assert orders[fell] == "RUN"
    assert world.job()["state"] == "RUNNING"


@pytest.mark.parametrize("how", ["its host is lost", "it is superseded", "it says so before", "it is not heard of yet"])
def test_a_standby_that_helped_itself_is_the_jobs_driver(world: World, how: str) -> None:
    """The service was away, and a standby took over; now it hears of it, and nothing is started or fenced again."""
    wanted = world.client.get(f"/jobs/{world.name}").json()["spec"]
    assert wanted["spec"]["standby"]["aloneAfterS"] == 10.0
    primary, fell, other, waiting = world.guarded()
    if how == "its host is lost":
        world.hosts.pop(primary)
    if how == "it says so before":
        told = {"job": world.name, "generation": 1, "at": time.time(), "what": "newer", "kept": "", "hint": ""}
        world.hosts[primary].tell(fell, {**told, "event": "superseded", "error": "superseded"})
    if how in ("it is superseded", "it says so before"):
        trouble = {"error": "superseded", "what": "a newer generation", "domain": "run", "retry": False}
        world.tell(primary, fell, "EXITED", "SUPERSEDED", exit_code=70, final=True, failure=trouble)
    world.drive(other, waiting, 2)
    host, order = world.order(standby=False)
    eventually(lambda: (world.beat(), world.job()["run"])[1] == waiting, "its run is the job's")
    eventually(lambda: (world.beat(), world.job()["state"])[1] == "RUNNING", "it runs")
    host, order = world.order(standby=False)
    assert (host, order["run"], order["goal"]) == (other, waiting, "RUN")
    assert (world.job()["agent"], world.job()["generation"]) == (other, 2)
    assert world.standby("PROMOTED")["id"] == waiting
    generations = world.client.get(f"/jobs/{world.name}/generations").json()["data"]
    assert [one["generation"] for one in generations] == [2, 1]
    common = {"job": world.name, "generation": 2, "at": time.time()}
    figures = {"read": 1, "records": 1, "replay": False, "duration_ms": 5}
    world.hosts[other].tell(waiting, {**common, "event": "epoch", "query": "out", "epoch": 1, **figures})

    def over() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = world.client.get(f"/jobs/{world.name}/recoveries").json()["data"]
        return [one for one in found if one["outcome"]]

    (recovery,) = eventually(over, "its record is closed", timeout_s=15)
    assert recovery["cause"] in ("crash", "host-lost"), "its lease may run still when that is written"
    assert (recovery["from_agent"], recovery["to_agent"], recovery["standby"]) == (primary, other, waiting)
    assert (recovery["failed_generation"], recovery["generation"]) == (1, 2)
    assert (recovery["outcome"], len(world.client.get(f"/jobs/{world.name}/recoveries").json()["data"])) == (
        "finished",
        1,
    )


def test_a_standby_that_dies_is_not_the_jobs_trouble(world: World) -> None:
    _, _, other, waiting = world.guarded()
    world.tell(other, waiting, "EXITED", exit_code=1, final=True)
    assert world.standby("FAILED")["id"] == waiting
    assert world.job()["state"] == "RUNNING"
    assert world.client.get(f"/jobs/{world.name}/recoveries").json()["data"] == []


def test_it_tells_how_far_it_has_read(world: World) -> None:
    primary, run, other, waiting = world.guarded()
    assert world.standby("READY")["lag_epochs"] is None
    common = {"job": world.name, "generation": 1, "at": time.time()}
    figures = {"read": 1, "records": 1, "replay": False, "duration_ms": 5}
    world.hosts[primary].tell(
        run, *({**common, "event": "epoch", "query": "out", "epoch": n, **figures} for n in range(8))
    )
    world.hosts[other].tell(waiting, {**common, "generation": 0, "event": "following", "epochs": {"out": 4}})
    assert world.standby("READY")["lag_epochs"] == 3
    world.hosts[other].tell(waiting, {**common, "generation": 0, "event": "following", "epochs": {"out": 7}})
    assert world.standby("READY")["lag_epochs"] == 0


def test_a_stopped_job_has_none(world: World) -> None:
    primary, run, _, waiting = world.guarded()
    assert world.client.post(f"/jobs/{world.name}/stop", json={"mode": "graceful"}).status_code == 202
    assert world.order("GONE", standby=True)[1]["run"] == waiting
    world.tell(primary, run, "EXITED", "STOPPED", exit_code=0, final=True)
    eventually(lambda: world.job()["state"] == "STOPPED", "it stops")


def test_a_driver_that_ends_for_good_is_not_followed(world: World) -> None:
    """The standby has the same code: it would end in the same way."""
    primary, run, _, waiting = world.guarded()
    trouble = {"error": "job-code", "what": "it is broken", "domain": "user", "retry": False}
    world.tell(primary, run, "EXITED", "FAILED", exit_code=11, final=True, failure=trouble)
    eventually(lambda: world.job()["state"] == "FAILED", "it fails")
    assert world.order("GONE", standby=True)[1]["run"] == waiting


def test_a_drained_host_gives_its_standby_away(world: World) -> None:
    _, _, other, waiting = world.guarded()
    answer = world.client.post(f"/hosts/{world.hosts[other].id}/drain")
    assert answer.status_code in (200, 202), answer.text
    host, order = world.order(standby=True, but=waiting)
    assert host != other
    assert order["run"] != waiting


def test_one_that_is_moved_is_replaced_at_once(world: World) -> None:
    primary, _, other, waiting = world.guarded()
    (third,) = world.hosts.keys() - {primary, other}
    for name in (third, other):
        world.client.post(f"/hosts/{world.hosts[name].id}/drain").raise_for_status()
    beside, order = world.order(standby=True, but=waiting)
    assert beside == primary
    world.tell(beside, order["run"], "RUNNING", "READY")
    world.client.post(f"/hosts/{world.hosts[third].id}/undrain").raise_for_status()

    def there() -> bool:
        world.beat()
        return any(one["goal"] == "RUN" for one in world.hosts[third].work()["runs"])

    eventually(there, "it is on the host that is open again", timeout_s=8)
