"""Code from an archive that somebody uploaded: every member is checked by hand before any byte is written."""

from __future__ import annotations

import os
import stat
import unicodedata
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict

from clonos.errors import ArchiveRefused

_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK: Final = 1 << 20


class ArchiveLimits(BaseModel):
    """How large an archive may become.

    Attributes:
        members: Files and folders.
        bytes: Of all files, unpacked.
        ratio: Unpacked bytes for each byte of the archive; small archives are let be.
        depth: Folders within each other.
    """

    model_config = ConfigDict(frozen=True)

    members: int = 10_000
    bytes: int = 512 << 20
    ratio: int = 200
    depth: int = 32


def is_archive(file: Path) -> bool:
    """Whether it says that it is a zip file."""
    with file.open("rb") as opened:
        return opened.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def check(archive: zipfile.ZipFile, size: int, limits: ArchiveLimits) -> None:
    """Look at all members.

    Args:
        archive: The archive.
        size: Its size in bytes.
        limits: How large it may become.

    Raises:
        ArchiveRefused: One of them is not a plain file or folder inside of the archive, or it is too large.
    """
    members = archive.infolist()
    if len(members) > limits.members:
        raise ArchiveRefused(f"The archive has {len(members)} members, more than {limits.members}.")
    total = sum(one.file_size for one in members)
    if total > limits.bytes:
        raise ArchiveRefused(f"The archive unpacks to {total} bytes, more than {limits.bytes}.")
    # Members that share compressed bytes, and ones that are next to nothing compressed: both are bombs.
    if sum(one.compress_size for one in members) > size or (total > _CHUNK and total > limits.ratio * size):
        raise ArchiveRefused(f"The archive has {size} bytes and unpacks to {total}.")
    files: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = set()
    for one in members:
        parts = _checked(one, limits)
        same = tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)
        # Another spelling is the same file on some file systems.
        if same in files or (not one.is_dir() and same in folders):
            raise ArchiveRefused(f"The archive holds {one.filename!r} twice.")
        (folders if one.is_dir() else files).add(same)
        folders.update(same[:depth] for depth in range(1, len(same)))
    if files & folders:
        raise ArchiveRefused(f"{'/'.join(min(files & folders))!r} in the archive is both a file and a folder.")


def _checked(one: zipfile.ZipInfo, limits: ArchiveLimits) -> tuple[str, ...]:
    name = one.filename
    # `orig_filename`: zipfile itself cuts a name at a NUL.
    if not name or any(not mark.isprintable() for mark in one.orig_filename) or "\\" in one.orig_filename:
        raise ArchiveRefused(f"The archive holds a name that is none: {one.orig_filename!r}.")
    parts = tuple(name.removesuffix("/").split("/"))
    if name.startswith("/") or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise ArchiveRefused(f"The archive holds {name!r}, which leads out of it.")
    if len(parts) > limits.depth or any(len(os.fsencode(part)) > 200 for part in parts):
        raise ArchiveRefused(f"The archive holds {name[:80]!r}…, which is too deep or too long.")
    kind = stat.S_IFMT(one.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or ((kind == stat.S_IFDIR) != one.is_dir() and kind != 0):
        raise ArchiveRefused(f"{name!r} in the archive is a link or a device.")
    if one.flag_bits & 0x1 or one.compress_type not in _METHODS:
        raise ArchiveRefused(f"{name!r} in the archive is encrypted, or compressed in an unusual way.")
    return parts


def unpack(file: Path, folder: Path, limits: ArchiveLimits) -> None:
    """Unpack an archive into an empty folder.

    Raises:
        ArchiveRefused: It is damaged, dangerous or too large; `folder` may hold a part of it.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check(archive, file.stat().st_size, limits)
            left = limits.bytes
            for one in archive.infolist():
                target = folder / one.filename
                if one.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(one) as source, target.open("xb") as out:
                    # Counted too: what an archive says of its sizes need not be so.
                    while piece := source.read(_CHUNK):
                        left -= len(piece)
                        if left < 0:
                            raise ArchiveRefused(f"The archive unpacks to more than {limits.bytes} bytes.")
                        out.write(piece)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ArchiveRefused(f"The archive is damaged: {error}.") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArchiveRefused(f"The archive holds a file twice: {error.filename}.") from error


def inside(main: str) -> PurePosixPath:
    """The path of a job file inside its artifact.

    Raises:
        ArchiveRefused: It leads out of it.
    """
    path = PurePosixPath(main or "job.py")
    if path.is_absolute() or ".." in path.parts or not path.name or "\0" in main or "\\" in main:
        raise ArchiveRefused(f"The job file {main!r} is not inside the artifact.")
    return path
