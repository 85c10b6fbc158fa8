"""A job's life through the routes, with the reconciler of the service and an agent that is played."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from observe import eventually
from scripted import ScriptedAgent, spec, upload
from serving import Served, served


@pytest.fixture(scope="module")
def leading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("leading"), reconcile=True, agent_lease_s=60.0) as service:
        yield service


def _order(agent: ScriptedAgent, job: str, goal: str) -> dict[str, Any]:
    """The agent's order for a job, once it has this goal."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [one for one in agent.work()["runs"] if one["name"] == job and one["goal"] == goal]
        return bool(found)

    eventually(look, f"the order {goal}", timeout_s=10)
    return found[-1]


def _reaches(client: httpx.Client, job: str, state: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(client.get(f"/jobs/{job}").json())
        return bool(found["state"] == state)

    eventually(look, f"{job} becomes {state}", timeout_s=10)
    return found


def _run(agent: ScriptedAgent, run: str, job: str, generation: int) -> None:
    agent.heartbeat({"run": run, "state": "STARTING", "attempts": 1, "pid": 42})
    common = {"job": job, "generation": generation, "at": time.time()}
    agent.tell(
        run,
        {**common, "event": "claimed", "lineage": 1, "lanes": 1},
        {**common, "event": "state", "state": "RUNNING"},
    )
    agent.heartbeat({"run": run, "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1, "pid": 42})


def _ends(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    where = answer.headers["Location"].removeprefix("/api/v1")
    eventually(lambda: client.get(where).json()["state"] != "IN_PROGRESS", "the operation ends", timeout_s=10)
    operation: dict[str, Any] = client.get(where).json()
    return operation


def test_from_creation_to_deletion(leading: Served, name: str) -> None:
    with leading.client() as client, ScriptedAgent(leading, f"host-{name}") as agent:
        eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
        agent.register()
        created = client.post("/jobs", json={"spec": spec(name), "artifact": upload(client)})
        assert created.status_code == 201, created.text
        run = _order(agent, name, "RUN")["run"]
        assert client.get(f"/jobs/{name}").json()["state"] == "STARTING"
        _run(agent, run, name, 1)
        job = _reaches(client, name, "RUNNING")
        assert (job["generation"], job["agent"], job["run"]) == (1, agent.name, run)

        stopping = client.post(f"/jobs/{name}/stop", json={"mode": "graceful", "timeout_s": 5})
        _order(agent, name, "STOP")
        agent.heartbeat(
            {"run": run, "state": "EXITED", "driver_state": "STOPPED", "attempts": 1, "exit_code": 0, "final": True}
        )
        assert _ends(client, stopping)["state"] == "COMPLETED"
        assert _reaches(client, name, "STOPPED")["desired_state"] == "STOPPED"
        assert all(one["name"] != name for one in agent.work()["runs"])

        saving = client.post(f"/jobs/{name}/savepoints", json={"name": "kept"})
        eventually(lambda: agent.work()["tasks"], "the task of the savepoint")
        (task,) = agent.work()["tasks"]
        agent.task_done(task["task"], epochs={"out": 3}, size_bytes=10)
        savepoint = _ends(client, saving)["result"]["savepoint"]
        assert client.get(f"/savepoints/{savepoint}").json()["state"] == "COMPLETED"

        starting = client.post(f"/jobs/{name}/start", json={"savepoint": savepoint, "publish_again": True})
        order = _order(agent, name, "RUN")
        assert order["run"] != run
        assert order["start_from"]["savepoint"] == savepoint
        assert order["restore_location"] == client.get(f"/savepoints/{savepoint}").json()["location"]
        _run(agent, order["run"], name, 2)
        assert _ends(client, starting)["state"] == "COMPLETED"
        assert _reaches(client, name, "RUNNING")["generation"] == 2

        deleting = client.delete(f"/jobs/{name}")
        goal = eventually(lambda: [one for one in agent.work()["runs"] if one["goal"] != "RUN"], "the order to end")
        agent.heartbeat({"run": goal[0]["run"], "state": "EXITED", "attempts": 1, "exit_code": -9, "final": True})
        assert _ends(client, deleting)["state"] == "COMPLETED"
        assert client.get(f"/jobs/{name}").status_code == 404
        assert client.get(f"/savepoints/{savepoint}").status_code == 200  # it outlives its job
        kinds = [
            one["type"] for one in client.get("/events/history", params={"job": job["id"], "limit": 200}).json()["data"]
        ]
        assert kinds[0] == "job.created"
        assert "job.deleted" in kinds
