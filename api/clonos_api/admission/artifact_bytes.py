"""Bytes of artifacts between files and the store, part by part: neither memory nor a transaction holds large ones."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from starlette.concurrency import run_in_threadpool

from clonos_api.auth.principal import Principal
from clonos_api.http.archives import AcceptedUpload
from clonos_api.store import artifacts
from clonos_api.store.db.database import Database
from clonos_api.store.tables import ArtifactRow


async def store(
    database: Database, taken: AcceptedUpload, by: Principal, *, limit_bytes: int
) -> tuple[ArtifactRow, bool]:
    """Store an upload; return the artifact's row, and whether it is new.

    Raises:
        RequestTooLarge: The artifacts of the subject would exceed `limit_bytes`.
    """
    async with database.reading() as session:  # before any byte is written
        row = await artifacts.find(session, taken.id)
        if row is not None:
            return row, False
        await artifacts.check_bytes(session, taken.id, taken.size_bytes, by=by.subject, limit_bytes=limit_bytes)
    content, upload = b"", None
    if taken.size_bytes <= artifacts.PART_BYTES:
        content = await run_in_threadpool(taken.path.read_bytes)
    else:
        upload = secrets.token_hex(16)
    created = False
    try:
        if upload is not None:
            await _store_parts(database, taken.path, upload)
        async with database.transaction(by=by.actor) as session:
            row, created = await artifacts.put(
                session,
                sha=taken.id,
                kind=taken.kind,
                name=taken.name,
                content=content,
                upload=upload,
                size_bytes=taken.size_bytes,
                files=taken.files,
                main=taken.main,
                by=by.subject,
                limit_bytes=limit_bytes,
            )
        return row, created
    finally:
        if upload is not None and not created:
            async with database.transaction() as session:
                await artifacts.drop_parts(session, upload)


async def parts(database: Database, row: ArtifactRow) -> AsyncIterator[bytes]:
    """Yield the bytes of an artifact, one part after the other."""
    number = 0
    while True:
        async with database.reading() as session:
            part = await artifacts.content_part(session, row, number)
        if part is None:
            return
        yield part
        number += 1


async def copy(database: Database, row: ArtifactRow, to: Path) -> None:
    """Write the bytes of an artifact to a new file."""
    with to.open("xb") as file:
        async for part in parts(database, row):
            await run_in_threadpool(file.write, part)


async def _store_parts(database: Database, path: Path, upload: str) -> None:
    number = 0
    with path.open("rb") as file:
        while part := await run_in_threadpool(_read, file):
            async with database.transaction() as session:
                await artifacts.put_part(session, upload, number, part)
            number += 1


def _read(file: BinaryIO) -> bytes:
    return file.read(artifacts.PART_BYTES)
