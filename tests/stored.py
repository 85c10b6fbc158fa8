"""Rows for tests of the store and of what stands on it."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.hosts import AgentRegister, RunOrder
from clonos.spec import JobSpec
from clonos_api.store import agents, artifacts, jobs, runs
from clonos_api.store.rows import new_id
from clonos_api.store.tables import AgentRow, JobRow, RunRow

START = 1_700_000_000.0


def unique(prefix: str = "n") -> str:
    return f"{prefix}{secrets.token_hex(5)}"


def spec(name: str, **labels: str) -> JobSpec:
    return JobSpec.model_validate({"metadata": {"name": name, "labels": labels}, "spec": {"main": "job.py"}})


async def an_artifact(session: AsyncSession, content: bytes = b"print()") -> str:
    sha = hashlib.sha256(content).hexdigest()
    await artifacts.put(session, sha=sha, kind="py", name="job.py", content=content, by="ada")
    return sha


async def a_job(session: AsyncSession, name: str | None = None, **labels: str) -> JobRow:
    sha = await an_artifact(session)
    return await jobs.create(session, spec(name or unique("job-"), **labels), sha, owner="ada")


async def an_agent(session: AsyncSession, name: str | None = None, *, lease_s: float = 60.0) -> AgentRow:
    body = AgentRegister(name=name or unique("host-"), instance=unique(), slots=4, versions={"clonos": "0.1"})
    return await agents.register(session, body, lease_s=lease_s)


def an_order(job: JobRow, goal: str = "RUN", run: str | None = None, **fields: Any) -> RunOrder:
    return RunOrder.model_validate(
        {
            "run": run or new_id(),
            "job": job.id,
            "name": job.name,
            "version": job.version,
            "spec": job.spec,
            "artifact": job.artifact,
            "goal": goal,
            **fields,
        }
    )


async def a_run(session: AsyncSession, job: JobRow | None = None, agent: AgentRow | None = None) -> RunRow:
    job = job or await a_job(session)
    agent = agent or await an_agent(session)
    return await runs.create(session, job, agent, an_order(job))


class EventFile:
    """An event file as drivers write it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.at = START
        self.generation = 0

    def tell(self, event: str, after_s: float = 0.1, **fields: Any) -> None:
        self.at += after_s
        record = {"event": event, "job": "job", "generation": self.generation, **fields, "at": self.at}
        self.lines.append(json.dumps(record))

    def start(self, generation: int, lineage: int = 1, **fields: Any) -> None:
        """A process claims and runs."""
        self.tell("state", state="CLAIMING")
        self.claim(generation, lineage, **fields)

    def claim(self, generation: int, lineage: int = 1, **fields: Any) -> None:
        self.generation = generation
        self.tell("claimed", lineage=lineage, lanes=2, **fields)
        self.tell("state", state="RECONCILING")
        self.tell("state", state="RUNNING")

    def restart(self, generation: int, error: str = "epoch-failed") -> None:
        """A query fails; the process claims again."""
        self.tell("state", state="RESTARTING")
        self.tell("restart", error=error, what="A worker was lost.", kept="k", hint="h", attempt=1, pause_s=0.1)
        self.tell("state", state="CLAIMING")
        self.claim(generation)

    def epoch(self, number: int, *, query: str = "out", after_s: float = 0.1, **fields: Any) -> None:
        figures = {"read": 10, "records": 20, "skipped_lanes": 0, "recorded": 3, "replayed": 0, "replay": False}
        self.tell("epoch", after_s, query=query, epoch=number, duration_ms=50, **{**figures, **fields})

    def offset(self, line: int) -> int:
        """The byte at which a line begins."""
        return sum(len(one.encode()) + 1 for one in self.lines[:line])
