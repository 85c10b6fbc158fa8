"""Ownership of the folders of jobs: a job must not use a checkpoint or savepoint of another user.

This compares identities of locations (`clonos.jobs.locations`). A driver or task also reads the owner file of its
directory (`clonos.driver.checkpoint_owner`), which no link, mount or second name of a machine gets around.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Forbidden
from clonos.jobs.locations import Location, locate
from clonos.resources.service import Role
from clonos_api.auth import Principal
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.settings import ApiSettings
from clonos_api.store.tables import JobNameRow, JobRow, JobVersionRow, SavepointRow

_HINT: Final = "omit the location, or name a directory of your own; an admin may name any."
_FROM_SAVEPOINT: Final = "start from the savepoint: clonos job start JOB --savepoint ID."
_BEFORE: Final = ".before-"  # a checkpoint that a restore replaced (`clonos.agent.restoring`)


async def check_checkpoint(
    session: AsyncSession, caller: Principal, job: str, location: str | None, settings: ApiSettings
) -> None:
    """Refuse a checkpoint that the caller may not use; an admin may use any.

    Args:
        session: A session of the database.
        caller: The user.
        job: Name of the job.
        location: Path or URI of the directory; None: the service's own, which everybody may use.
        settings: Settings of the replica.

    Raises:
        Forbidden: The directory overlaps with another user's checkpoint, with a savepoint, or with a folder that the
            service gives to jobs itself, or is outside of the allowed roots.
    """
    requested = await _check(session, caller, location, settings)
    if requested is None:
        return
    locations = CheckpointLocations.of(settings)
    own = locate(locations.of_job(job))
    in_folder_of_jobs = requested.overlaps(_parent(_parent(own))) and not requested.is_below(_parent(own))
    if in_folder_of_jobs or requested.overlaps(locate(locations.savepoints)):
        raise Forbidden(f"The directory {location} is one of the service's own.", hint=_HINT)
    for saved in await session.scalars(select(SavepointRow.location)):
        if requested.overlaps(locate(saved)):
            raise Forbidden(f"The directory {location} overlaps with a savepoint.", hint=_FROM_SAVEPOINT)


async def check_savepoints(
    session: AsyncSession, caller: Principal, location: str | None, settings: ApiSettings
) -> None:
    """Refuse a directory for savepoints that the caller may not use; an admin may use any.

    Raises:
        Forbidden: The directory overlaps with another user's checkpoint, is inside of another user's savepoint, or is
            outside of the allowed roots.
    """
    requested = await _check(session, caller, location, settings)
    if requested is None:
        return
    query = select(SavepointRow.location, JobRow.created_by).join(JobRow, JobRow.id == SavepointRow.job)
    for saved, owner in await session.execute(query):
        other = locate(saved)
        if owner != caller.subject and requested.overlaps(other) and len(requested.path) >= len(other.path):
            raise Forbidden(f"The directory {location} is inside of another user's savepoint.", hint=_HINT)


async def _check(
    session: AsyncSession, caller: Principal, location: str | None, settings: ApiSettings
) -> Location | None:
    """Return the identity of a location without another user's checkpoint; None: there is nothing to check."""
    if location is None or caller.may(Role.ADMIN):
        return None
    requested = locate(location)
    roots = settings.checkpoint_roots
    if roots and not any(requested.is_below(locate(root)) for root in roots):
        raise Forbidden(
            f"The directory {location} is outside of the directories that jobs may use.",
            hint=f"name a directory below {' or '.join(roots)}, or omit the location.",
        )
    path = "/".join(part.partition(_BEFORE)[0] for part in requested.path.split("/"))
    requested = requested._replace(path=path)
    for other, owner in await _checkpoints(session, settings):
        if owner != caller.subject and requested.overlaps(other):
            raise Forbidden(f"The directory {location} belongs to another user's checkpoint.", hint=_HINT)
    return requested


async def _checkpoints(session: AsyncSession, settings: ApiSettings) -> list[tuple[Location, str]]:
    """Return the directories of checkpoints with their owners: of all versions, also of deleted jobs.

    A driver may run with an older version than the newest.
    """
    newest = JobRow.spec["spec"]["checkpoint"].as_string()
    older = JobVersionRow.spec["spec"]["checkpoint"].as_string()
    of_versions = select(older, JobRow.created_by).join(JobRow, JobRow.id == JobVersionRow.job).distinct()
    directories = []
    for query in (select(newest, JobRow.created_by), of_versions):
        directories += [(locate(location), owner) for location, owner in await session.execute(query) if location]
    locations = CheckpointLocations.of(settings)
    for name, owner in await session.execute(select(JobNameRow.name, JobNameRow.subject)):
        directories.append((_parent(locate(locations.of_job(name))), owner))
    return directories


def _parent(folder: Location) -> Location:
    return folder._replace(path=folder.path.rpartition("/")[0] or "/")
