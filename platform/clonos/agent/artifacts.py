"""Code of jobs: fetched once, kept by its hash, and never used unless it has that hash."""

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

from clonos.errors import ArchiveRefused, ArtifactUnavailable
from clonos.resources.archives import Limits, check_name, unpack

Fetch = Callable[[str], AsyncIterator[bytes]]

_log = structlog.get_logger("clonos.agent")
_TRIES: Final = 3


class Artifacts:
    """The artifacts of one host.

    Args:
        folder: Where they are kept.
        fetch: Gets the bytes of one.
        limits: How large one may be, and become.
    """

    def __init__(self, folder: Path, fetch: Fetch, limits: Limits) -> None:
        self._folder = folder
        self._fetch = fetch
        self._limits = limits
        self._locks: dict[str, asyncio.Lock] = {}
        for rest in folder.glob("*.part"):
            rest.unlink(missing_ok=True)

    async def get(self, sha256: str) -> Path:
        """The file of an artifact, which has its hash.

        Raises:
            ArtifactUnavailable: It could not be fetched whole; another try may help.
            ArchiveRefused: It is too large.
        """
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ArchiveRefused(f"{sha256[:80]!r} is no SHA-256.")
        file = self._folder / sha256
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            if await asyncio.to_thread(_hash, file) == sha256:
                return file
            for _ in range(_TRIES):
                found = await self._download(sha256, file)
                if found == sha256:
                    return file
                _log.warning("artifact-differs", artifact=sha256, found=found)
        raise ArtifactUnavailable(f"The artifact {sha256} came damaged {_TRIES} times.")

    async def _download(self, sha256: str, file: Path) -> str:
        part = file.with_suffix(".part")
        digest, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as out:
                async for piece in self._fetch(sha256):
                    size += len(piece)
                    if size > self._limits.archive:
                        raise ArchiveRefused(f"The artifact has more than {self._limits.archive} bytes.")
                    digest.update(piece)
                    out.write(piece)
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            if digest.hexdigest() == sha256:
                part.replace(file)
            return digest.hexdigest()
        finally:
            part.unlink(missing_ok=True)

    async def place(self, sha256: str, main: str, folder: Path) -> None:
        """Put an artifact's code where a driver finds it: all of it or nothing.

        Args:
            sha256: The artifact: an archive, or one Python file.
            main: The job file in it.
            folder: Made, with the code in it; one that is there already is replaced.

        Raises:
            ArtifactUnavailable: It could not be fetched.
            ArchiveRefused: It holds what it should not, or not the job file.
        """
        check_name(main)
        file = await self.get(sha256)
        await asyncio.to_thread(_place, file, Path(main), folder, self._limits)

    def keep_only(self, wanted: set[str]) -> None:
        """Drop what no order names."""
        for file in self._folder.iterdir():
            if file.suffix != ".part" and file.name not in wanted:
                file.unlink(missing_ok=True)
                self._locks.pop(file.name, None)


def _place(file: Path, main: Path, folder: Path, limits: Limits) -> None:
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
            raise ArchiveRefused(f"The artifact does not hold the job file {str(main)!r}.")
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
