"""The agent's local copies of job code: downloaded once, stored under their SHA-256, and checked before each use."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog

from clonos.errors import ArchiveInvalid, ArtifactUnavailable
from clonos.resources.archives import Limits, check_name, unpack

Fetch = Callable[[str], AsyncIterator[bytes]]

_log = structlog.get_logger("clonos.agent")
_TRIES: Final = 3


class Artifacts:
    """The local copies of artifacts on one host. `fetch` yields the bytes of the artifact with a SHA-256."""

    def __init__(self, folder: Path, fetch: Fetch, limits: Limits) -> None:
        self._folder = folder
        self._fetch = fetch
        self._limits = limits
        self._locks: dict[str, asyncio.Lock] = {}
        for file in folder.iterdir():
            if file.suffix == ".part":
                file.unlink(missing_ok=True)
            else:
                file.chmod(0o600)  # an older version left it readable for others

    async def get(self, sha256: str) -> Path:
        """Path of the local copy of an artifact, which is downloaded if necessary, and checked.

        Raises:
            ArtifactUnavailable: The download failed, or its content was wrong; a retry may succeed.
            ArchiveInvalid: The artifact is too large.
        """
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ArchiveInvalid(f"{sha256[:80]!r} is not a SHA-256.")
        file = self._folder / sha256
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            if await asyncio.to_thread(_hash, file) == sha256:
                return file
            for _ in range(_TRIES):
                downloaded = await self._download(sha256, file)
                if downloaded == sha256:
                    return file
                _log.warning("artifact-differs", artifact=sha256, downloaded=downloaded)
        raise ArtifactUnavailable(f"The artifact {sha256} was damaged in {_TRIES} downloads.")

    async def _download(self, sha256: str, file: Path) -> str:
        part = file.with_suffix(".part")
        digest, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as out:
                part.chmod(0o600)  # code belongs to its owner, and names of artifacts are in lists
                async for piece in self._fetch(sha256):
                    size += len(piece)
                    if size > self._limits.archive:
                        raise ArchiveInvalid(f"The artifact has more than {self._limits.archive} bytes.")
                    digest.update(piece)
                    out.write(piece)
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            if digest.hexdigest() == sha256:
                part.replace(file)
            return digest.hexdigest()
        finally:
            part.unlink(missing_ok=True)

    async def install(self, sha256: str, main: str, folder: Path) -> None:
        """Install an artifact's code, an archive or one Python file, in `folder`, which it replaces: all of it or
        nothing.

        Raises:
            ArtifactUnavailable: The artifact could not be downloaded.
            ArchiveInvalid: The archive is invalid, or the artifact lacks the job file `main`.
        """
        check_name(main)
        file = await self.get(sha256)
        await asyncio.to_thread(_install, file, Path(main), folder, self._limits)

    def keep_only(self, used: set[str]) -> None:
        """Remove the local copies of all artifacts except `used` (SHA-256)."""
        for file in self._folder.iterdir():
            if file.suffix != ".part" and file.name not in used:
                file.unlink(missing_ok=True)
                self._locks.pop(file.name, None)


def _install(file: Path, main: Path, folder: Path, limits: Limits) -> None:
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        if _is_archive(file):
            unpack(file, new, limits=limits)
        else:
            (new / main).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, new / main)
        if not (new / main).is_file():
            raise ArchiveInvalid(f"The artifact does not hold the job file {str(main)!r}.")
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _is_archive(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"PK"


def _hash(file: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
    return None
