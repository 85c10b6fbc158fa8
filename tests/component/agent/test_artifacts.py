"""Artifacts of an agent: hostile archives, damaged downloads and the stored files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
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


def linked() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("link/")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


# More are in `component/security/test_archives.py`.
HOSTILE = {
    "parent": packed(("../out", b"x")),
    "folder link": packed((linked(), b"")),
    "too large": packed(("big", os.urandom(6 << 20)), method=zipfile.ZIP_STORED),
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


def test_run_of_a_hostile_archive_is_final(api: FakeApi, host: Host, run: str) -> None:
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
