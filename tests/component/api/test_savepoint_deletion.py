"""A failed deletion of a savepoint is reported and can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from clonos_api.store import tasks
from support.scripted import ScriptedAgent, create, saved
from support.serving import Served


def test_a_failed_deletion_can_be_retried(
    api: Served, admin: httpx.Client, agent: ScriptedAgent, name: str, write: Callable[..., Any]
) -> None:
    point = asyncio.run(saved(api, create(admin, name)["id"]))

    def task_of(operation: httpx.Response) -> str:
        """As the leader gives it."""
        arguments = {"savepoint": point, "location": "/save"}
        about = operation.json()["id"]
        made = write(lambda session: tasks.create(session, agent.id, "delete-savepoint", arguments, operation=about))
        return str(made.id)

    deleting = admin.delete(f"/savepoints/{point}")
    assert deleting.status_code == 202
    assert admin.delete(f"/savepoints/{point}").status_code == 409
    failure = {"error": "checkpoint-unwritable", "what": "The disk is read-only.", "domain": "environment"}
    body = {"instance": agent.instance, "ok": False, "failure": failure}
    assert agent.client.post(f"/hosts/{agent.id}/tasks/{task_of(deleting)}", json=body).status_code == 204
    left = admin.get(f"/savepoints/{point}").json()
    assert (left["state"], left["failure"]["error"]) == ("FAILED", "checkpoint-unwritable")
    assert admin.get(f"/operations/{deleting.json()['id']}").json()["state"] == "FAILED"

    again = admin.delete(f"/savepoints/{point}")
    assert again.status_code == 202
    agent.task_done(task_of(again))
    assert admin.get(f"/savepoints/{point}").status_code == 404
