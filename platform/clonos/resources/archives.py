"""Uploaded code: what an archive may hold, looked at by hand before anything of it is written.

The control plane looks at what comes in and the agent at what it fetched, by the same rules. A member is data only:
no archive inside of an archive is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Literal

from clonos.errors import ArchiveRefused

_END: Final = struct.Struct("<4s4H2LH")  # the end of the central directory
_LOCAL: Final = struct.Struct("<4s5H3L2H")  # before each member's data
_CHUNK: Final = 1 << 16
_UNIX_KINDS: Final = frozenset({0, stat.S_IFREG, stat.S_IFDIR})
# Bits of encrypted members: plain, strong, and with a masked directory.
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
# A member this small may be packed as tightly as it likes: a file of blank lines is no bomb.
_RATIO_FROM: Final = 1 << 20

_DECORATED: Final = re.compile(rb"^[ \t]*@[ \t]*(?:clonos[ \t]*\.[ \t]*)?job[ \t]*[(\r\n]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may hold.

    Attributes:
        archive: Bytes of the file itself.
        members: Files and folders.
        single: Bytes of one member, unpacked.
        total: Bytes of all members, unpacked.
        ratio: Unpacked over packed, of one member and of all.
        name: Bytes of a member's name.
    """

    archive: int = 64 << 20
    members: int = 2_000
    single: int = 64 << 20
    total: int = 256 << 20
    ratio: int = 200
    name: int = 255


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Contents:
    """What uploaded code holds.

    Attributes:
        kind: One Python file, or an archive.
        files: Names of the files, as in the archive.
        main: The job file, if there is exactly one.
    """

    kind: Literal["py", "zip"]
    files: tuple[str, ...]
    main: str | None


def inspect(path: Path, name: str, *, limits: Limits = LIMITS) -> Contents:
    """Look at uploaded code, all of it, without writing any.

    Args:
        path: Where the bytes are.
        name: What the user called the file: ``….py`` or ``….zip``.
        limits: How much it may hold.

    Raises:
        ArchiveRefused: It is not what may be kept; the message names the member.
    """
    name = PurePosixPath(name).name
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size > limits.archive:
            raise ArchiveRefused(f"{name} has {size} bytes, and {limits.archive} are the most.")
        file.seek(0)
        packed = file.read(4) in (b"PK\3\4", b"PK\5\6")
        if name.lower().endswith(".zip"):
            if not packed:
                raise ArchiveRefused(f"{name} is not a zip archive.")
            return _inspect_zip(file, size, limits)
        if not name.endswith(".py") or packed:
            raise ArchiveRefused(f"{name}: only a .py file or a .zip archive can be taken, under its own suffix.")
        file.seek(0)
        return _inspect_python(file.read(limits.single + 1), name, limits)


def unpack(path: Path, directory: Path, *, limits: Limits = LIMITS) -> list[Path]:
    """Write the files of an archive below a folder that does not exist yet; looked at again, whoever did so before.

    Returns:
        The files, in the order of the archive.

    Raises:
        ArchiveRefused: The archive breaks a rule; then there is no folder either.
    """
    with path.open("rb") as file:
        _inspect_zip(file, file.seek(0, os.SEEK_END), limits)
        directory.mkdir(mode=0o755)
        try:
            return list(_write(file, directory))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _write(file: BinaryIO, directory: Path) -> Iterator[Path]:
    with _opened(file) as archive:
        for member in archive.infolist():
            target = directory.joinpath(*PurePosixPath(member.orig_filename).parts)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Never through a link or over something; what the archive says of modes does not count.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(target, flags, 0o644), "wb") as out:
                for chunk in _chunks(archive, member):
                    out.write(chunk)
            yield target


def check_name(name: str, *, limit: int = LIMITS.name) -> None:
    """A member's name, or a path inside of an archive: relative, and below it on every system.

    Raises:
        ArchiveRefused: It is not.
    """
    shown = ascii(name[:80])
    if not name or len(name.encode("utf-8", "surrogatepass")) > limit:
        raise ArchiveRefused(f"The name {shown} is empty or has more than {limit} bytes.")
    if any(ord(one) < 0x20 or ord(one) == 0x7F or 0xD800 <= ord(one) < 0xE000 for one in name):
        raise ArchiveRefused(f"The name {shown} holds control characters.")
    if "\\" in name or ":" in name:
        raise ArchiveRefused(f"The name {shown} holds a backslash or a colon: another folder on some systems.")
    if name.startswith("/"):
        raise ArchiveRefused(f"The name {shown} is absolute.")
    parts = name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") or part != part.rstrip(". ") for part in parts):
        raise ArchiveRefused(f"The name {shown} has a part that is empty, a dot, or ends in a dot or space.")


def _inspect_python(source: bytes, name: str, limits: Limits) -> Contents:
    check_name(name, limit=limits.name)
    if len(source) > limits.single:
        raise ArchiveRefused(f"{name} has more than {limits.single} bytes.")
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveRefused(f"{name} is not Python source in UTF-8.") from error
    if "\0" in text:
        raise ArchiveRefused(f"{name} holds a zero byte: it is not Python source.")
    return Contents("py", (name,), name)


