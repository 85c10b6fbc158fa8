"""Uploads: streamed to a file while they are hashed, looked at, and only then taken."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal, Protocol

from starlette.concurrency import run_in_threadpool

from clonos.errors import ArchiveRefused, TooLarge
from clonos.resources.archives import LIMITS, Limits, inspect

_PIECE: Final = 1 << 18


class Upload(Protocol):
    """What of FastAPI's `UploadFile` is used."""

    filename: str | None

    async def read(self, size: int = -1) -> bytes:
        """The next bytes."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Uploaded code that may be kept.

    Attributes:
        id: SHA-256 of the bytes, hexadecimal.
        name: What the user called it, without folders.
        files: How many.
        main: The job file, if there is exactly one.
    """

    id: str
    kind: Literal["py", "zip"]
    name: str
    size_bytes: int
    files: int
    main: str | None
    path: Path

    async def content(self) -> bytes:
        """The bytes."""
        return await run_in_threadpool(self.path.read_bytes)


@asynccontextmanager
async def receive(upload: Upload, *, limits: Limits = LIMITS) -> AsyncIterator[Taken]:
    """Take an upload; its file is gone at the end.

    Args:
        upload: The file of a form.
        limits: How much it may hold.

    Raises:
        TooLarge: There are more bytes than may come.
        ArchiveRefused: It is not what may be kept.
    """
    name = _name(upload.filename)
    handle, text = tempfile.mkstemp(prefix="clonos-upload-")
    path = Path(text)
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            while piece := await upload.read(_PIECE):
                size += len(piece)
                if size > limits.archive:
                    raise TooLarge(f"{name} has more than {limits.archive} bytes.")
                digest.update(piece)
                await run_in_threadpool(file.write, piece)
        found = await run_in_threadpool(inspect, path, name, limits=limits)
        yield Taken(digest.hexdigest(), found.kind, name, size, len(found.files), found.main, path)
    finally:
        path.unlink(missing_ok=True)


def _name(given: str | None) -> str:
    """A file name for people to know it by; it never becomes a path."""
    name = PurePosixPath((given or "").replace("\\", "/")).name
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,255}", name):
        raise ArchiveRefused("The upload has no usable file name.", hint="name it ….py or ….zip.")
    return name
