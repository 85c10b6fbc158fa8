"""Jobs and their checkpoints, savepoints, recoveries and logs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from clonos.client.responses import decode
from clonos.client.sse import follow
from clonos.client.transport import Routes
from clonos.resources.base import Page
from clonos.resources.checkpoints import Checkpoints, EpochCheckpoint, Savepoint, SavepointCreate
from clonos.resources.hosts import Standby
from clonos.resources.incidents import Incident, ListedRecovery
from clonos.resources.job_graph import JobGraph
from clonos.resources.jobs import (
    CausalLog,
    Generation,
    Job,
    JobCreate,
    JobException,
    JobPatch,
    JobState,
    JobSummary,
    JobVersion,
    LogLines,
    Metrics,
    MoveRequest,
    Offsets,
    Recovery,
    ResolveRequest,
    RollbackRequest,
    Run,
    StartFrom,
    StartRequest,
    StopRequest,
    UpgradeRequest,
    VersionDiff,
)
from clonos.resources.series import Series, SeriesRange
from clonos.resources.service import JobValidation, Operation
from clonos.resources.verification import VerifyRequest
from clonos.standby.states import StandbyState
from clonos.telemetry.log_entries import LogEntry, LogFilter

ENDED: Final = frozenset({JobState.STOPPED, JobState.CANCELED, JobState.FAILED, JobState.FINISHED})
_LOG_TAIL: Final = 200  # of the REST API, for requests without `tail`


class Jobs(Routes):
    """Calls of ``/jobs``. Every `job` argument takes the id or the name of a job.

    An unknown job raises `NotFound`. A call that returns an `Operation` only starts the work: pass it to
    `client.operations.wait`. `limit` is the maximum number of entries; None: all.
    """

    def create(self, job: JobCreate) -> Job:
        """Create a job from its specification and the id of its uploaded code; it starts unless the request says
        otherwise.

        Raises:
            SpecError: The specification or the code is invalid.
            ClonosError: Another error of the control plane, such as a name that is taken.

        Example:
            >>> client.jobs.create(JobCreate(spec=spec, artifact=artifact.id))  # doctest: +SKIP
        """
        return decode(Job, self._transport.post("/jobs", job))

    def validate(self, job: JobCreate) -> JobValidation:
        """Check a specification and its code as `create` does, and run the linter; creates nothing."""
        return decode(JobValidation, self._transport.post("/jobs/validate", job))

    def list(
        self,
        *,
        states: list[JobState] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Page[JobSummary]:
        """List the jobs that are not deleted, newest first; without their specifications, which `get` returns.

        Only jobs in one of `states`, with all of `labels`, and with the text `name` in their names.
        """
        selectors = [f"{key}={value}" for key, value in (labels or {}).items()]
        query = {"state": [str(state) for state in states or ()] or None, "label": selectors or None, "name": name}
        return self._transport.pages(JobSummary, "/jobs", query, limit=limit)

    def get(self, job: str) -> Job:
        """Get a job: its specification, desired state and state."""
        return self._transport.get(Job, f"/jobs/{job}")

    def patch(self, job: str, change: JobPatch, *, version: int) -> Job:
        """Change the specification or the code; the next start uses it.

        Raises:
            VersionStale: `version` is not the newest `Job.version`.
        """
        headers = {"If-Match": f'"{version}"'}
        response = self._transport.send("PATCH", f"/jobs/{job}", body=change, headers=headers, repeat="unless sent")
        return decode(Job, response.content)

    def delete(self, job: str) -> Operation:
        """Delete a job; a running job is cancelled first. Its savepoints stay."""
        return decode(Operation, self._transport.send("DELETE", f"/jobs/{job}").content)

    def start(self, job: str, start_from: StartFrom | None = None, *, adopt: bool = False) -> Operation:
        """Start a job, at a savepoint or an older epoch, or (default) where it stopped.

        With `adopt`, take it over from another platform that has claimed its causal log.

        Raises:
            StateConflict: The job was cancelled, or it runs and `start_from` is set.
            WouldPublishAgain: Epochs after `start_from` are published, and its `publish_again` is False.
        """
        point = start_from.model_dump(exclude_unset=True) if start_from is not None else {}
        request = StartRequest(**point, adopt=True) if adopt else start_from  # older control planes know no adoption
        return decode(Operation, self._transport.post(f"/jobs/{job}/start", request))

    def stop(self, job: str, request: StopRequest | None = None) -> Operation:
        """Stop a job so that it can be started again; default gracefully."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/stop", request or StopRequest()))

    def restart(self, job: str, request: StopRequest | None = None) -> Operation:
        """Stop a running job, as `request` specifies (default: gracefully), and start it with its newest version."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/restart", request))

    def move(self, job: str, request: MoveRequest | None = None) -> Operation:
        """Move a running job to another host: a standby warms up there, then takes over.

        Raises:
            StateConflict: The job does not run, or the host accepts no driver.
        """
        return decode(Operation, self._transport.post(f"/jobs/{job}/move", request))

    def upgrade(self, job: str, request: UpgradeRequest | None = None, *, version: int | None = None) -> Operation:
        """Upgrade a running job to its newest version: a standby with that version warms up, then takes over.

        A specification or code in the request becomes the newest version, unless the upgrade is refused. It needs
        `version`, the `Job.version` that it is based on.

        Raises:
            StateConflict: The job does not run.
            VersionStale: `version` is not the newest version.
        """
        headers = {"If-Match": f'"{version}"'} if version is not None else {}
        return decode(Operation, self._transport.post(f"/jobs/{job}/upgrade", request, headers=headers))

    def resolve(self, job: str, request: ResolveRequest) -> Operation:
        """Decide about an epoch in doubt that stopped a job, and start the job.

        Raises:
            StateConflict: The job has a driver, or it was cancelled.

        Example:
            >>> client.jobs.resolve("orders", ResolveRequest(query="output", epoch=12, decision="keep"))
        """
        return decode(Operation, self._transport.post(f"/jobs/{job}/resolve", request))

    def roll_back(self, job: str, request: RollbackRequest | None = None) -> Operation:
        """Return to another version of a job: of a running job through a standby, of one that failed by a start.

        Raises:
            NotFound: There is no such version.
            StateConflict: The job was cancelled, or no other version has finished an epoch.
        """
        return decode(Operation, self._transport.post(f"/jobs/{job}/rollback", request))

    def verify(self, job: str, request: VerifyRequest | None = None) -> Operation:
        """Compare what readers see of a job's output with the markers in its causal log, on a host.

        Returns:
            The operation. Its result has the fields of `clonos.resources.verification.Verification`.

        Raises:
            StateConflict: No host is READY, or a verification of the job is in progress.
        """
        return decode(Operation, self._transport.post(f"/jobs/{job}/verify", request))

    def cancel(self, job: str) -> Operation:
        """Cancel a job permanently: kill its driver. The job stays, with its history, until it is deleted."""
        return decode(Operation, self._transport.post(f"/jobs/{job}/cancel"))

    def versions(self, job: str, *, limit: int | None = None) -> Page[JobVersion]:
        """List the versions of a job's specification and code, newest first."""
        return self._transport.pages(JobVersion, f"/jobs/{job}/versions", limit=limit)

    def compare_versions(self, job: str, before: int, after: int | None = None) -> VersionDiff:
        """Compare the specification and the code of two versions; `after` None: the one that the next start runs."""
        return self._transport.get(VersionDiff, f"/jobs/{job}/versions/diff", {"before": before, "after": after})

    def runs(self, job: str, *, limit: int | None = None) -> Page[Run]:
        """List the runs of a job (its placements on hosts), newest first."""
        return self._transport.pages(Run, f"/jobs/{job}/runs", limit=limit)

    def run(self, job: str, run: str) -> Run:
        """Get a run by its id; `Job.run` is the id of the job's current run."""
        return self._transport.get(Run, f"/jobs/{job}/runs/{run}")

    def generations(self, job: str, *, limit: int | None = None) -> Page[Generation]:
        """List the generations of a job (claims of its causal log), newest first."""
        return self._transport.pages(Generation, f"/jobs/{job}/generations", limit=limit)

    def recoveries(self, job: str, *, limit: int | None = None) -> Page[Recovery]:
        """List the recoveries of a job, newest first."""
        return self._transport.pages(Recovery, f"/jobs/{job}/recoveries", limit=limit)

    def all_recoveries(self, *, limit: int | None = None) -> Page[ListedRecovery]:
        """List the recoveries of all jobs, newest first."""
        return self._transport.pages(ListedRecovery, "/recoveries", limit=limit)

    def recovery(self, job: str, recovery: str) -> Incident:
        """Get a recovery by its id, with its explanation."""
        return self._transport.get(Incident, f"/jobs/{job}/recoveries/{recovery}")

    def exceptions(self, job: str, *, limit: int | None = None) -> Page[JobException]:
        """List the errors that the job's drivers reported, newest first."""
        return self._transport.pages(JobException, f"/jobs/{job}/exceptions", limit=limit)

    def metrics(self, job: str) -> Metrics:
        """Get the metrics of each query of a job: totals, rates per second and latencies in milliseconds."""
        return self._transport.get(Metrics, f"/jobs/{job}/metrics")

    def series(self, job: str, span: SeriesRange = "1h") -> Series:
        """Return a job's figures over time: records per second, durations of epochs and lag, in intervals."""
        return self._transport.get(Series, f"/jobs/{job}/series", {"range": span})

    def graph(self, job: str) -> JobGraph:
        """Get the topics, queries and operators of a job, with rates and lag between them."""
        return self._transport.get(JobGraph, f"/jobs/{job}/graph")

    def offsets(self, job: str) -> Page[Offsets]:
        """List the source offsets of each query of a job, and its lag in records."""
        return self._transport.pages(Offsets, f"/jobs/{job}/offsets")

    def causal_log(self, job: str) -> CausalLog:
        """Get the topic of a job's causal log, the number and bytes of its determinants, and its truncations."""
        return self._transport.get(CausalLog, f"/jobs/{job}/causal-log")

    def standbys(
        self, job: str, *, states: Collection[StandbyState] | None = None, limit: int | None = None
    ) -> Page[Standby]:
        """List the standbys of a job, including ended ones, or those in one of `states`."""
        query = {"state": sorted(map(str, states or ())) or None}
        return self._transport.pages(Standby, f"/jobs/{job}/standbys", query, limit=limit)

    def logs(
        self,
        job: str,
        *,
        tail: int | None = None,
        after: str | None = None,
        only: LogFilter | None = None,
        parsed: bool = False,
    ) -> LogLines:
        """Get lines or entries of the drivers' log. The search for matching ones in a long log takes several requests.

        Args:
            job: The job.
            tail: Number of newest lines or entries, without `after`; default 200.
            after: Only lines after this position: `LogLines.next` of an earlier response.
            only: Only entries that this filter matches: an entry is a line with the lines that continue it.
            parsed: Get `LogLines.entries` instead of `LogLines.lines`.
        """
        query = _log_query(only, tail=tail, after=after, parsed="true" if parsed else None)
        path = f"/jobs/{job}/logs"
        part = self._transport.get(LogLines, path, query)
        while part.more and not part.count:
            part = self._transport.get(LogLines, path, {**query, "after": part.next})
        count = _LOG_TAIL if tail is None else tail
        while part.older is not None and part.count < count:
            older = {**query, "tail": count - part.count, "before": part.older}
            part = part.with_older(self._transport.get(LogLines, path, older))
        return part

    def follow_logs(
        self,
        job: str,
        *,
        tail: int | None = None,
        after: str | None = None,
        only: LogFilter | None = None,
        parsed: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[LogLines]:
        """Follow the drivers' log until the job has ended; each line once, also after lost connections. Arguments as
        `logs`.

        `stop` ends the iteration, if another thread sets it. Each batch has the position after it.

        Example:
            >>> for batch in client.jobs.follow_logs("wordcount", only=LogFilter("warning")):  # doctest: +SKIP
            ...     print(batch.lines)
        """
        query = _log_query(only, tail=tail, after=after, parsed="true" if parsed else None, follow="true")
        texts: list[str] = []
        position = ""

        def is_complete() -> bool:
            return self.get(job).state in ENDED

        # Only the last event of a batch has an id of its own; a reconnection before it repeats the whole batch.
        for event in follow(
            self._transport, f"/jobs/{job}/logs", query, is_complete=is_complete, stop=stop, on_disconnect=texts.clear
        ):
            texts.append(event.data)
            if event.id not in ("", position):
                position = event.id
                entries = [decode(LogEntry, text) for text in texts] if parsed else []
                yield LogLines(lines=[] if parsed else list(texts), next=position, entries=entries)
                texts.clear()


def _log_query(only: LogFilter | None, **query: Any) -> dict[str, Any]:
    only = only or LogFilter()
    since = only.since.isoformat() if only.since else None
    return {"level": only.level, "search": only.search or None, "since": since, **query}


class JobCheckpoints(Routes):
    """Calls of ``/jobs/{id}/checkpoints``: the finished epochs of a job."""

    def get(self, job: str, *, limit: int | None = None) -> Checkpoints:
        """Get counts and a summary of a job's checkpoints, and the newest `limit` checkpoints (None: 50).

        `Checkpoints.latest` has the newest finished epoch, the newest replayed epoch and the newest savepoint.
        """
        return self._transport.get(Checkpoints, f"/jobs/{job}/checkpoints", {"limit": limit})

    def of_epoch(self, job: str, epoch: int, *, query: str | None = None) -> EpochCheckpoint:
        """Get the checkpoint of one epoch; `query` names the query if the job has several."""
        return self._transport.get(EpochCheckpoint, f"/jobs/{job}/checkpoints/{epoch}", {"query": query})


class Savepoints(Routes):
    """Calls of ``/savepoints``. `savepoint` is an id; an unknown one raises `NotFound`."""

    def create(self, job: str, savepoint: SavepointCreate | None = None) -> Operation:
        """Take a savepoint of a job, which may run: a copy of its checkpoint, which outlives the job.

        Returns:
            The operation; its result has the id of the savepoint.
        """
        return decode(Operation, self._transport.post(f"/jobs/{job}/savepoints", savepoint or SavepointCreate()))

    def list(self, *, job: str | None = None, limit: int | None = None) -> Page[Savepoint]:
        """List the savepoints of all jobs, or of one `job` (id or name), newest first; `limit` None: all."""
        path = f"/jobs/{job}/savepoints" if job is not None else "/savepoints"
        return self._transport.pages(Savepoint, path, limit=limit)

    def get(self, savepoint: str) -> Savepoint:
        """Get a savepoint by its id."""
        return self._transport.get(Savepoint, f"/savepoints/{savepoint}")

    def delete(self, savepoint: str) -> Operation:
        """Delete a savepoint and its files."""
        return decode(Operation, self._transport.send("DELETE", f"/savepoints/{savepoint}").content)
