"""Generated hostile archives: none is written to disk, and their validation uses little memory."""

from __future__ import annotations

import io
import os
import random
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.errors import ArchiveInvalid
from clonos.resources import archives
from clonos.resources.archives import Limits, inspect, unpack

JOB = "import clonos\n\n\n@clonos.job(name='x')\ndef x(job):\n    pass\n"
SMALL = Limits(archive=1 << 20, members=20, single=1 << 16, total=1 << 18, ratio=200, name=100)


def entry(name: str, *, mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_STORED) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = method
    return info


def zipped(*members: tuple[zipfile.ZipInfo | str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def named(name: str) -> bytes:
    """Returns an archive with one member of exactly this name; `zipfile` would normalize it."""
    placeholder = "p" * len(name.encode())
    return zipped((entry(placeholder), "x")).replace(placeholder.encode(), name.encode())


def patched(content: bytes, at: int, how: str, value: int, *, start: bytes = b"PK\1\2") -> bytes:
    """Changes a number in the first central (or other) header."""
    place = content.index(start) + at
    return content[:place] + struct.pack(how, value) + content[place + struct.calcsize(how) :]


def overlapping() -> bytes:
    """Two entries with the same content, so that a small file claims many large members."""
    content = zipped((entry("a.txt", method=zipfile.ZIP_DEFLATED), b"\0" * 60_000))
    at, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    central = content[at:end]
    both = central + central.replace(b"a.txt", b"b.txt")
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(both), at, 0)
    return content[:at] + both + tail


def quoted() -> bytes:
    """A member inside the content of another; each is valid alone."""
    inner = zipped((entry("b.txt"), b"x" * 50_000))
    header = inner[: inner.index(b"PK\1\2")]
    outer = zipped((entry("a.txt"), header))
    at = outer.index(b"PK\1\2", outer.index(header) + len(header))
    central, tail = outer[at : outer.rindex(b"PK\5\6")], inner[inner.index(b"PK\1\2") : inner.rindex(b"PK\5\6")]
    both = central + patched(tail, 42, "<L", outer.index(header))
    return outer[:at] + both + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, len(both), at, 0)


def many() -> bytes:
    return zipped(*[(entry(f"f{n}"), "") for n in range(SMALL.members + 1)])


def zip64() -> bytes:
    content = zipped((entry("a"), "x"))
    end = content.index(b"PK\5\6")
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, end - content.index(b"PK\1\2"), 0)
    return content[:end] + record + struct.pack("<4sLQL", b"PK\6\7", 0, end, 1) + content[end:]


def hidden_zip64() -> bytes:
    """The plain end counts the 64-bit one to the directory, so that two readers see two directories."""
    content = zip64()
    length = 56 + 20
    size = struct.unpack_from("<L", content, content.index(b"PK\5\6") + 12)[0]
    return patched(content, 12, "<L", size + length, start=b"PK\5\6")


