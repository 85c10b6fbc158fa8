"""Whose a checkpoint's folder is: a job must not work in that of somebody else's, whatever its specification names."""

from __future__ import annotations

import posixpath
from typing import Final
from urllib.parse import unquote, urlsplit

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Forbidden
from clonos.resources.service import Role
from clonos.spec import JobSpec
from clonos_api.auth import Principal
from clonos_api.reconcile import checkpoints
from clonos_api.settings import ApiSettings
from clonos_api.store.tables import JobNameRow, JobRow

_HINT: Final = "leave `checkpoint` out, or name a folder of your own; an admin may name any."


async def check(session: AsyncSession, caller: Principal, spec: JobSpec, settings: ApiSettings) -> None:
    """Refuse a specification that names the folder of somebody else's checkpoint, or one around or inside of it.

    Raises:
        Forbidden: It does, and the caller is no admin.
    """
    if spec.spec.checkpoint is None or caller.may(Role.ADMIN):
        return
    wanted = _folder(spec.spec.checkpoint)
    for other, owner in await _folders(session, settings):
        if owner != caller.subject and (_within(wanted, other) or _within(other, wanted)):
            raise Forbidden(f"The folder {spec.spec.checkpoint} is that of somebody else's checkpoint.", hint=_HINT)


async def _folders(session: AsyncSession, settings: ApiSettings) -> list[tuple[str, str]]:
    """Folders of checkpoints, also of deleted jobs, and whose they are."""
    named = JobRow.spec["spec"]["checkpoint"].as_string()
    found = [(given, owner) for given, owner in await session.execute(select(named, JobRow.owner)) if given]
    for name, owner in await session.execute(select(JobNameRow.name, JobNameRow.owner)):
        place = checkpoints.location(None, name, home=settings.home, shared=settings.shared_checkpoints)
        found.append((place.removesuffix("/checkpoint"), owner))
    return [(_folder(place), owner) for place, owner in found]


def _folder(location: str) -> str:
    parts = urlsplit(location)
    scheme = "" if parts.scheme == "file" else parts.scheme.lower()
    return f"{scheme}://{parts.netloc if scheme else ''}{posixpath.normpath('/' + unquote(parts.path).lstrip('/'))}"


def _within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")
