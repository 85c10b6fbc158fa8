"""Ownership of checkpoint directories: a job must not use the directory of another user's checkpoint.

This compares names. A driver or task also reads the owner file of its directory (`clonos.driver.checkpoint_owner`),
which no other spelling, link or mount gets around.
"""

from __future__ import annotations

import posixpath
from typing import Final
from urllib.parse import unquote, urlsplit

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Forbidden
from clonos.resources.service import Role
from clonos_api.auth import Principal
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.settings import ApiSettings
from clonos_api.store.tables import JobNameRow, JobRow

_HINT: Final = "omit the location, or name a directory of your own; an admin may name any."


async def check(session: AsyncSession, caller: Principal, location: str | None, settings: ApiSettings) -> None:
    """Refuses a directory for a checkpoint or for savepoints that the caller may not use; an admin may use any.

    Args:
        session: A session of the database.
        caller: The user.
        location: Path or URI of the directory; None: the service's own, which everybody may use.
        settings: Settings of the replica.

    Raises:
        Forbidden: The directory overlaps with another user's checkpoint, or is outside of the allowed roots.
    """
    if location is None or caller.may(Role.ADMIN):
        return
    requested = _normalized(location)
    roots = [_normalized(root) for root in settings.checkpoint_roots]
    if roots and not any(_within(requested, root) for root in roots):
        raise Forbidden(
            f"The directory {location} is outside of the directories that jobs may use.",
            hint=f"name a directory below {' or '.join(settings.checkpoint_roots)}, or omit the location.",
        )
    for other, owner in await _directories(session, settings):
        if owner != caller.subject and (_within(requested, other) or _within(other, requested)):
            raise Forbidden(f"The directory {location} belongs to another user's checkpoint.", hint=_HINT)


async def _directories(session: AsyncSession, settings: ApiSettings) -> list[tuple[str, str]]:
    """Returns the directories of checkpoints, also of deleted jobs, with their owners."""
    specified = JobRow.spec["spec"]["checkpoint"].as_string()
    rows = await session.execute(select(specified, JobRow.created_by))
    directories = [(location, owner) for location, owner in rows if location]
    locations = CheckpointLocations.of(settings)
    for name, owner in await session.execute(select(JobNameRow.name, JobNameRow.subject)):
        location = locations.of_job(name)
        directories.append((location.removesuffix("/checkpoint"), owner))
    return [(_normalized(location), owner) for location, owner in directories]


def _normalized(location: str) -> str:
    parts = urlsplit(location)
    scheme = "" if parts.scheme == "file" else parts.scheme.lower()
    return f"{scheme}://{parts.netloc if scheme else ''}{posixpath.normpath('/' + unquote(parts.path).lstrip('/'))}"


def _within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")