def _inspect_zip(file: BinaryIO, size: int, limits: Limits) -> Contents:
    directory_at = _check_end(file, size, limits)
    with _opened(file) as archive:
        members = archive.infolist()
        if len(members) > limits.members:
            raise ArchiveRefused(f"There are {len(members)} members, and {limits.members} are the most.")
        for member in members:
            _check_member(member, limits)
        _check_names(members)
        _check_places(file, members, directory_at)
        total, packed = sum(one.file_size for one in members), sum(one.compress_size for one in members)
        if total > limits.total:
            raise ArchiveRefused(f"The members have {total} bytes, and {limits.total} are the most.")
        if total > _RATIO_FROM and total > limits.ratio * max(packed, 1):
            raise ArchiveRefused(f"The members are {total} bytes packed into {packed}: more than {limits.ratio} to 1.")
        jobs = [one.orig_filename for one in members if not one.is_dir() and _holds_job(archive, one)]
        files = tuple(one.orig_filename for one in members if not one.is_dir())
        if not files:
            raise ArchiveRefused("The archive holds no file.")
        return Contents("zip", files, jobs[0] if len(jobs) == 1 else None)


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError) as error:
        raise ArchiveRefused(f"The archive is damaged: {str(error).rstrip('.')}.") from error


def _check_end(file: BinaryIO, size: int, limits: Limits) -> int:
    """Where the central directory is. Looked at first: its size decides how much memory reading it takes."""
    tail_at = max(0, size - _END.size - 0xFFFF)
    file.seek(tail_at)
    tail = file.read()
    at = len(tail) - _END.size
    if at < 0:
        raise ArchiveRefused("The archive is cut short.")
    # As `zipfile` finds it, so that both look at the same one.
    if not (tail[at:].startswith(b"PK\5\6") and tail.endswith(b"\0\0")):
        at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END.size > len(tail):
        raise ArchiveRefused("The archive is cut short.")
    _, disk, first_disk, here, entries, directory, offset, comment = _END.unpack_from(tail, at)
    if tail_at + at + _END.size + comment != size:
        raise ArchiveRefused("The archive has something after its end.")
    if b"PK\6\7" in tail[max(0, at - 20) : at] or disk or first_disk or here != entries:
        raise ArchiveRefused("The archive is in the 64-bit format or one of several volumes: no code is so large.")
    # 46 bytes for each entry, its name, and what packers add (times, owners).
    if entries > limits.members or directory > limits.members * (46 + limits.name + 128):
        raise ArchiveRefused(f"There are more than {limits.members} members, or their directory is too large.")
    if offset + directory != tail_at + at:
        raise ArchiveRefused("The archive has something before its start or between its parts.")
    return int(offset)


def _check_member(member: zipfile.ZipInfo, limits: Limits) -> None:
    # `orig_filename`: `filename` is cut at a zero byte.
    name = member.orig_filename
    check_name(name, limit=limits.name)
    if member.flag_bits & _ENCRYPTED:
        raise ArchiveRefused(f"{name} is encrypted.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveRefused(f"{name} is packed by method {member.compress_type}; only deflate can be taken.")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in _UNIX_KINDS or (kind == stat.S_IFDIR and not member.is_dir()):
        raise ArchiveRefused(f"{name} is a link, a device or something else that is not a plain file.")
    if member.is_dir() and member.file_size:
        raise ArchiveRefused(f"{name} is a folder with content.")
    if member.file_size > limits.single:
        raise ArchiveRefused(f"{name} has {member.file_size} bytes, and {limits.single} are the most.")
    if member.file_size > _RATIO_FROM and member.file_size > limits.ratio * max(member.compress_size, 1):
        raise ArchiveRefused(f"{name} is packed more than {limits.ratio} to 1.")


def _check_names(members: list[zipfile.ZipInfo]) -> None:
    seen: dict[str, str] = {}
    files: set[str] = set()
    for member in members:
        key = _folded(member.orig_filename)
        if key in seen:
            raise ArchiveRefused(f"{member.orig_filename} and {seen[key]} are one name on some systems.")
        seen[key] = member.orig_filename
        if not member.is_dir():
            files.add(key)
    spelt: dict[str, str] = {}
    for member in members:
        parts = member.orig_filename.removesuffix("/").split("/")
        for depth in range(1, len(parts) + member.is_dir()):
            folder = "/".join(parts[:depth])
            key = _folded(folder)
            if key in files or spelt.setdefault(key, folder) != folder:
                raise ArchiveRefused(f"{folder} is a file too, or a folder spelt in two ways.")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.removesuffix("/")).casefold()


def _check_places(file: BinaryIO, members: list[zipfile.ZipInfo], directory_at: int) -> None:
    """No two members share bytes: overlapping ones unpack to far more than the file holds."""
    end = 0
    for member in sorted(members, key=lambda one: one.header_offset):
        file.seek(member.header_offset)
        header = file.read(_LOCAL.size)
        if member.header_offset < end or len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
            raise ArchiveRefused(
                f"{member.orig_filename} shares bytes with another member, or is not where it should be."
            )
        *_, name, extra = _LOCAL.unpack(header)
        end = member.header_offset + _LOCAL.size + name + extra + member.compress_size
    if end > directory_at:
        raise ArchiveRefused("A member reaches into the archive's directory.")


def _chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's content. Not more than its entry says is ever read, and the checksum shows an entry that lies."""
    size = 0
    with archive.open(member) as content:
        while chunk := content.read(_CHUNK):
            size += len(chunk)
            yield chunk
    if size != member.file_size:
        raise ArchiveRefused(f"{member.orig_filename} has {size} bytes, and its entry says {member.file_size}.")


def _holds_job(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    """Whether a member is a job file. Every member is read to its end, so that a damaged one is refused here."""
    looked = member.orig_filename.endswith(".py")
    source = bytearray()
    for chunk in _chunks(archive, member):
        if looked and len(source) < (1 << 20):
            source += chunk
    return b"clonos" in source and _DECORATED.search(source) is not None
