"""Checks of uploaded code, before any of its files is written.

The control plane checks uploads and the agent checks downloads, by the same rules. A *member* is a file or folder in an
archive. Archives inside an archive are not opened.
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

from clonos.errors import ArchiveInvalid

_END_RECORD: Final = struct.Struct("<4s4H2LH")  # at the end of the central directory
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")  # before each member's data
_CHUNK_BYTES: Final = 1 << 16
_UNIX_KINDS: Final = frozenset({0, stat.S_IFREG, stat.S_IFDIR})
# Bits of encrypted members: traditional encryption, strong encryption, and a masked directory.
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
# Smaller members may have any ratio: a small file of blank lines is harmless.
_MIN_BYTES_FOR_RATIO: Final = 1 << 20

_JOB_DECORATOR: Final = re.compile(rb"^[ \t]*@[ \t]*(?:clonos[ \t]*\.[ \t]*)?job[ \t]*[(\r\n]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum sizes of uploaded code."""

    archive: int = 64 << 20
    """Bytes of the uploaded file."""
    members: int = 2_000
    """Number of files and folders."""
    single: int = 64 << 20
    """Bytes of one member, unpacked."""
    total: int = 256 << 20
    """Bytes of all members, unpacked."""
    ratio: int = 200
    """Unpacked size divided by packed size, of each member and of the archive."""
    name: int = 255
    """Bytes of a member's name."""


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Contents:
    """Description of uploaded code."""

    kind: Literal["py", "zip"]
    """``py`` for one Python file, ``zip`` for an archive."""
    files: tuple[str, ...]
    """Names of the files, as in the archive."""
    main: str | None
    """The job file, if there is exactly one."""


def inspect(path: Path, name: str, *, limits: Limits = LIMITS) -> Contents:
    """Check and describe uploaded code, which the user calls `name` (``….py`` or ``….zip``); writes nothing.

    Raises:
        ArchiveInvalid: The code breaks a rule; the message names the member.
    """
    name = PurePosixPath(name).name
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size > limits.archive:
            raise ArchiveInvalid(f"{name} has {size} bytes; the limit is {limits.archive}.")
        file.seek(0)
        packed = file.read(4) in (b"PK\3\4", b"PK\5\6")
        if name.lower().endswith(".zip"):
            if not packed:
                raise ArchiveInvalid(f"{name} is not a zip archive.")
            return _inspect_zip(file, size, limits)
        if not name.endswith(".py") or packed:
            raise ArchiveInvalid(f"{name} is neither a .py file nor a .zip archive, or has the wrong suffix.")
        file.seek(0)
        return _inspect_python(file.read(limits.single + 1), name, limits)


def unpack(path: Path, directory: Path, *, limits: Limits = LIMITS) -> list[Path]:
    """Check an archive again, and write its files below `directory`, which must not exist; returns them in order.

    Raises:
        ArchiveInvalid: The archive breaks a rule; `directory` does not exist afterwards.
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
    with _open_zip(file) as archive:
        for member in archive.infolist():
            target = directory.joinpath(*PurePosixPath(member.orig_filename).parts)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Never follows a link, never overwrites a file, and ignores the archive's modes.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(target, flags, 0o644), "wb") as out:
                for chunk in _chunks(archive, member):
                    out.write(chunk)
            yield target


def check_name(name: str, *, limit: int = LIMITS.name) -> None:
    """Raise `ArchiveInvalid` if a member's path is absolute, leaves the archive, or is unsafe on some system."""
    shown = ascii(name[:80])
    if not name or len(name.encode("utf-8", "surrogatepass")) > limit:
        raise ArchiveInvalid(f"The name {shown} is empty or has more than {limit} bytes.")
    if any(ord(char) < 0x20 or ord(char) == 0x7F or 0xD800 <= ord(char) < 0xE000 for char in name):
        raise ArchiveInvalid(f"The name {shown} contains control characters.")
    if "\\" in name or ":" in name:
        raise ArchiveInvalid(f"The name {shown} contains a backslash or a colon, a separator on some systems.")
    if name.startswith("/"):
        raise ArchiveInvalid(f"The name {shown} is absolute.")
    parts = name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") or part != part.rstrip(". ") for part in parts):
        raise ArchiveInvalid(f"The name {shown} has a part that is empty, a dot, or ends in a dot or space.")


def _inspect_python(source: bytes, name: str, limits: Limits) -> Contents:
    check_name(name, limit=limits.name)
    if len(source) > limits.single:
        raise ArchiveInvalid(f"{name} has more than {limits.single} bytes.")
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveInvalid(f"{name} is not Python source in UTF-8.") from error
    if "\0" in text:
        raise ArchiveInvalid(f"{name} contains a zero byte: it is not Python source.")
    return Contents("py", (name,), name)


def _inspect_zip(file: BinaryIO, size: int, limits: Limits) -> Contents:
    directory_at = _check_end(file, size, limits)
    with _open_zip(file) as archive:
        members = archive.infolist()
        if len(members) > limits.members:
            raise ArchiveInvalid(f"There are {len(members)} members; the limit is {limits.members}.")
        for member in members:
            _check_member(member, limits)
        _check_names(members)
        _check_overlap(file, members, directory_at)
        total, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
        if total > limits.total:
            raise ArchiveInvalid(f"The members have {total} bytes; the limit is {limits.total}.")
        if total > _MIN_BYTES_FOR_RATIO and total > limits.ratio * max(packed, 1):
            raise ArchiveInvalid(f"The members are {total} bytes packed into {packed}: more than {limits.ratio} to 1.")
        sources = [member for member in members if not member.is_dir()]
        jobs = [member.orig_filename for member in sources if _is_job_file(archive, member)]
        files = tuple(member.orig_filename for member in sources)
        if not files:
            raise ArchiveInvalid("The archive contains no file.")
        return Contents("zip", files, jobs[0] if len(jobs) == 1 else None)


