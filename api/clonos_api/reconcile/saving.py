"""Creates the host tasks that copy checkpoints and delete savepoints; fails savepoints that take too long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.locations import is_path
from clonos.resources.hosts import HostState
from clonos.resources.jobs import Failure
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.store import clusters, jobs, owners, savepoints, tasks
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import HostRow, JobRow, SavepointRow

# In these states a savepoint waits for an agent.
IN_PROGRESS: Final = frozenset({"IN_PROGRESS", "DELETING"})


async def begin_save(
    session: AsyncSession, job: JobRow, host: str, checkpoint: str, locations: CheckpointLocations
) -> SavepointRow:
    """Begins the savepoint that a stop takes after the driver has ended: creates the savepoint's row and host task."""
    row = await savepoints.create(session, job, name=f"stop-{new_id()}", location=locations.savepoints)
    return await copy(session, row, host, checkpoint)


async def copy(
    session: AsyncSession, savepoint: SavepointRow, host: str, checkpoint: str, operation: str | None = None
) -> SavepointRow:
    """Create the host task that copies `checkpoint` into the directory of a savepoint."""
    arguments: dict[str, Any] = {"savepoint": savepoint.id, "location": checkpoint, "target": savepoint.location}
    arguments |= await _owners(session, savepoint)
    arguments |= await _storage(session, savepoint, checkpoint)
    number = await owners.number_of_job(session, savepoint.job)
    await tasks.create(session, host, "savepoint", arguments, operation=operation, owner_number=number)
    return savepoint


async def remove(session: AsyncSession, savepoint: SavepointRow, host: str, operation: str | None) -> None:
    """Create the host task that deletes a savepoint's files on `host` (id); `operation` is the id of its operation."""
    arguments: dict[str, Any] = {"savepoint": savepoint.id, "location": savepoint.location}
    arguments |= await _owners(session, savepoint)
    arguments |= await _storage(session, savepoint)
    number = await owners.number_of_job(session, savepoint.job)
    await tasks.create(session, host, "delete-savepoint", arguments, operation=operation, owner_number=number)


async def _owners(session: AsyncSession, savepoint: SavepointRow) -> dict[str, Any]:
    job = await jobs.get(session, savepoint.job, deleted=True)
    return {"job": savepoint.job_name, "subjects": [job.created_by, *await owners.of_folders(session, job)]}


async def _storage(session: AsyncSession, savepoint: SavepointRow, *locations: str) -> dict[str, Any]:
    """Return what the host needs to reach HDFS or S3: the job's specification, its owner and its Spark cluster.

    Secrets are references, as in run specifications. Empty if all locations are folders of hosts.
    """
    if all(map(is_path, (savepoint.location, *locations))):
        return {}
    job = await jobs.get(session, savepoint.job, deleted=True)
    cluster = (await clusters.every(session)).get(job.spec.spec.cluster)
    described = clusters.description(cluster) if cluster is not None else None
    return {"storage": {"spec": job.spec, "owner": job.created_by, "cluster": described}}


async def give_up(
    session: AsyncSession, savepoint: SavepointRow, hosts: Iterable[str], failure: Failure
) -> SavepointRow:
    """Fails a savepoint that was not copied or deleted in time, and ends its tasks on `hosts` (ids).

    Later reports of agents about the savepoint are ignored.
    """
    for host in sorted(set(hosts)):
        for task in await tasks.open_of_host(session, host):
            if task.subject.savepoint == savepoint.id:
                await tasks.end(session, task)
    return await savepoints.fail(session, savepoint, failure) if savepoint.state in IN_PROGRESS else savepoint


def host_for(
    job: JobRow, run_host: str | None, hosts: Iterable[HostRow], location: str, locations: CheckpointLocations
) -> str | None:
    """Return the id of a host for a task on the job's checkpoint or savepoint at `location`; None: there is none.

    The host of the job's run (`run_host`) and the one that has the checkpoint come first.
    """
    alive = {host.id: host.name for host in hosts if host.state in (HostState.READY, HostState.DRAINING)}
    for candidate in (run_host, job.home):
        if candidate in alive:
            return candidate
    if locations.is_local(location) and (run_host or job.home):
        return None
    return min(alive, key=lambda host: alive[host], default=None)
