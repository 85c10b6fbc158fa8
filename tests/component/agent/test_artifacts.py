"""Artifacts of an agent: hostile archives, damaged downloads and the stored files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import struct
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from clonos.agent.artifacts import Artifacts
from clonos.errors import ArchiveInvalid, ArtifactUnavailable
from clonos.jobs.spec import JobSpec
from clonos.resources.archives import Limits
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec
from component.agent.test_supervising import reported

Host = Callable[..., ThreadAgent]
SMALL = Limits(archive=5 << 20, members=50, total=5 << 20, ratio=100)


def packed(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in (("job.py", b"pass"), *members):
            archive.writestr(name, content)
    return out.getvalue()


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    return info


def named(raw: bytes) -> bytes:
    """An archive whose member has a name that `zipfile` would not write."""
    return packed(("x" * len(raw), b"")).replace(b"x" * len(raw), raw)


def overlapping() -> bytes:
    """Directory entries that share the bytes of one member."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("job.py", os.urandom(100_000))
        first = archive.infolist()[0]
        for number in range(20):
            entry = zipfile.ZipInfo(f"copy{number}")
            for name in ("compress_type", "header_offset", "file_size", "compress_size", "CRC"):
                setattr(entry, name, getattr(first, name))
            archive.filelist.append(entry)
            archive.NameToInfo[entry.filename] = entry
    return out.getvalue()


def flagged(content: bytes, bit: int) -> bytes:
    """The archive with a flag in the last entry of its directory."""
    at = content.rfind(b"PK\x01\x02")
    return content[: at + 8] + struct.pack("<H", bit) + content[at + 10 :]


HOSTILE = {
    "absolute": packed(("/etc/passwd", b"x")),
    "parent": packed(("../out", b"x")),
    "parent within": packed(("a/../../out", b"x")),
    "dot": packed(("./a", b"x")),
    "empty part": packed(("a//b", b"x")),
    "backslash": named(b"a\\..\\..\\out"),
    "drive": packed(("C:/out", b"x")),
    "nul": named(b"a\0b/evil"),
    "newline": packed(("a\nb", b"x")),
    "link": packed((special("link", stat.S_IFLNK), b"/etc/passwd")),
    "folder link": packed((special("link/", stat.S_IFLNK), b"")),
    "device": packed((special("dev", stat.S_IFCHR), b"")),
    "fifo": packed((special("pipe", stat.S_IFIFO), b"")),
    "socket": packed((special("sock", stat.S_IFSOCK), b"")),
    "twice": packed(("a", b"1"), ("A", b"2")),
    "twice in Unicode": packed(("\u00e9", b"1"), ("e\u0301", b"2")),
    "file and folder": packed(("a", b"1"), ("a/b", b"2")),
    "folder and file": packed(("a/b", b"2"), ("a", b"1")),
    "too many": packed(*((f"f{number}", b"") for number in range(60))),
    "too large": packed(("big", os.urandom(6 << 20)), method=zipfile.ZIP_STORED),
    "bomb": packed(("big", bytes(4 << 20))),
    "overlapping": overlapping(),
    "too long": packed(("x" * 300, b"")),
    "encrypted": flagged(packed(("a", b"x")), 1),
    "bzip2": packed(("a", b"x" * 100), method=zipfile.ZIP_BZIP2),
    "cut": packed(("a", os.urandom(1000)))[:-30],
    "damaged": packed(("a", b"x" * 100), method=zipfile.ZIP_STORED).replace(b"x" * 100, b"x" * 99 + b"y"),
    "no archive": b"PK\x03\x04 and then nothing",
    "no job file": packed()[:0] + (lambda out: (zipfile.ZipFile(out, "w").close(), out.getvalue())[1])(io.BytesIO()),
}


