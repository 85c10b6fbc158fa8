"""Rows of artifacts: uploaded job code. The id is the hash of the content, so artifacts are immutable.

The bytes of a large artifact are in parts (`put_part`), which are written and read one at a time.

Events: ``artifact.created``, ``artifact.deleted``.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sqlalchemy import delete as delete_rows
from sqlalchemy import exists, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import RequestTooLarge, StateConflict
from clonos_api.store import audit, events
from clonos_api.store.db.clock import now
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import insert_new, require_row
from clonos_api.store.tables import ArtifactPartRow, ArtifactRow, JobRow, JobVersionRow, SavepointRow

PART_BYTES: Final = 1 << 19


async def put(
    session: AsyncSession,
    *,
    sha: str,
    kind: str,
    name: str,
    content: bytes,
    upload: str | None = None,
    size_bytes: int | None = None,
    files: int = 1,
    main: str | None = None,
    by: str,
    limit_bytes: int | None = None,
) -> tuple[ArtifactRow, bool]:
    """Store uploaded code of the subject `by`, unless the same bytes are stored already.

    Args:
        session: A transaction.
        sha: As in `AcceptedUpload`, like `kind`, `name`, `files` and `main`.
        kind: See `sha`.
        name: See `sha`.
        content: All bytes; empty if they are stored in parts.
        upload: The upload whose parts (`put_part`) have the bytes.
        size_bytes: Number of bytes; default: the length of `content`.
        files: See `sha`.
        main: See `sha`.
        by: The subject.
        limit_bytes: Maximum bytes of all artifacts of the subject.

    Returns:
        The artifact's row, and whether it is new.

    Raises:
        RequestTooLarge: The subject's artifacts would exceed `limit_bytes`.
    """
    size_bytes = len(content) if size_bytes is None else size_bytes
    if limit_bytes is not None:
        if session.get_bind().dialect.name == "postgresql":
            # Uploads of one subject at the same time: each counts the bytes of the others.
            await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _lock_of(by)})
        await check_bytes(session, sha, size_bytes, by=by, limit_bytes=limit_bytes)
    row = await insert_new(
        session,
        ArtifactRow,
        id=sha,
        kind=kind,
        name=name,
        size_bytes=size_bytes,
        files=files,
        main=main,
        content=content,
        upload=upload,
        created_at=await now(session),
        created_by=by,
    )
    if row is None:
        return await get(session, sha), False
    events.append(session, "artifact.created", data={"id": sha, "name": name, "size_bytes": size_bytes})
    await audit.asked(session, "artifact.create", sha, name=name)
    return row, True


async def check_bytes(session: AsyncSession, sha: str, size_bytes: int, *, by: str, limit_bytes: int) -> None:
    """Raise `RequestTooLarge` if the artifacts of the subject `by` would exceed the limit with this one.

    Bytes that are stored already do not count twice.
    """
    if await find(session, sha) is not None:
        return
    query = select(func.coalesce(func.sum(ArtifactRow.size_bytes), 0)).where(ArtifactRow.created_by == by)
    stored = int((await session.execute(query)).scalar_one())
    if stored + size_bytes > limit_bytes:
        raise RequestTooLarge(
            f"{by} has {stored} bytes of artifacts; {size_bytes} more exceed the limit of {limit_bytes}.",
            kept="nothing was stored.",
            hint="ask an admin to delete artifacts that no job uses. Retention removes them after 30 days.",
        )


async def put_part(session: AsyncSession, upload: str, number: int, content: bytes) -> None:
    """Store part `number` (0, 1, …) of the bytes of an upload."""
    session.add(ArtifactPartRow(upload=upload, number=number, content=content, stored_at=await now(session)))


async def drop_parts(session: AsyncSession, upload: str) -> None:
    """Remove the parts of an upload that no artifact uses."""
    unused = ~exists().where(ArtifactRow.upload == upload)
    await session.execute(delete_rows(ArtifactPartRow).where(ArtifactPartRow.upload == upload, unused))


async def get(session: AsyncSession, sha: str) -> ArtifactRow:
    """Return the row of an artifact, without loading its bytes."""
    return require_row(await find(session, sha), f"artifact {sha}")


async def find(session: AsyncSession, sha: str) -> ArtifactRow | None:
    """Return the row of an artifact, without loading its bytes; None if these bytes are not stored."""
    return await session.get(ArtifactRow, sha)


async def content(session: AsyncSession, sha: str) -> bytes:
    """Return the bytes of an artifact (uploaded job code)."""
    row = await get(session, sha)
    parts: list[bytes] = []
    while (part := await content_part(session, row, len(parts))) is not None:
        parts.append(part)
    return b"".join(parts)


async def content_part(session: AsyncSession, row: ArtifactRow, number: int) -> bytes | None:
    """Part `number` (0, 1, …) of the bytes of an artifact; None after the last one."""
    if row.upload is None:
        query = select(ArtifactRow.content).where(ArtifactRow.id == row.id)
        return (await session.execute(query)).scalar_one_or_none() if number == 0 else None
    query = select(ArtifactPartRow.content).where(
        ArtifactPartRow.upload == row.upload, ArtifactPartRow.number == number
    )
    return (await session.execute(query)).scalar_one_or_none()


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
            hint="delete the jobs and savepoints that need it; retention removes artifacts of deleted jobs.",
        )
    await session.execute(delete_rows(ArtifactRow).where(ArtifactRow.id == sha))
    if row.upload is not None:
        await drop_parts(session, row.upload)
    events.append(session, "artifact.deleted", data={"id": sha, "name": row.name})
    await audit.asked(session, "artifact.delete", sha, name=row.name)


def _lock_of(subject: str) -> int:
    return int.from_bytes(hashlib.sha256(f"artifacts of {subject}".encode()).digest()[:8], signed=True)
