"""Rows of artifacts: uploaded job code. The id is the hash of the content, so artifacts are immutable.

Events: ``artifact.created``, ``artifact.deleted``.
"""

from __future__ import annotations

from sqlalchemy import delete as delete_rows
from sqlalchemy import exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos_api.store import audit, events
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import insert_new, require_row
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
    """Store uploaded code of the subject `by`, unless the same bytes are stored already.

    The other arguments are as in `AcceptedUpload`. Returns the artifact's row, and whether it is new.
    """
    row = await insert_new(
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
    if row is None:
        return await get(session, sha), False
    events.append(session, "artifact.created", data={"id": sha, "name": name, "size_bytes": len(content)})
    await audit.asked(session, "artifact.create", sha, name=name)
    return row, True


async def get(session: AsyncSession, sha: str) -> ArtifactRow:
    """The row of an artifact, without loading its bytes."""
    return require_row(await session.get(ArtifactRow, sha), f"artifact {sha}")


async def content(session: AsyncSession, sha: str) -> bytes:
    """The bytes of an artifact (uploaded job code)."""
    row = (await session.execute(select(ArtifactRow.content).where(ArtifactRow.id == sha))).scalar_one_or_none()
    if row is None:
        await get(session, sha)
    return row or b""


async def page(session: AsyncSession, window: Window = FIRST) -> Page[ArtifactRow]:
    """One page of artifacts, newest first."""
    return await by_time(session, select(ArtifactRow), ArtifactRow.created_at, ArtifactRow.id, window)


async def delete(session: AsyncSession, sha: str) -> None:
    """Delete an artifact that no job, version or savepoint needs."""
    row = await get(session, sha)
    used = or_(*(exists().where(table.artifact == sha) for table in (JobRow, JobVersionRow, SavepointRow)))
    if (await session.execute(select(used))).scalar_one():
        raise StateConflict(
            f"Artifact {sha} is in use.",
            hint="delete the jobs and savepoints that need it; retention removes those of deleted jobs.",
        )
    await session.execute(delete_rows(ArtifactRow).where(ArtifactRow.id == sha))
    events.append(session, "artifact.deleted", data={"id": sha, "name": row.name})
    await audit.asked(session, "artifact.delete", sha, name=row.name)
