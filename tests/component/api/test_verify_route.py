"""An agent verifies a job's output, and its result becomes the operation's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from clonos.resources.jobs import Failure
from clonos.resources.verification import Verification
from support.scripted import ScriptedAgent, create

CLEAN = {"at": "2026-01-01T12:00:00Z", "clean": True, "verified": {"out": [0, 41]}, "records": 1234}


def begun(admin: httpx.Client, job: str, **request: Any) -> dict[str, Any]:
    answer = admin.post(f"/jobs/{job}/verify", json=request)
    assert answer.status_code == 202, answer.text
    operation: dict[str, Any] = answer.json()
    return operation


def test_the_result_of_the_agent_is_that_of_the_operation(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Callable[[str, str], str]
) -> None:
    job = create(admin, name)
    place(job["id"], agent.id)
    operation = begun(admin, name, topics=["words"], seconds=2.5)
    (task,) = [task for task in agent.work()["tasks"] if task["arguments"].get("job") == name]
    assert task["kind"] == "verify"
    assert task["arguments"] == {"job": name, "topics": ["words"], "seconds": 2.5}
    agent.task_done(task["task"], **CLEAN)
    ended = admin.get(f"/operations/{operation['id']}").json()
    assert ended["state"] == "COMPLETED"
    assert Verification.model_validate(ended["result"]) == Verification.model_validate(CLEAN)


def test_a_failed_verification_is_a_failed_operation(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Callable[[str, str], str]
) -> None:
    job = create(admin, name)
    place(job["id"], agent.id)
    operation = begun(admin, job["id"])
    task = next(task for task in agent.work()["tasks"] if task["arguments"].get("job") == name)
    failure = Failure(error="causal-log-missing", what="The job has no causal log.").model_dump(mode="json")
    body = {"instance": agent.instance, "ok": False, "failure": failure}
    assert agent.client.post(f"/hosts/{agent.id}/tasks/{task['task']}", json=body).status_code == 204
    ended = admin.get(f"/operations/{operation['id']}").json()
    assert (ended["state"], ended["failure"]["error"]) == ("FAILED", "causal-log-missing")


def test_a_result_that_is_not_a_verification_is_refused(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Callable[[str, str], str]
) -> None:
    place(create(admin, name)["id"], agent.id)
    operation = begun(admin, name)
    task = next(task for task in agent.work()["tasks"] if task["arguments"].get("job") == name)
    body = {"instance": agent.instance, "ok": True, "result": {"clean": "surely"}}
    refused = agent.client.post(f"/hosts/{agent.id}/tasks/{task['task']}", json=body)
    assert refused.status_code == 422
    assert admin.get(f"/operations/{operation['id']}").json()["state"] == "IN_PROGRESS"


def test_a_job_has_one_verification_at_a_time(
    admin: httpx.Client, agent: ScriptedAgent, name: str, place: Callable[[str, str], str]
) -> None:
    place(create(admin, name)["id"], agent.id)
    begun(admin, name)
    refused = admin.post(f"/jobs/{name}/verify")
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (409, "state-conflict")
    (task,) = [task for task in agent.work()["tasks"] if task["arguments"].get("job") == name]
    agent.task_done(task["task"], **CLEAN)
    begun(admin, name)


@pytest.mark.parametrize("request_", [{"seconds": 0}, {"seconds": 301}, {"topics": [""]}, {"topics": ["t"] * 17}])
def test_an_invalid_request_is_refused(admin: httpx.Client, name: str, request_: dict[str, Any]) -> None:
    create(admin, name)
    assert admin.post(f"/jobs/{name}/verify", json=request_).status_code == 422


def test_a_verification_needs_a_ready_host(
    admin: httpx.Client, agent: ScriptedAgent, name: str, drained: Callable[[], None]
) -> None:
    create(admin, name)
    drained()
    refused = admin.post(f"/jobs/{name}/verify")
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (409, "state-conflict")
    assert "clonos verify" in refused.json()["hint"]


@pytest.fixture
def drained(admin: httpx.Client) -> Callable[[], None]:
    """Drains all hosts."""

    def drain() -> None:
        for host in admin.get("/hosts", params={"limit": 100}).json()["data"]:
            assert admin.post(f"/hosts/{host['id']}/drain").status_code == 200

    return drain
