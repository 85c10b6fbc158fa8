"""Receives uploads: streams them to a temporary file, and hashes and checks them before they are accepted."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from fastapi import UploadFile
from starlette.concurrency import run_in_threadpool

from clonos.errors import ArchiveInvalid, RequestTooLarge
from clonos.resources.archives import LIMITS, Limits, inspect

_PIECE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class AcceptedUpload:
    """Uploaded code that has passed all checks, in a temporary file."""

    id: str  # SHA-256 of the bytes, hexadecimal
    kind: Literal["py", "zip"]
    name: str  # file name that the user chose, without directories
    size_bytes: int
    files: int  # number of files in the archive; 1 for a ``.py`` file
    main: str | None  # the job file, if there is exactly one
    path: Path  # the temporary file


@asynccontextmanager
async def receive(upload: UploadFile, *, limits: Limits = LIMITS) -> AsyncIterator[AcceptedUpload]:
    """Receive and check an upload within `limits`; the temporary file is deleted at the end of the context."""
    name = _name(upload.filename)
    handle, text = tempfile.mkstemp(prefix="clonos-upload-")
    path = Path(text)
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            while piece := await upload.read(_PIECE):
                size += len(piece)
                if size > limits.archive:
                    raise RequestTooLarge(f"{name} has more than {limits.archive} bytes.")
                digest.update(piece)
                await run_in_threadpool(file.write, piece)
        archive = await run_in_threadpool(inspect, path, name, limits=limits)
        yield AcceptedUpload(digest.hexdigest(), archive.kind, name, size, len(archive.files), archive.main, path)
    finally:
        path.unlink(missing_ok=True)


def _name(filename: str | None) -> str:
    """Return the display name of an upload; it is never used as a path."""
    name = PurePosixPath((filename or "").replace("\\", "/")).name
    if not re.fullmatch(r"[^\x00-\x1f\x7f-\x9f]{1,255}", name):
        raise ArchiveInvalid("The upload has no usable file name.", hint="name it ….py or ….zip.")
    return name
