"""Builds the run specifications that agents receive, from a job's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import NextRun, RunRestartPolicy, RunSpec
from clonos.resources.jobs import ResolveRequest
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.store.clusters import description
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import ClusterRow, JobRow, JobVersionRow, RunRow

Clusters = Mapping[str, ClusterRow]
"""All Spark clusters, by name."""


def driver_spec(
    job: JobRow,
    previous: RunRow | None,
    locations: CheckpointLocations,
    clusters: Clusters,
    restore: str | None,
    other: JobVersionRow | None = None,
    *,
    platform: str = "",
) -> RunSpec:
    """Build the specification of a new run that drives the job.

    Args:
        job: The job.
        previous: The job's newest run since its last start; the new run keeps its version. None: the newest version.
        locations: Locations of checkpoints.
        clusters: The Spark clusters; the new run gets the newest description of the one that its version names.
        restore: Checkpoint or savepoint to restore first; None: the job continues with its own checkpoint.
        other: The version of the new run, if `previous` names one that follows it.
        platform: Identity of the control plane.
    """
    before = previous.spec if previous is not None else None
    version, artifact = (before or job).version, (before or job).artifact
    following: RunSpec | NextRun | None = before
    if other is not None:
        spec = _with_checkpoint(other.spec, job, locations)
        version, artifact = other.version, other.artifact
        following = before.next if before is not None else None
    elif before is None:
        spec = _with_checkpoint(job.spec, job, locations)
    else:
        spec = before.spec
    policy = spec.spec.restart_policy
    run = new_id()
    return RunSpec(
        run=run,
        job=job.id,
        name=job.name,
        platform=platform,
        adopt=(before or job).adopt,
        owner=job.created_by,
        owner_number=job.owner_number,
        version=version,
        spec=spec,
        artifact=artifact,
        desired="RUNNING",
        restart=RunRestartPolicy(
            attempts=policy.attempts,
            initial_backoff_ms=policy.initial_backoff_ms,
            max_backoff_ms=policy.max_backoff_ms,
            earlier_failures=previous.consecutive_failures if previous and other is None else 0,
        ),
        start_from=job.start_from,
        restore_location=restore,
        # A run that is replaced before its claim hands its request key on: the log accepts each key once.
        request_key="" if job.start_from is None else (before.request_key if before is not None else "") or run,
        earlier_attempts=previous.attempts if previous else 0,
        accept_new_code=before.accept_new_code if before is not None else _accepts_new_code(job),
        resolutions=before.resolutions if before is not None else _of_epochs(job),
        finish_for=following.finish_for if following is not None else 0,
        finished=following.finished if following is not None else [],
        accept_unpublished=following is not None and following.accept_unpublished,
        cluster=description(clusters[spec.spec.cluster]) if spec.spec.cluster in clusters else None,
    )


def _accepts_new_code(job: JobRow) -> bool:
    return _reverts(job) or len(_of_epochs(job)) < len(job.resolutions or [])


def _of_epochs(job: JobRow) -> list[ResolveRequest]:
    """Return the decisions about single epochs of the next start. The other ones accept the new code for all epochs."""
    return [decision for decision in job.resolutions or [] if decision.epoch is not None]


def standby_spec(
    job: JobRow, driver: RunRow | None, locations: CheckpointLocations, clusters: Clusters, platform: str = ""
) -> RunSpec:
    """Build the specification of a new standby of the job, with the version of the run `driver`; None: the newest
    version.
    """
    spec = driver_spec(job, driver, locations, clusters, None, platform=platform)
    restart = spec.restart.model_copy(update={"earlier_failures": 0})
    waiting: dict[str, Any] = {"finish_for": 0, "finished": [], "accept_unpublished": False, "adopt": False}
    waiting |= {"standby": True, "start_from": None, "request_key": "", "earlier_attempts": 0, "accept_new_code": False}
    # Resolutions: a standby takes over from a driver, which has recorded them in the log.
    return spec.model_copy(update={**waiting, "resolutions": [], "restart": restart})


def _with_checkpoint(spec: JobSpec, job: JobRow, locations: CheckpointLocations) -> JobSpec:
    if locations.shared and not spec.spec.checkpoint:
        checkpoint = locations.of_job(job.name)
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"checkpoint": checkpoint})})
    return spec


def _reverts(job: JobRow) -> bool:
    """Whether the newest version failed, and may have left an epoch in doubt."""
    return job.moving is not None and job.moving.failure is not None
