"""A scripted host agent: it registers, polls for work, and reports what a test passes to it."""

from __future__ import annotations

import json
import secrets
from typing import Any

import httpx

from clonos_api.store import hosts, jobs, runs, savepoints
from clonos_api.store.db.database import Database
from support.serving import Served
from support.stored import run_spec

CODE = b"""import clonos


@clonos.job(name="shout")
def shout(ctx):
    lines = ctx.source("lines")
    ctx.sink(lines.select("key", "value"), topic="shouted")
"""


def upload(client: httpx.Client, code: bytes = CODE, name: str = "job.py") -> str:
    """Upload code and return its id."""
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
            created = admin.post("/tokens", json={"name": f"agent-{name}", "role": "agent", "host": name})
            assert created.status_code == 201, created.text
        self.name = name
        self.token = str(created.json()["id"])
        self.instance = secrets.token_hex(8)
        self.client = served.client(created.json()["token"])
        self.events: dict[str, int] = {}
        self.id = ""

    def __enter__(self) -> ScriptedAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def register(self, slots: int = 4) -> dict[str, Any]:
        """Register the host."""
        body = {"name": self.name, "instance": self.instance, "slots": slots, "versions": {"clonos": "0"}}
        registered = self._post("/hosts", body)
        self.id = registered["id"]
        return registered

    def heartbeat(self, *runs: dict[str, Any], heartbeat_interval_s: float = 1.0) -> dict[str, Any]:
        """Send a heartbeat with the states of runs."""
        body = {"instance": self.instance, "runs": list(runs), "heartbeat_interval_s": heartbeat_interval_s}
        return self._post(f"/hosts/{self.id}/heartbeat", body)

    def work(self, after: int | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        """Poll for work."""
        query = {"wait_s": wait_s, **({} if after is None else {"after": after})}
        answer = self.client.get(f"/hosts/{self.id}/work", params=query)
        assert answer.status_code == 200, answer.text
        work: dict[str, Any] = answer.json()
        return work

    def push_events(self, run: str, *events: dict[str, Any]) -> int:
        """Push further events of a run's driver; returns the offset after them."""
        lines = [json.dumps(event) for event in events]
        offset = self.events.get(run, 0)
        self.events[run] = self.push("events", run, offset, lines=lines)
        return self.events[run]

    def push_log(self, run: str, text: str, offset: int) -> int:
        """Push log text of a run; returns the offset after it."""
        return self.push("logs", run, offset, text=text)

    def push(self, kind: str, run: str, offset: int, **batch: Any) -> int:
        """Push one batch of events or log text; returns the offset that the control plane expects next."""
        body = {"instance": self.instance, kind: [{"run": run, "offset": offset, **batch}]}
        (result,) = self._post(f"/hosts/{self.id}/push", body)[kind]
        assert result.get("status", 200) == 200, result
        return int(result["offset"])

    def task_done(self, task: str, **result: Any) -> None:
        """Report that a task succeeded."""
        body = {"instance": self.instance, "ok": True, "result": result}
        answer = self.client.post(f"/hosts/{self.id}/tasks/{task}", json=body)
        assert answer.status_code == 204, answer.text

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code in (200, 201), answer.text
        body = answer.json()
        assert isinstance(body, dict)
        return body


async def placed(served: Served, job: str, agent: str) -> str:
    """Place a job on an agent as the reconciler of another replica does; returns the id of the run."""
    database = Database(served.settings.database)
    try:
        async with database.transaction() as session:
            row, host = await jobs.get(session, job), await hosts.get(session, agent)
            run = await runs.create(session, row, host, run_spec(row, start_from=row.start_from))
            await jobs.change(session, row, run=run.id)
            return run.id
    finally:
        await database.close()


async def saved(served: Served, job: str, **epochs: int) -> str:
    """Create a completed savepoint; returns its id."""
    database = Database(served.settings.database)
    try:
        async with database.transaction() as session:
            row = await jobs.get(session, job, deleted=True)
            savepoint = await savepoints.create(session, row, name=secrets.token_hex(4), location="/save")
            return (await savepoints.complete(session, savepoint, epochs=epochs, size_bytes=1)).id
    finally:
        await database.close()
