"""Rows and event files for tests of the store and of the packages above it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ClonosError
from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import EventsBatch, HostRegister, LogBatch, RunSpec
from clonos_api.store import artifacts, epochs, hosts, jobs, logs, pushed, runs
from clonos_api.store.columns import JobFigures, Json, plain, read
from clonos_api.store.db.bulk import together
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import Base, HostRow, JobRow, RunRow

R = TypeVar("R", bound=Base)

START = 1_700_000_000.0


def unique(prefix: str = "n") -> str:
    return f"{prefix}{secrets.token_hex(5)}"


def spec(name: str, **labels: str) -> JobSpec:
    return JobSpec.model_validate({"metadata": {"name": name, "labels": labels}, "spec": {"main": "job.py"}})


async def store_artifact(session: AsyncSession, content: bytes = b"print()") -> str:
    sha = hashlib.sha256(content).hexdigest()
    await artifacts.put(session, sha=sha, kind="py", name="job.py", content=content, by="ada")
    return sha


async def job_row(session: AsyncSession, name: str | None = None, **labels: str) -> JobRow:
    sha = await store_artifact(session)
    return await jobs.create(session, spec(name or unique("job-"), **labels), sha, created_by="ada")


def receive_now(job: JobRow) -> None:
    """Rates hold for the moment when the newest epoch arrived, however slow the machine is."""
    set_figures(job, {"received_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()})


def set_figures(job: JobRow, figures: dict[str, Any]) -> None:
    """Set figures of a job, as JSON."""
    job.metrics = read(JobFigures, plain(job.metrics or {}) | figures)


def typed(row: type[R], **columns: Any) -> R:
    """A row that is not stored; JSON columns may be plain JSON."""
    kinds = {column.key: column.type.kind for column in row.__table__.columns if isinstance(column.type, Json)
             and columns.get(column.key) is not None}  # fmt: skip
    return row(**{name: read(kinds[name], plain(each)) if name in kinds else each for name, each in columns.items()})


def respec(job: JobRow, **inner: Any) -> None:
    """Set fields of a job's specification, as JSON."""
    whole = plain(job.spec)
    job.spec = JobSpec.model_validate({**whole, "spec": whole["spec"] | inner})


async def host_row(session: AsyncSession, name: str | None = None, *, lease_s: float = 60.0) -> HostRow:
    body = HostRegister(name=name or unique("host-"), instance=unique(), slots=4, versions={"clonos": "0.1"})
    row = await hosts.register(session, body, lease_s=lease_s)
    row.heartbeat_interval_s = lease_s  # no agent sends heartbeats
    await session.flush()
    return row


def run_spec(job: JobRow, desired: str = "RUNNING", run: str | None = None, **fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "run": run or new_id(),
            "job": job.id,
            "name": job.name,
            "version": job.version,
            "spec": job.spec,
            "artifact": job.artifact,
            "desired": desired,
            **fields,
        }
    )


async def run_row(session: AsyncSession, job: JobRow | None = None, host: HostRow | None = None) -> RunRow:
    job = job or await job_row(session)
    host = host or await host_row(session)
    return await runs.create(session, job, host, run_spec(job))


async def ingest(session: AsyncSession, run: str, offset: int, lines: Sequence[str], *, gap: bool = False) -> int:
    """Ingest lines of one run's event file; the file is known up to the returned byte."""
    locked = await pushed.lock(session, events=[run])
    batch = EventsBatch(run=run, offset=offset, lines=list(lines), gap=gap)
    async with together(session):
        ends = await epochs.ingest_all(session, locked, [batch])
        await pushed.write(session, locked)
    return _offset(ends[0])


async def push_log(session: AsyncSession, run: str, offset: int, text: str, *, gap: bool = False) -> int:
    """Store a piece of one run's log; the log is known up to the returned byte."""
    locked = await pushed.lock(session, logs=[run])
    async with together(session):
        ends = await logs.push_all(session, locked, [LogBatch(run=run, offset=offset, text=text, gap=gap)])
        await pushed.write(session, locked)
    return _offset(ends[0])


def _offset(result: int | ClonosError) -> int:
    if isinstance(result, ClonosError):
        raise result
    return result


class EventFile:
    """The event file of a driver."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.at = START
        self.generation = 0

    def write_event(self, event: str, after_s: float = 0.1, **fields: Any) -> None:
        self.at += after_s
        record = {"event": event, "job": "job", "generation": self.generation, **fields, "at": self.at}
        self.lines.append(json.dumps(record))

    def start(self, generation: int, lineage: int = 1, **fields: Any) -> None:
        """A process claims and runs the job."""
        self.write_event("state", state="CLAIMING")
        self.claim(generation, lineage, **fields)

    def claim(self, generation: int, lineage: int = 1, **fields: Any) -> None:
        self.generation = generation
        self.write_event("claimed", lineage=lineage, lanes=2, **fields)
        self.write_event("state", state="RECONCILING")
        self.write_event("state", state="RUNNING")

    def restart(self, generation: int, error: str = "epoch-failed") -> None:
        """A query fails, and the process claims again."""
        self.write_event("state", state="RESTARTING")
        self.write_event("restart", error=error, what="A worker was lost.", kept="k", hint="h", attempt=1, pause_s=0.1)
        self.write_event("state", state="CLAIMING")
        self.claim(generation)

    def epoch(self, number: int, *, query: str = "out", after_s: float = 0.1, **fields: Any) -> None:
        figures = {
            "records_in": 10,
            "records_out": 20,
            "skipped_lanes": 0,
            "recorded_determinants": 3,
            "replayed_determinants": 0,
            "replay": False,
            "duration_ms": 50,
        }
        self.write_event("epoch", after_s, query=query, epoch=number, **{**figures, **fields})

    def offset(self, line: int) -> int:
        """The first byte of a line."""
        return sum(len(text.encode()) + 1 for text in self.lines[:line])