def placed(folder: Path, content: bytes, main: str = "job.py") -> Path:
    async def fetch(_sha: str) -> AsyncIterator[bytes]:
        yield content

    (folder / "cache").mkdir(exist_ok=True)
    artifacts = Artifacts(folder / "cache", fetch, SMALL)
    code = folder / "runs" / "r" / "code"
    code.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(artifacts.install(hashlib.sha256(content).hexdigest(), main, code))
    return code


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archive_writes_nothing(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ArchiveInvalid):
        placed(tmp_path, HOSTILE[kind])
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "cache"]
    assert left == []
    assert list((tmp_path / "runs" / "r").iterdir()) == []


@pytest.mark.parametrize("main", ["../job.py", "/job.py", "a/../../job.py", "a\0b"])
def test_job_file_must_be_inside_the_artifact(tmp_path: Path, main: str) -> None:
    for content in (packed(), b"pass"):
        with pytest.raises(ArchiveInvalid):
            placed(tmp_path, content, main)


def test_valid_archive_is_installed_completely(tmp_path: Path) -> None:
    big = os.urandom(3 << 20)
    folder = zipfile.ZipInfo("empty/")
    code = placed(tmp_path, packed(("lib/a.py", b"1"), (folder, b""), ("lib/data.bin", big), ("é.txt", b"2")))
    assert (code / "lib" / "a.py").read_bytes() == b"1"
    assert (code / "lib" / "data.bin").read_bytes() == big
    assert (code / "empty").is_dir()
    assert (code / "é.txt").read_bytes() == b"2"
    placed(tmp_path, packed())
    assert [path.name for path in code.iterdir()] == ["job.py"], "the previous code is replaced"


def test_single_file_is_the_job_file(tmp_path: Path) -> None:
    assert (placed(tmp_path, b"pass", "jobs/count.py") / "jobs" / "count.py").read_bytes() == b"pass"


def test_artifact_is_downloaded_once_and_never_used_damaged(tmp_path: Path) -> None:
    content = b"pass  # whole"
    sha = hashlib.sha256(content).hexdigest()
    served = [b"pass  # other", content[:5], content]
    fetched = []

    async def fetch(sha: str) -> AsyncIterator[bytes]:
        fetched.append(sha)
        yield served.pop(0)

    async def both() -> None:
        artifacts = Artifacts(tmp_path, fetch, SMALL)
        files = await asyncio.gather(artifacts.get(sha), artifacts.get(sha))
        assert [file.read_bytes() for file in files] == [content, content]
        assert len(fetched) == 3
        files[0].write_bytes(b"something else on the disk")
        served.append(content)
        assert (await artifacts.get(sha)).read_bytes() == content
        assert len(fetched) == 4
        files[0].unlink()
        served.extend([b"", b"x", b"y"])
        with pytest.raises(ArtifactUnavailable):
            await artifacts.get(sha)
        with pytest.raises(ArchiveInvalid):
            await artifacts.get("../" + sha[3:])

    asyncio.run(both())
    assert list(tmp_path.iterdir()) == []


def test_run_waits_for_an_undamaged_download(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"until_stopped()")
    api.served[code] = [b"until_", b"something else", b"", b"until_stopped"]
    api.assign(run_spec(run, code))
    host()
    report = reported(api, run, "RUNNING")
    assert (report.attempts, report.failure) == (1, None)
    assert api.downloads[code] == 5
    assert any(past.failure and past.failure.error == "artifact-unavailable" for past in api.history[run])


def test_run_of_a_hostile_archive_is_final(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    api.assign(run_spec(run, api.upload(HOSTILE["parent"])))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert report.failure is not None
    assert (report.failure.error, report.failure.domain, report.attempts) == ("archive-invalid", "user", 0)


def test_two_runs_of_an_artifact_download_it_once(api: FakeApi, host: Host, run: str) -> None:
    spec = JobSpec.model_validate({"metadata": {"name": "fake"}, "spec": {"main": "src/main.py"}})
    code = api.upload(packed(("src/main.py", b"until_stopped()")))
    api.assign(run_spec(run, code, spec=spec), run_spec(f"{run}b", code, spec=spec))
    host()
    reported(api, run, "RUNNING")
    reported(api, f"{run}b", "RUNNING")
    assert api.downloads[code] == 1
    api.assign()
    eventually(lambda: not api.reports, "both runs are removed")