@contextlib.contextmanager
def _open_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError) as error:
        raise ArchiveInvalid(f"The archive is damaged: {str(error).rstrip('.')}.") from error


def _check_end(file: BinaryIO, size: int, limits: Limits) -> int:
    """Offset of the central directory. Checked first: its size decides the memory for reading it."""
    tail_at = max(0, size - _END_RECORD.size - 0xFFFF)
    file.seek(tail_at)
    tail = file.read()
    at = len(tail) - _END_RECORD.size
    if at < 0:
        raise ArchiveInvalid("The archive is truncated.")
    # Same search as in `zipfile`, so that both use the same directory.
    if not (tail[at:].startswith(b"PK\5\6") and tail.endswith(b"\0\0")):
        at = tail.rfind(b"PK\5\6")
    if at < 0 or at + _END_RECORD.size > len(tail):
        raise ArchiveInvalid("The archive is truncated.")
    _, disk, first_disk, here, entries, directory, offset, comment = _END_RECORD.unpack_from(tail, at)
    if tail_at + at + _END_RECORD.size + comment != size:
        raise ArchiveInvalid("The archive has bytes after its end.")
    if b"PK\6\7" in tail[max(0, at - 20) : at] or disk or first_disk or here != entries:
        raise ArchiveInvalid("The archive is in the 64-bit format or has several volumes, which code does not need.")
    # 46 bytes for each entry, its name, and optional fields (times, owners).
    if entries > limits.members or directory > limits.members * (46 + limits.name + 128):
        raise ArchiveInvalid(f"There are more than {limits.members} members, or their directory is too large.")
    if offset + directory != tail_at + at:
        raise ArchiveInvalid("The archive has bytes before its start or between its parts.")
    return int(offset)


def _check_member(member: zipfile.ZipInfo, limits: Limits) -> None:
    # `orig_filename`: `filename` is cut at a zero byte.
    name = member.orig_filename
    check_name(name, limit=limits.name)
    if member.flag_bits & _ENCRYPTED:
        raise ArchiveInvalid(f"{name} is encrypted.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveInvalid(f"{name} has compression method {member.compress_type}; only deflate is supported.")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in _UNIX_KINDS or (kind == stat.S_IFDIR and not member.is_dir()):
        raise ArchiveInvalid(f"{name} is not a plain file or folder (for example a link or a device).")
    if member.is_dir() and member.file_size:
        raise ArchiveInvalid(f"{name} is a folder with content.")
    if member.file_size > limits.single:
        raise ArchiveInvalid(f"{name} has {member.file_size} bytes; the limit is {limits.single}.")
    if member.file_size > _MIN_BYTES_FOR_RATIO and member.file_size > limits.ratio * max(member.compress_size, 1):
        raise ArchiveInvalid(f"{name} is packed more than {limits.ratio} to 1.")


def _check_names(members: list[zipfile.ZipInfo]) -> None:
    seen: dict[str, str] = {}
    files: set[str] = set()
    for member in members:
        key = _fold_name(member.orig_filename)
        if key in seen:
            raise ArchiveInvalid(f"{member.orig_filename} and {seen[key]} are the same name on some systems.")
        seen[key] = member.orig_filename
        if not member.is_dir():
            files.add(key)
    spellings: dict[str, str] = {}
    for member in members:
        parts = member.orig_filename.removesuffix("/").split("/")
        for depth in range(1, len(parts) + member.is_dir()):
            folder = "/".join(parts[:depth])
            key = _fold_name(folder)
            if key in files or spellings.setdefault(key, folder) != folder:
                raise ArchiveInvalid(f"{folder} is also a file, or a folder with two spellings.")


def _fold_name(name: str) -> str:
    return unicodedata.normalize("NFC", name.removesuffix("/")).casefold()


def _check_overlap(file: BinaryIO, members: list[zipfile.ZipInfo], directory_at: int) -> None:
    """Check that no two members share bytes, because overlapping members unpack to far more than the file's size."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if member.header_offset < end or len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
            raise ArchiveInvalid(f"{member.orig_filename} shares bytes with another member, or has no valid header.")
        *_, name, extra = _LOCAL_HEADER.unpack(header)
        end = member.header_offset + _LOCAL_HEADER.size + name + extra + member.compress_size
    if end > directory_at:
        raise ArchiveInvalid("A member reaches into the archive's directory.")


def _chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Read a member. `zipfile` reads at most the size in the entry, and its checksum detects a wrong entry."""
    size = 0
    with archive.open(member) as content:
        while chunk := content.read(_CHUNK_BYTES):
            size += len(chunk)
            yield chunk
    if size != member.file_size:
        raise ArchiveInvalid(f"{member.orig_filename} has {size} bytes; its entry has {member.file_size}.")


def _is_job_file(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    """Whether a member is a job file. Reads the member to its end, so that a damaged member is rejected here."""
    is_python = member.orig_filename.endswith(".py")
    source = bytearray()
    for chunk in _chunks(archive, member):
        if is_python and len(source) < (1 << 20):
            source += chunk
    return b"clonos" in source and _JOB_DECORATOR.search(source) is not None
