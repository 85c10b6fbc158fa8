"""Jobs, and what they leave behind: checkpoints, savepoints, recoveries, logs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from clonos.client.sse import follow
from clonos.client.transport import Transport, decode
from clonos.resources.base import Page
from clonos.resources.checkpoints import Checkpoint, Checkpoints, Savepoint, SavepointCreate
from clonos.resources.hosts import Standby
from clonos.resources.jobs import (
    CausalLog,
    Generation,
    Job,
    JobCreate,
    JobException,
    JobPatch,
    JobState,
    JobVersion,
    LogLines,
    Metrics,
    MoveRequest,
    Offsets,
    Recovery,
    Run,
    StartFrom,
    StopRequest,
    UpgradeRequest,
)
from clonos.resources.service import JobValidation, Operation
from clonos.standby.states import StandbyState

ENDED: Final = frozenset({JobState.STOPPED, JobState.CANCELED, JobState.FAILED, JobState.FINISHED})


class Jobs:
    """``/jobs``; a job is named by its id or its name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, job: JobCreate) -> Job:
        """A new job."""
        return decode(Job, self._transport.post("/jobs", job))

    def validate(self, job: JobCreate) -> JobValidation:
        """Whether a specification and its code are usable, and what the linter finds; nothing is created."""
        return decode(JobValidation, self._transport.post("/jobs/validate", job))

    def list(
        self,
        *,
        states: list[JobState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Page[Job]:
        """All jobs, or those that fit; `name`: a part of it is enough."""
        wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
        given = {"state": [str(state) for state in states or ()] or None, "label": wanted or None, "name": name}
        return self._transport.pages(Job, "/jobs", given, limit=limit)

    def get(self, job: str) -> Job:
        """One job."""
        return self._transport.get(Job, f"/jobs/{job}")

    def patch(self, job: str, change: JobPatch, *, version: int) -> Job:
        """Another specification or other code, from the next start on; refused unless `version` is the newest."""
        headers = {"If-Match": f'"{version}"'}
        answer = self._transport.send("PATCH", f"/jobs/{job}", body=change, headers=headers, repeat="unless sent")
        return decode(Job, answer.content)

    def delete(self, job: str) -> Operation:
        """Delete a job; one that runs is ended first."""
        return decode(Operation, self._transport.send("DELETE", f"/jobs/{job}").content)

    def start(self, job: str, start_from: StartFrom | None = None) -> Operation:
        """Start it, from where it ended or from an older point."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/start", start_from))

    def stop(self, job: str, request: StopRequest | None = None) -> Operation:
        """Stop it so that it can be started again."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/stop", request or StopRequest()))

    def restart(self, job: str, request: StopRequest | None = None) -> Operation:
        """Start it anew although it runs; `request` says how it is stopped before."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/restart", request))

    def move(self, job: str, request: MoveRequest | None = None) -> Operation:
        """Move it to another host, through a standby."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/move", request))

    def upgrade(self, job: str, request: UpgradeRequest | None = None) -> Operation:
        """Bring it to its newest version, through a standby."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/upgrade", request))

    def cancel(self, job: str) -> Operation:
        """End it for good."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/cancel"))

    def versions(self, job: str, *, limit: int | None = None) -> Page[JobVersion]:
        """The specifications that it has and had."""
        return self._transport.pages(JobVersion, f"/jobs/{job}/versions", limit=limit)

    def runs(self, job: str, *, limit: int | None = None) -> Page[Run]:
        """Its placements."""
        return self._transport.pages(Run, f"/jobs/{job}/runs", limit=limit)

    def run(self, job: str, run: str) -> Run:
        """One placement; `Job.run` names the one whose driver works for the job."""
        return self._transport.get(Run, f"/jobs/{job}/runs/{run}")

    def generations(self, job: str, *, limit: int | None = None) -> Page[Generation]:
        """Its claims of the causal log."""
        return self._transport.pages(Generation, f"/jobs/{job}/generations", limit=limit)

    def recoveries(self, job: str, *, limit: int | None = None) -> Page[Recovery]:
        """What it recovered from."""
        return self._transport.pages(Recovery, f"/jobs/{job}/recoveries", limit=limit)

    def recovery(self, job: str, recovery: str) -> Recovery:
        """One recovery."""
        return self._transport.get(Recovery, f"/jobs/{job}/recoveries/{recovery}")

    def exceptions(self, job: str, *, limit: int | None = None) -> Page[JobException]:
        """Errors that its drivers told."""
        return self._transport.pages(JobException, f"/jobs/{job}/exceptions", limit=limit)

    def metrics(self, job: str) -> Metrics:
        """Sums and rates."""
        return self._transport.get(Metrics, f"/jobs/{job}/metrics")

    def offsets(self, job: str) -> Page[Offsets]:
        """Where its sources are, and how far behind."""
        return self._transport.pages(Offsets, f"/jobs/{job}/offsets")

    def causal_log(self, job: str) -> CausalLog:
        """Its causal log."""
        return self._transport.get(CausalLog, f"/jobs/{job}/causal-log")

    def standbys(
        self, job: str, *, states: Collection[StandbyState] | None = None, limit: int | None = None
    ) -> Page[Standby]:
        """Its warm drivers, also those that are over, or those in one of these states."""
        given = {"state": sorted(map(str, states or ())) or None}
        return self._transport.pages(Standby, f"/jobs/{job}/standbys", given, limit=limit)

    def logs(self, job: str, *, tail: int | None = None, after: str | None = None) -> LogLines:
        """The end of its log, or what came after."""
        return self._transport.get(LogLines, f"/jobs/{job}/logs", {"tail": tail, "after": after})

    def follow_logs(
        self, job: str, *, tail: int | None = None, after: str | None = None, stop: threading.Event | None = None
    ) -> Iterator[LogLines]:
        """Its log as it is written, until the job has ended and everything is told; each line once."""
        given = {"tail": tail, "after": after, "follow": "true"}
        held: list[str] = []

        def go_on() -> bool:
            return self.get(job).state not in ENDED

        # Of lines that come together only the last says where it stands: a break before it brings them all again.
        for event in follow(self._transport, f"/jobs/{job}/logs", given, go_on=go_on, stop=stop, on_break=held.clear):
            held.append(event.data)
            if event.placed:
                yield LogLines(lines=list(held), next=event.id or "")
                held.clear()


class JobCheckpoints:
    """``/jobs/{id}/checkpoints``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, job: str, *, limit: int | None = None) -> Checkpoints:
        """Counts, summary, the newest of each kind, and the newest `limit` of all."""
        return self._transport.get(Checkpoints, f"/jobs/{job}/checkpoints", {"limit": limit})

    def one(self, job: str, epoch: int, *, query: str | None = None) -> Checkpoint:
        """One epoch."""
        return self._transport.get(Checkpoint, f"/jobs/{job}/checkpoints/{epoch}", {"query": query})


class Savepoints:
    """``/savepoints``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, job: str, savepoint: SavepointCreate | None = None) -> Operation:
        """Take one."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/savepoints", savepoint or SavepointCreate()))

    def list(self, *, job: str | None = None, limit: int | None = None) -> Page[Savepoint]:
        """All, or those of one job."""
        path = f"/jobs/{job}/savepoints" if job is not None else "/savepoints"
        return self._transport.pages(Savepoint, path, limit=limit)

    def get(self, savepoint: str) -> Savepoint:
        """One."""
        return self._transport.get(Savepoint, f"/savepoints/{savepoint}")

    def delete(self, savepoint: str) -> Operation:
        """Delete it with its files."""
        return decode(Operation, self._transport.send("DELETE", f"/savepoints/{savepoint}").content)
