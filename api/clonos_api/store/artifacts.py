"""Artifacts: uploaded code, named by its content, so that nobody ever changes one.

Events: ``artifact.created``, ``artifact.deleted``.
"""

from __future__ import annotations

from sqlalchemy import delete as delete_rows
from sqlalchemy import exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos_api.store import audit, events
from clonos_api.store.clock import now
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found, insert_new
from clonos_api.store.tables import ArtifactRow, JobRow, JobVersionRow, SavepointRow


async def put(
    session: AsyncSession,
    *,
    sha: str,
    kind: str,
    name: str,
    content: bytes,
    files: int = 1,
    main: str | None = None,
    by: str,
) -> tuple[ArtifactRow, bool]:
    """Keep an artifact; the row, and whether it is new. The same bytes again are the artifact that is there."""
    made = await insert_new(
        session,
        ArtifactRow,
        id=sha,
        kind=kind,
        name=name,
        size_bytes=len(content),
        files=files,
        main=main,
        content=content,
        created_at=await now(session),
        created_by=by,
    )
    if made is None:
        return await get(session, sha), False
    events.append(session, "artifact.created", data={"id": sha, "name": name, "size_bytes": len(content)})
    await audit.asked(session, "artifact.create", sha, name=name)
    return made, True


async def get(session: AsyncSession, sha: str) -> ArtifactRow:
    """An artifact without its bytes.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(ArtifactRow, sha), f"artifact {sha}")


async def content(session: AsyncSession, sha: str) -> bytes:
    """Its bytes.

    Raises:
        NotFound: There is none.
    """
    row = (await session.execute(select(ArtifactRow.content).where(ArtifactRow.id == sha))).scalar_one_or_none()
    if row is None:
        await get(session, sha)
    return row or b""


async def page(session: AsyncSession, *, limit: int = DEFAULT, starting_after: str | None = None) -> Page[ArtifactRow]:
    """Artifacts, newest first."""
    return await by_time(
        session,
        select(ArtifactRow),
        ArtifactRow.created_at,
        ArtifactRow.id,
        limit=limit,
        starting_after=starting_after,
    )


async def delete(session: AsyncSession, sha: str) -> None:
    """Delete an artifact.

    Raises:
        NotFound: There is none.
        StateConflict: A job, one of its versions or a savepoint needs it.
    """
    row = await get(session, sha)
    used = or_(*(exists().where(table.artifact == sha) for table in (JobRow, JobVersionRow, SavepointRow)))
    if (await session.execute(select(used))).scalar_one():
        raise StateConflict(
            f"Artifact {sha} is in use.",
            hint="delete the jobs and savepoints that need it; those of deleted jobs go with their history.",
        )
    await session.execute(delete_rows(ArtifactRow).where(ArtifactRow.id == sha))
    events.append(session, "artifact.deleted", data={"id": sha, "name": row.name})
    await audit.asked(session, "artifact.delete", sha, name=row.name)
