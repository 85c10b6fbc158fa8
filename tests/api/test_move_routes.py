"""Planned moves through the routes, with the reconciler of the service and hosts that are played."""

from __future__ import annotations

import time
from typing import Any

import pytest
from test_standby_life import World, leading, world

from observe import eventually
from scripted import CODE, upload

__all__ = ["leading", "world"]

BROKEN = {"error": "job-code-failed", "what": "It raised.", "domain": "user", "retry": False}


def ask(world: World, what: str, *, status: int = 202, key: str | None = None, **body: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    answer = world.client.post(f"/jobs/{world.name}/{what}", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def ended(world: World, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation once it has ended."""
    found: dict[str, Any] = {}

    def look() -> bool:
        world.beat()
        found.update(world.client.get(f"/operations/{operation['id']}").json())
        return found["state"] != "IN_PROGRESS"

    eventually(look, "the operation ends", timeout_s=15)
    return found


def third(world: World, *others: str) -> str:
    return next(name for name in world.hosts if name not in others)


def orders(world: World, host: str) -> dict[str, str]:
    return {one["run"]: one["goal"] for one in world.hosts[host].work()["runs"]}


def recovery(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.client.get(f"/jobs/{world.name}/recoveries").json()["data"][0]
    return found


def epoch(world: World, host: str, run: str, generation: int, number: int = 0) -> None:
    figures = {"read": 1, "records": 1, "duration_ms": 5, "replay": False}
    common = {"job": world.name, "generation": generation, "at": time.time()}
    world.hosts[host].tell(run, {**common, "event": "epoch", "query": "out", "epoch": number, **figures})


def take_over(world: World, host: str, run: str, old: tuple[str, str], generation: int = 2) -> None:
    """A standby is told to take over, while the driver works; it does, and the driver is to go."""
    where, order = world.order(standby=False, but=old[1])
    assert (where, order["run"]) == (host, run)
    assert orders(world, old[0])[old[1]] == "RUN", "the driver works until then"
    assert world.job()["run"] == old[1]
    world.drive(host, run, generation)
    eventually(lambda: orders(world, old[0]).get(old[1]) == "GONE", "what is left of the old one is killed")
    superseded = {"error": "superseded", "what": "newer", "domain": "run", "retry": False}
    world.tell(old[0], old[1], "EXITED", "SUPERSEDED", exit_code=70, final=True, failure=superseded)


def test_a_move_promotes_the_standby_that_is_ready(world: World) -> None:
    primary, run, other, waiting = world.guarded()
    epoch(world, primary, run, 1)
    asked = ask(world, "move", key="once", to=other)
    assert ask(world, "move", key="once", to=other)["id"] == asked["id"], "the same wish, told again"
    take_over(world, other, waiting, (primary, run))
    done = ended(world, asked)
    assert (done["state"], done["result"]["run"]) == ("COMPLETED", waiting)
    assert (world.job()["agent"], world.job()["state"]) == (other, "RUNNING")
    epoch(world, other, waiting, 2, 1)
    found = recovery(world)
    assert (found["cause"], found["outcome"], found["failure"]) == ("move", "finished", None)
    assert (found["from_agent"], found["to_agent"], found["standby"]) == (primary, other, waiting)
    assert found["gap_ms"] < 15_000
    # Another standby takes the place of the one that was used.
    assert world.order(standby=True)[0] != other
    kinds = [one["data"]["cause"] for one in world.client.get("/events/history?type=job.generation").json()["data"]]
    assert kinds[-1] == "move"
    actions = [one["action"] for one in world.client.get("/audit").json()["data"]]
    assert {"job.move", "operation.move"} <= set(actions)


def test_a_move_to_a_host_without_a_standby_places_one_first(world: World) -> None:
    primary, run, other, regular = world.guarded()
    to = third(world, primary, other)
    asked = ask(world, "move", to=to)
    host, order = world.order(standby=True, but=regular)
    assert host == to
    world.tell(to, order["run"], "RUNNING", "READY")
    take_over(world, to, order["run"], (primary, run))
    assert ended(world, asked)["state"] == "COMPLETED"
    assert world.job()["agent"] == to
    assert orders(world, other) == {regular: "RUN"}, "the job's own standby stays"


def test_a_job_without_standbys_moves_through_one_that_is_only_for_that(world: World) -> None:
    primary, run, other, regular = world.guarded()
    spec = {**world.job()["spec"]}
    spec["spec"] = {**spec["spec"], "standby": {"replicas": 0}}
    version = world.job()["version"]
    patched = world.client.patch(f"/jobs/{world.name}", json={"spec": spec}, headers={"If-Match": f'"{version}"'})
    assert patched.status_code == 200, patched.text
    assert world.order("GONE", standby=True)[1]["run"] == regular
    world.tell(other, regular, "EXITED", exit_code=-9, final=True)
    asked = ask(world, "move")
    host, order = world.order(standby=True)
    assert order["version"] == 1, "as its driver: a change counts from the next start"
    world.tell(host, order["run"], "RUNNING", "READY")
    take_over(world, host, order["run"], (primary, run))
    assert ended(world, asked)["state"] == "COMPLETED"
    assert not any(one["standby"] for name in world.hosts for one in world.hosts[name].work()["runs"])


def test_a_standby_that_is_not_ready_in_time_changes_nothing(world: World) -> None:
    primary, run, other, regular = world.guarded()
    to = third(world, primary, other)
    failed = ended(world, ask(world, "move", to=to, timeout_s=0.5))
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "not-moved")
    assert orders(world, primary) == {run: "RUN"}
    assert world.job()["state"] == "RUNNING"
    eventually(lambda: set(orders(world, to).values()) <= {"GONE"}, "the standby that is not wanted any more goes")
    assert orders(world, other) == {regular: "RUN"}


def test_a_standby_that_dies_while_it_takes_over_leaves_the_driver_where_it_was(world: World) -> None:
    primary, run, other, waiting = world.guarded()
    asked = ask(world, "move", to=other)
    world.order(standby=False, but=run)
    world.tell(other, waiting, "EXITED", "PROMOTING", exit_code=1, final=True, failure=BROKEN)
    failed = ended(world, asked)
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "not-moved")
    assert orders(world, primary) == {run: "RUN"}
    assert (world.job()["state"], world.job()["run"]) == ("RUNNING", run)
    assert world.standby("FAILED")["id"] == waiting


def test_what_cannot_move_is_told_at_once(world: World) -> None:
    primary, *_ = world.guarded()
    assert "no-such-host" in ask(world, "move", to="no-such-host", status=404)["detail"]
    drained = third(world, primary)
    world.client.post(f"/hosts/{drained}/drain")
    assert "DRAINING" in ask(world, "move", to=drained, status=409)["detail"]
    assert ask(world, "move", to=primary)["state"] == "COMPLETED", "it is there already"
    assert ask(world, "upgrade")["state"] == "COMPLETED", "it has the newest version already"
    world.client.post(f"/jobs/{world.name}/stop")
    eventually(lambda: world.job()["state"] != "RUNNING", "it is being stopped")
    assert "STOPP" in ask(world, "move", status=409)["detail"]


def test_a_checkpoint_that_is_a_path_of_a_host_does_not_move(world: World) -> None:
    spec = {"metadata": {"name": f"{world.name}-l"}, "spec": {"main": "job.py", "checkpoint": "/var/lib/here"}}
    body = {"spec": spec, "artifact": upload(world.client)}
    assert world.client.post("/jobs", json=body).status_code == 201
    answer = world.client.post(f"/jobs/{world.name}-l/move")
    assert answer.status_code == 409
    assert "/var/lib/here is a path of the host" in answer.json()["detail"]
    world.client.post(f"/jobs/{world.name}-l/cancel")


def test_a_drained_host_hands_its_driver_over(world: World) -> None:
    primary, run, other, waiting = world.guarded()
    assert world.client.post(f"/hosts/{primary}/drain").status_code == 200
    take_over(world, other, waiting, (primary, run))
    eventually(lambda: world.job()["state"] == "RUNNING", "it runs again")
    assert recovery(world)["cause"] == "move"
    assert world.order(standby=True)[0] not in (primary, other)


# Another version


def changed(world: World, code: bytes = CODE + b"# newer\n") -> None:
    body = {"artifact": upload(world.client, code)}
    version = world.job()["version"]
    answer = world.client.patch(f"/jobs/{world.name}", json=body, headers={"If-Match": f'"{version}"'})
    assert answer.status_code == 200, answer.text


def newer(world: World, old: str, waiting: str, state: str = "READY") -> tuple[str, str]:
    """A standby of the new version is so: where, and its run."""
    found: list[tuple[str, dict[str, Any]]] = []

    def look() -> bool:
        world.beat()
        found[:] = [
            (name, one)
            for name, host in world.hosts.items()
            for one in host.work()["runs"]
            if one["standby"] and one["version"] == 2
        ]
        return bool(found)

    eventually(look, "a standby of the new version is placed", timeout_s=15)
    host, order = found[0]
    assert order["run"] not in (old, waiting)
    world.tell(host, order["run"], "RUNNING", state)
    return host, order["run"]


def make_room(world: World, primary: str, run: str) -> None:
    """The driver of the old version is to finish its epoch, and does."""
    host, order = world.order("STOP", standby=False)
    assert (host, order["run"], order["stop_mode"]) == (primary, run, "graceful")
    world.tell(primary, run, "STOPPING", "STOPPED")


def test_an_upgrade_takes_over_when_the_old_driver_has_finished(world: World) -> None:
    primary, run, other, waiting = world.guarded()
    epoch(world, primary, run, 1)
    changed(world)
    asked = ask(world, "upgrade")
    host, new = newer(world, run, waiting)
    assert orders(world, other)[waiting] == "RUN", "a standby of the old version stays until the new one works"
    make_room(world, primary, run)
    assert world.order(standby=False, but=run)[1]["run"] == new
    world.drive(host, new, 2)
    eventually(lambda: world.job()["state"] == "RUNNING", "it runs")
    assert world.client.get(f"/operations/{asked['id']}").json()["state"] == "IN_PROGRESS", "not an epoch yet"
    epoch(world, host, new, 2, 1)
    done = ended(world, asked)
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 2)
    assert (world.job()["observed_version"], world.job()["agent"]) == (2, host)
    found = recovery(world)
    assert (found["cause"], found["outcome"], found["to_agent"]) == ("upgrade", "finished", host)
    eventually(lambda: orders(world, other).get(waiting) == "GONE", "the old version is not needed any more")


def test_code_that_does_not_even_warm_up_leaves_the_driver_alone(world: World) -> None:
    primary, run, _, waiting = world.guarded()
    changed(world)
    asked = ask(world, "upgrade")
    host, new = newer(world, run, waiting, state="WARMING")
    world.tell(host, new, "EXITED", exit_code=14, final=True, failure=BROKEN)
    failed = ended(world, asked)
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "not-moved")
    assert "It raised." in failed["failure"]["what"]
    assert orders(world, primary) == {run: "RUN"}
    assert world.job()["version"] == 2, "what was asked for stays: mend it, and upgrade again"


@pytest.mark.parametrize("guarded", [True, False], ids=["standby", "cold"])
def test_a_new_version_that_fails_at_once_makes_the_job_go_back(world: World, guarded: bool) -> None:
    primary, run, other, waiting = world.guarded()
    first = world.job()["artifact"]
    changed(world)
    asked = ask(world, "upgrade")
    host, new = newer(world, run, waiting)
    make_room(world, primary, run)
    assert world.order(standby=False, but=run)[1]["run"] == new
    world.tell(primary, run, "EXITED", "STOPPED", exit_code=0, final=True)
    world.drive(host, new, 2)
    if not guarded:
        world.tell(other, waiting, "EXITED", exit_code=1, final=True)
        world.standby("FAILED")
    world.tell(host, new, "EXITED", "FAILED", exit_code=14, final=True, failure=BROKEN)

    eventually(lambda: world.job()["version"] == 3, "it goes back")
    assert world.job()["artifact"] == first
    where, order = world.order(standby=False, but=new)
    assert (order["artifact"], order["version"], order["accept_code"]) == (first, 3, True)
    assert (order["run"] == waiting) == guarded, "a standby of the old version, if there is one"
    world.drive(where, order["run"], 3)
    failed = ended(world, asked)
    assert (failed["state"], failed["failure"]["error"]) == ("FAILED", "upgrade-failed")
    assert "It raised." in failed["failure"]["what"]
    assert "version 1 is the job's again, as version 3" in failed["failure"]["kept"]
    assert (world.job()["state"], world.job()["observed_version"]) == ("RUNNING", 3)
    versions = world.client.get(f"/jobs/{world.name}/versions").json()["data"]
    assert [one["version"] for one in versions] == [3, 2, 1]


def test_a_takeover_keeps_the_version_that_ran(world: World) -> None:
    """A change counts from the next start, and a failure is none: an epoch in doubt needs the code that planned it."""
    primary, run, other, waiting = world.guarded()
    changed(world)
    world.tell(primary, run, "EXITED", exit_code=-9)
    host, order = world.order(standby=False, but=run)
    assert (host, order["run"], order["version"]) == (other, waiting, 1)
