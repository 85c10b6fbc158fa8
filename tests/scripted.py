"""A host's agent as tests play it: it registers, takes work, and tells what its drivers would."""

from __future__ import annotations

import json
import secrets
from typing import Any

import httpx

from clonos_api.store import agents, jobs, runs, savepoints
from clonos_api.store.database import Database
from serving import Served
from stored import an_order

CODE = b"""import clonos


@clonos.job(name="shout")
def shout(ctx):
    lines = ctx.source("lines")
    ctx.sink(lines.select("key", "value"), topic="shouted")
"""


def upload(client: httpx.Client, code: bytes = CODE, name: str = "job.py") -> str:
    """Upload code; its id."""
    answer = client.post("/artifacts", files={"file": (name, code)})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def spec(name: str, **more: Any) -> dict[str, Any]:
    """A small specification."""
    return {"metadata": {"name": name, **more}, "spec": {"main": "job.py"}}


def create(client: httpx.Client, name: str, **more: Any) -> dict[str, Any]:
    """Upload code and create a job."""
    answer = client.post("/jobs", json={"spec": spec(name), "artifact": upload(client), "start": False, **more})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


class ScriptedAgent:
    """An agent without drivers."""

    def __init__(self, served: Served, name: str) -> None:
        with served.client() as admin:
            made = admin.post("/tokens", json={"name": f"agent-{name}", "role": "agent", "agent": name})
            assert made.status_code == 201, made.text
        self.name = name
        self.token = str(made.json()["id"])
        self.instance = secrets.token_hex(8)
        self.client = served.client(made.json()["token"])
        self.events: dict[str, int] = {}
        self.id = ""

    def __enter__(self) -> ScriptedAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def register(self, slots: int = 4) -> dict[str, Any]:
        """Say that it starts."""
        body = {"name": self.name, "instance": self.instance, "slots": slots, "versions": {"clonos": "0"}}
        told = self._post("/agents", body)
        self.id = told["id"]
        return told

    def heartbeat(self, *runs: dict[str, Any], beat_s: float = 1.0) -> dict[str, Any]:
        """Say that it lives."""
        body = {"instance": self.instance, "runs": list(runs), "beat_s": beat_s}
        return self._post(f"/agents/{self.id}/heartbeat", body)

    def work(self, after: int | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        """Ask for work."""
        given = {"wait_s": wait_s, **({} if after is None else {"after": after})}
        answer = self.client.get(f"/agents/{self.id}/work", params=given)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def tell(self, run: str, *events: dict[str, Any]) -> int:
        """Push events of a run's driver, after those that were pushed before."""
        lines = [json.dumps(event) for event in events]
        offset = self.events.get(run, 0)
        told = self._post(
            f"/agents/{self.id}/runs/{run}/events", {"instance": self.instance, "offset": offset, "lines": lines}
        )
        self.events[run] = told["offset"]
        return self.events[run]

    def log(self, run: str, text: str, offset: int) -> int:
        """Push a piece of a run's log."""
        body = {"instance": self.instance, "offset": offset, "text": text}
        return int(self._post(f"/agents/{self.id}/runs/{run}/log", body)["offset"])

    def task_done(self, task: str, **result: Any) -> None:
        """Say that a task went well."""
        answer = self.client.post(
            f"/agents/{self.id}/tasks/{task}", json={"instance": self.instance, "ok": True, "result": result}
        )
        assert answer.status_code == 204, answer.text

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code in (200, 201), answer.text
        told: dict[str, Any] = answer.json()
        return told


async def placed(served: Served, job: str, agent: str) -> str:
    """Place a job on an agent as the reconciler of another replica would; the id of the run."""
    database = Database(served.settings.database)
    try:
        async with database.transaction() as session:
            row, host = await jobs.get(session, job), await agents.get(session, agent)
            made = await runs.create(session, row, host, an_order(row))
            await jobs.change(session, row, run=made.id)
            return made.id
    finally:
        await database.close()


async def saved(served: Served, job: str, **epochs: int) -> str:
    """A savepoint that is whole."""
    database = Database(served.settings.database)
    try:
        async with database.transaction() as session:
            row = await jobs.get(session, job, deleted=True)
            made = await savepoints.create(session, row, name=secrets.token_hex(4), location="/save")
            return (await savepoints.complete(session, made, epochs=epochs, size_bytes=1)).id
    finally:
        await database.close()