DEFLATED = zipped((entry("a", method=zipfile.ZIP_DEFLATED), b"\0" * 50_000))
HOSTILE: dict[str, Callable[[], bytes]] = {
    "absolute": lambda: named("/etc/passwd"),
    "parent": lambda: named("../evil.py"),
    "parent inside": lambda: named("a/../../evil.py"),
    "dot": lambda: named("./evil.py"),
    "empty part": lambda: named("a//b.py"),
    "backslash": lambda: named("a\\b.py"),
    "parent, backslashes": lambda: named("..\\..\\evil.py"),
    "drive": lambda: named("C:evil.py"),
    "stream": lambda: named("a.py:evil"),
    "newline": lambda: named("a\nb.py"),
    "zero byte": lambda: named("a.py\0.txt"),
    "escape": lambda: named("a\x1b[2J.py"),
    "ends in a dot": lambda: named("evil.py."),
    "ends in a space": lambda: named("a /b.py"),
    "long name": lambda: zipped((entry("n" * (SMALL.name + 1)), "x")),
    "long name, few characters": lambda: zipped((entry("ü" * (SMALL.name // 2 + 1)), "x")),
    "link": lambda: zipped((entry("l", mode=stat.S_IFLNK | 0o777), "/etc/passwd")),
    "link to a folder, and through it": lambda: zipped(
        (entry("d", mode=stat.S_IFLNK | 0o777), "/tmp"), (entry("d/evil.py"), "x")
    ),
    "character device": lambda: zipped((entry("c", mode=stat.S_IFCHR | 0o666), "")),
    "block device": lambda: zipped((entry("b", mode=stat.S_IFBLK | 0o666), "")),
    "pipe": lambda: zipped((entry("p", mode=stat.S_IFIFO | 0o666), "")),
    "socket": lambda: zipped((entry("s", mode=stat.S_IFSOCK | 0o666), "")),
    "folder that is a file": lambda: zipped((entry("d", mode=stat.S_IFDIR | 0o755), "")),
    "folder with content": lambda: zipped((entry("d/"), "x")),
    "only folders": lambda: zipped((entry("d/", mode=stat.S_IFDIR | 0o755), "")),
    "twice": lambda: zipped((entry("a.py"), "1"), (entry("b.py"), "2")).replace(b"b.py", b"a.py"),
    "case": lambda: zipped((entry("Job.py"), "1"), (entry("job.py"), "2")),
    "case of a folder": lambda: zipped((entry("Lib/a.py"), "1"), (entry("lib/b.py"), "2")),
    "two spellings": lambda: zipped((entry("caf\u00e9.py"), "1"), (entry("cafe\u0301.py"), "2")),
    "file and folder": lambda: zipped((entry("a"), "1"), (entry("a/b.py"), "2")),
    "folder and file": lambda: zipped((entry("a/b.py"), "2"), (entry("A"), "1")),
    "encrypted": lambda: patched(zipped((entry("a"), "x")), 8, "<H", 0x1),
    "strongly encrypted": lambda: patched(zipped((entry("a"), "x")), 8, "<H", 0x41),
    "masked directory": lambda: patched(zipped((entry("a"), "x")), 8, "<H", 0x2000),
    "bzip2": lambda: zipped((entry("a", method=zipfile.ZIP_BZIP2), "x" * 99)),
    "lzma": lambda: zipped((entry("a", method=zipfile.ZIP_LZMA), "x" * 99)),
    "unknown method": lambda: patched(zipped((entry("a"), "x")), 10, "<H", 97),
    "too many members": many,
    "large member": lambda: zipped((entry("a"), b"x" * (SMALL.single + 1))),
    "large in all": lambda: zipped(*[(entry(f"f{n}"), b"x" * SMALL.single) for n in range(5)]),
    "larger than it says": lambda: patched(DEFLATED, 24, "<L", 100),
    "smaller than it says": lambda: patched(DEFLATED, 24, "<L", 60_000),
    "wrong checksum": lambda: patched(DEFLATED, 16, "<L", 12345),
    "overlapping": overlapping,
    "one inside of the other": quoted,
    "64-bit": zip64,
    "64-bit, hidden": hidden_zip64,
    "several volumes": lambda: patched(DEFLATED, 4, "<H", 1, start=b"PK\5\6"),
    "count that lies": lambda: patched(patched(DEFLATED, 8, "<H", 9, start=b"PK\5\6"), 10, "<H", 1, start=b"PK\5\6"),
    "directory elsewhere": lambda: patched(DEFLATED, 16, "<L", 0, start=b"PK\5\6"),
    "large directory": lambda: patched(DEFLATED, 12, "<L", 0x7FFFFFFF, start=b"PK\5\6"),
    "member elsewhere": lambda: patched(DEFLATED, 42, "<L", 7),
    "other name inside": lambda: DEFLATED.replace(b"PK\3\4" + DEFLATED[4:30] + b"a", b"PK\3\4" + DEFLATED[4:30] + b"b"),
    "program in front": lambda: b"MZ" * 200 + DEFLATED,
    "something behind": lambda: DEFLATED + b"#!/bin/sh\n",
    "cut short": lambda: DEFLATED[:-10],
    "only an end": lambda: b"PK\3\4" + b"\0" * 40,
    "empty": lambda: zipped(),
    "no archive": lambda: b"hello",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "in" / "code.zip"
    path.parent.mkdir()
    path.write_bytes(HOSTILE[kind]())
    with pytest.raises(ArchiveInvalid):
        inspect(path, "code.zip", limits=SMALL)
    with pytest.raises(ArchiveInvalid):
        unpack(path, tmp_path / "out", limits=SMALL)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["code.zip", "in"]


def test_a_bomb_by_ratio_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"\0" * (40 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveInvalid, match="200 to 1"):
            inspect(path, "bomb.zip")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_directory_of_many_members_is_not_read(tmp_path: Path) -> None:
    """The reader of the standard library would create an object for each member."""
    central = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = central * 300_000
    path = tmp_path / "many.zip"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), 0, 0)
    path.write_bytes(directory + end)
    tracemalloc.start()
    try:
        with path.open("rb") as file, pytest.raises(ArchiveInvalid, match="directory"):
            archives._inspect_zip(file, path.stat().st_size, archives.LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_large_members_pass_through_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    noise = random.Random(1).randbytes(20 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.bin", noise)
    tracemalloc.start()
    try:
        inspect(path, "code.zip")
        unpack(path, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out" / "data.bin").read_bytes() == noise


def test_a_usual_archive_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("pkg")
        archive.writestr("pkg/__init__.py", "")
        archive.writestr("pkg/käse.py", "x = 1\n")
        archive.writestr("job.py", JOB)
        archive.comment = b"as git archive writes one"
        # A bomb inside is only data.
        archive.writestr("inner.zip", zipped((entry("z", method=zipfile.ZIP_DEFLATED), b"\0" * 1_000_000)))
    actual = inspect(path, "code.zip")
    assert (actual.kind, actual.main) == ("zip", "job.py")
    assert actual.files == ("pkg/__init__.py", "pkg/käse.py", "job.py", "inner.zip")
    written = unpack(path, tmp_path / "out")
    assert [path.relative_to(tmp_path / "out").as_posix() for path in written] == list(actual.files)
    assert (tmp_path / "out" / "job.py").read_text() == JOB


def test_file_modes_of_the_archive_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    path.write_bytes(zipped((entry("run.py", mode=stat.S_IFREG | 0o6777), "x")))
    [written] = unpack(path, tmp_path / "out")
    assert stat.S_IMODE(written.stat().st_mode) & 0o7133 == 0


def test_the_folder_must_be_new(tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    path.write_bytes(zipped((entry("a"), "x")))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        unpack(path, tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_failure_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "code.zip"
    path.write_bytes(zipped((entry("a"), "x"), (entry("b"), "x")))
    opened: list[int] = []
    real = os.open

    def full(*args: object, **how: object) -> int:
        opened.append(1)
        if len(opened) == 2:
            raise OSError(28, "No space left on device")
        return real(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(archives.os, "open", full)
    with pytest.raises(OSError, match="No space"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "main"),
    [
        ({"a.py": JOB}, "a.py"),
        ({"a.py": JOB, "b.py": "x = 1"}, "a.py"),
        ({"a.py": JOB, "b.py": JOB}, None),
        ({"a.py": "from clonos import job\n\n@job(name='x')\ndef x(job): ...\n"}, "a.py"),
        ({"a.py": "@other.job()\ndef x(): ...\n"}, None),
        ({"a.txt": JOB}, None),
    ],
)
def test_the_job_file_is_found_if_there_is_one(files: dict[str, str], main: str | None, tmp_path: Path) -> None:
    path = tmp_path / "code.zip"
    path.write_bytes(zipped(*[(entry(name), text) for name, text in files.items()]))
    assert inspect(path, "code.zip").main == main


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job.py", b"\xff\xfe"),
        ("job.py", b"x = 1\0"),
        ("job.py", b"x" * (SMALL.single + 1)),
        ("job.py", zipped((entry("a"), "x"))),
        ("job.pyc", b"x"),
        ("job.tar", b"x"),
        ("job.PY", b"x"),
        ("job", b"x"),
    ],
)
def test_other_uploads_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(content)
    with pytest.raises(ArchiveInvalid):
        inspect(path, name, limits=SMALL)


def test_a_python_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_text(JOB)
    assert inspect(path, "job.py", limits=SMALL).main == "job.py"


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_archive_is_accepted_or_refused(noise: bytes, at: int) -> None:
    """A damaged archive never raises another error, and an accepted archive unpacks below its directory."""
    content = zipped((entry("job.py", method=zipfile.ZIP_DEFLATED), JOB), (entry("b/c.txt"), "hello"))
    at %= len(content)
    damaged = content[:at] + noise + content[at + len(noise) :]
    file = io.BytesIO(damaged)
    try:
        actual = archives._inspect_zip(file, len(damaged), SMALL)
    except ArchiveInvalid:
        return
    for name in actual.files:
        archives.check_name(name)
