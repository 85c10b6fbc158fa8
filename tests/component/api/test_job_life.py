"""The lifecycle of a job through the routes, with the reconciler and a scripted agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from clonos.testing.harness import eventually
from support.scripted import ScriptedAgent, spec, upload
from support.serving import Served, served


@pytest.fixture(scope="module")
def leading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("leading"), reconcile=True, host_lease_s=60.0) as service:
        yield service


def _run_spec(agent: ScriptedAgent, job: str, desired: str) -> dict[str, Any]:
    """Returns the run specification of a job, once it has this desired state."""
    runs: list[dict[str, Any]] = []

    def look() -> bool:
        runs[:] = [run for run in agent.work()["runs"] if run["name"] == job and run["desired"] == desired]
        return bool(runs)

    eventually(look, f"the run specification {desired}")
    return runs[-1]


def _reaches(client: httpx.Client, job: str, state: str) -> dict[str, Any]:
    body: dict[str, Any] = {}

    def look() -> bool:
        body.update(client.get(f"/jobs/{job}").json())
        return bool(body["state"] == state)

    eventually(look, f"{job} becomes {state}")
    return body


def _run(agent: ScriptedAgent, run: str, job: str, generation: int) -> None:
    agent.heartbeat({"run": run, "state": "STARTING", "attempts": 1, "pid": 42})
    common = {"job": job, "generation": generation, "at": time.time()}
    agent.push_events(
        run,
        {**common, "event": "claimed", "lineage": 1, "lanes": 1},
        {**common, "event": "state", "state": "RUNNING"},
    )
    agent.heartbeat({"run": run, "state": "RUNNING", "driver_state": "RUNNING", "attempts": 1, "pid": 42})


def _ends(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    where = answer.headers["Location"].removeprefix("/api/v1")
    eventually(lambda: client.get(where).json()["state"] != "IN_PROGRESS", "the operation ends")
    operation: dict[str, Any] = client.get(where).json()
    return operation


def test_a_job_from_creation_to_deletion(leading: Served, name: str) -> None:
    with leading.client() as client, ScriptedAgent(leading, f"host-{name}") as agent:
        eventually(lambda: client.get("/health").json()["leader"], "the replica leads")
        agent.register()
        created = client.post("/jobs", json={"spec": spec(name), "artifact": upload(client)})
        assert created.status_code == 201, created.text
        first = _run_spec(agent, name, "RUNNING")
        run = first["run"]
        assert len(first["platform"]) == 32
        assert not first.get("adopt")
        assert client.get(f"/jobs/{name}").json()["state"] == "STARTING"
        _run(agent, run, name, 1)
        job = _reaches(client, name, "RUNNING")
        assert (job["generation"], job["host"], job["run"]) == (1, agent.name, run)

        stopping = client.post(f"/jobs/{name}/stop", json={"mode": "graceful", "timeout_s": 5})
        _run_spec(agent, name, "STOPPED")
        agent.heartbeat(
            {"run": run, "state": "EXITED", "driver_state": "STOPPED", "attempts": 1, "exit_code": 0, "final": True}
        )
        assert _ends(client, stopping)["state"] == "COMPLETED"
        assert _reaches(client, name, "STOPPED")["desired_state"] == "STOPPED"
        assert all(run["name"] != name for run in agent.work()["runs"])

        saving = client.post(f"/jobs/{name}/savepoints", json={"name": "kept"})
        eventually(lambda: agent.work()["tasks"], "the task of the savepoint")
        (task,) = agent.work()["tasks"]
        agent.task_done(task["task"], epochs={"out": 3}, size_bytes=10)
        savepoint = _ends(client, saving)["result"]["savepoint"]
        assert client.get(f"/savepoints/{savepoint}").json()["state"] == "COMPLETED"

        from_savepoint = {"savepoint": savepoint, "publish_again": True, "adopt": True}
        starting = client.post(f"/jobs/{name}/start", json=from_savepoint)
        run_spec = _run_spec(agent, name, "RUNNING")
        assert run_spec["run"] != run
        assert (run_spec["platform"], run_spec["adopt"]) == (first["platform"], True)
        assert run_spec["start_from"]["savepoint"] == savepoint
        assert run_spec["restore_location"] == client.get(f"/savepoints/{savepoint}").json()["location"]
        _run(agent, run_spec["run"], name, 2)
        assert _ends(client, starting)["state"] == "COMPLETED"
        assert _reaches(client, name, "RUNNING")["generation"] == 2
        # A driver that another platform fences later must not take the log back.
        eventually(lambda: not _run_spec(agent, name, "RUNNING").get("adopt"), "the first claim uses the adoption up")

        deleting = client.delete(f"/jobs/{name}")
        desired = eventually(
            lambda: [run for run in agent.work()["runs"] if run["desired"] != "RUNNING"], "the run specification to end"
        )
        agent.heartbeat({"run": desired[0]["run"], "state": "EXITED", "attempts": 1, "exit_code": -9, "final": True})
        assert _ends(client, deleting)["state"] == "COMPLETED"
        assert client.get(f"/jobs/{name}").status_code == 404
        assert client.get(f"/savepoints/{savepoint}").status_code == 200  # it outlives its job
        kinds = [
            event["type"]
            for event in client.get("/events/history", params={"job": job["id"], "limit": 200}).json()["data"]
        ]
        assert kinds[0] == "job.created"
        assert "job.deleted" in kinds
