"""FastAPI dependencies of routes: the required role, and the job in the path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Path, Query
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate
from clonos.resources.service import Role
from clonos_api.auth import Principal, require, require_agent, require_any, require_owner
from clonos_api.http.bodies import TEXT, Limit
from clonos_api.replica import DatabaseDep
from clonos_api.store import jobs
from clonos_api.store.db import paging
from clonos_api.store.db.database import Actor, Database, Origin
from clonos_api.store.db.paging import Window
from clonos_api.store.tables import JobRow

T = TypeVar("T")

API: Final = "/api/v1"
_TRIES: Final = 5

Viewer = Annotated[Principal, require(Role.VIEWER)]
Operator = Annotated[Principal, require(Role.OPERATOR)]
Admin = Annotated[Principal, require(Role.ADMIN)]
AnyCaller = Annotated[Principal, require_any()]
AgentCaller = Annotated[Principal, require_agent()]

JobPath = Annotated[str, Path(min_length=1, max_length=100, pattern=TEXT, description="Id or name of a job.")]
JobQuery = Annotated[str | None, Query(max_length=100, pattern=TEXT, description="Id or name of a job.")]
IdPath = Annotated[str, Path(pattern=r"^[0-9a-f-]{36}$", description="Id of the resource.")]


async def _reading(database: DatabaseDep) -> AsyncIterator[AsyncSession]:
    async with database.reading() as session:
        yield session


# A session that reads, for the whole request. It ends before the response is sent: a slow reader holds no connection.
# A route with it opens no second one, because requests that hold one and wait for another could wait for each other.
ReadingDep = Annotated[AsyncSession, Depends(_reading, scope="function")]


async def job_of_path(job: JobPath, database: DatabaseDep) -> JobRow:
    """Return the job whose id or name is in the path."""
    async with database.reading() as session:
        return await jobs.get(session, job)


async def read_job(job: JobPath, session: ReadingDep) -> JobRow:
    """Return the job whose id or name is in the path. An id also finds a deleted job, whose history remains for a
    while.
    """
    return await jobs.get(session, job, deleted=True)


async def known_job(job: JobPath, database: DatabaseDep) -> JobRow:
    """Return the same in a session of its own, for routes that open further ones."""
    async with database.reading() as session:
        return await read_job(job, session)


OwnJob = Annotated[JobRow, require_owner(job_of_path)]
ReadJob = Annotated[JobRow, Depends(read_job)]
KnownJob = Annotated[JobRow, Depends(known_job)]


def _window(cursor: str) -> Callable[..., Awaitable[Window]]:
    async def window(
        limit: Limit = 50,
        starting_after: str | None = Query(None, pattern=cursor, description="`next` of the previous page."),
    ) -> Window:
        return Window(limit, starting_after)

    return window


# The window of a list, by what the list is ordered by.
WindowDep = Annotated[Window, Depends(_window(paging.TIME_CURSOR))]
NumberWindowDep = Annotated[Window, Depends(_window(paging.NUMBER_CURSOR))]
GenerationWindowDep = Annotated[Window, Depends(_window(paging.GENERATION_CURSOR))]
NameWindowDep = Annotated[Window, Depends(_window(paging.NAME_CURSOR))]


async def changing(
    database: Database,
    by: Actor | None,
    change: Callable[[AsyncSession], Awaitable[T]],
    *,
    origin: Origin = Origin.USER,
) -> T:
    """Return the result of `change`, run in a transaction; repeat it if another writer changed the same rows.

    `by` is the requester, for the audit log.
    """
    for _ in range(_TRIES - 1):
        try:
            async with database.transaction(by=by, origin=origin) as session:
                return await change(session)
        except ConcurrentUpdate:
            continue
    async with database.transaction(by=by, origin=origin) as session:
        return await change(session)
