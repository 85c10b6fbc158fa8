"""Who may call a route, as its parameter; the job that a path names; pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

from fastapi import Path
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced
from clonos.resources.service import Role
from clonos_api.auth import Principal, require, require_agent, require_owner
from clonos_api.services import Store
from clonos_api.store import jobs
from clonos_api.store.database import Actor, Database
from clonos_api.store.tables import JobRow

T = TypeVar("T")

API: Final = "/api/v1"
_TRIES: Final = 5

Viewer = Annotated[Principal, require(Role.VIEWER)]
Operator = Annotated[Principal, require(Role.OPERATOR)]
Admin = Annotated[Principal, require(Role.ADMIN)]
AgentCaller = Annotated[Principal, require_agent()]

JobPath = Annotated[str, Path(min_length=1, max_length=100, description="Id or name of a job.")]
IdPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Its id.")]


async def job_of_path(job: JobPath, store: Store) -> JobRow:
    """The job that the path names."""
    async with store.reading() as session:
        return await jobs.get(session, job)


async def known_job(job: JobPath, store: Store) -> JobRow:
    """The job that the path names, by its id also after it was deleted: its history stays for a while."""
    async with store.reading() as session:
        return await jobs.get(session, job, deleted=True)


OwnJob = Annotated[JobRow, require_owner(job_of_path)]


async def changing(
    database: Database, by: Actor | None, change: Callable[[AsyncSession], Awaitable[T]], *, told: bool = False
) -> T:
    """Do `change` in a transaction; anew if the reconciler or an agent was faster, so that users do not see that.

    Args:
        database: The store.
        by: Who asks.
        change: What to do.
        told: `Database.transaction`.

    Raises:
        Fenced: It was not to be had in several tries.
    """
    for _ in range(_TRIES - 1):
        try:
            async with database.transaction(by=by, told=told) as session:
                return await change(session)
        except Fenced:
            continue
    async with database.transaction(by=by, told=told) as session:
        return await change(session)
