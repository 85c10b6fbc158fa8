"""The packages of a job: what a lock may contain, and folders of installed packages, with real uv."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from clonos.client.packing import pack_file, pack_folder
from clonos.client.submission import read_submission
from clonos.errors import PackagesInvalid, PackagesUnavailable
from clonos.jobs import packages
from clonos.jobs.code_files import code_files
from clonos.jobs.packages import LOCK, Lock, environment, install, prune, read_lock
from support.wheels import list_files, only_from, wheel

_HASH = f"--hash=sha256:{'0' * 64}"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in only_from(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def lock_file(folder: Path, *lines: str) -> Path:
    path = folder / LOCK
    path.write_text("\n".join(lines))
    return path


def locked(folder: Path, *lines: str) -> Lock:
    return read_lock(lock_file(folder, *lines))


def test_a_lock_of_uv_is_read(tmp_path: Path) -> None:
    lock = locked(
        tmp_path,
        "# This file was made by uv",
        f"Scikit_Learn==1.5.0 ; python_version >= '3.11' \\\n    {_HASH} \\\n    {_HASH}",
        "    # via -r requirements.in",
        f"httpx[http2]==0.27 {_HASH}  # pinned",
        f"pywin32==306 ; sys_platform == 'win32' \\\n    {_HASH}",
        "",
    )
    assert lock.versions == {"scikit-learn": "1.5.0", "httpx": "0.27"}
    assert len(lock.requirements) == 3
    assert lock.digest == locked(tmp_path, *lock.requirements).digest
    assert lock.digest != locked(tmp_path, *lock.requirements[:2]).digest


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("numpy", "no exact version"),
        ("numpy==2.1", "no exact version with hashes"),
        (f"numpy>=2.1 {_HASH}", "no exact version"),
        (f"numpy==2.* {_HASH}", "no exact version"),
        (f"numpy==2.1,!=2.1.1 {_HASH}", "no exact version"),
        (f"numpy @ http://127.0.0.1/numpy.whl {_HASH}", "no exact version"),
        ("-r /etc/passwd", "is not a requirement"),
        ("--index-url http://elsewhere.example/simple", "is not a requirement"),
        ("-e .", "is not a requirement"),
        (f"./numpy.whl {_HASH}", "is not a requirement"),
        (f"pyspark==4.2.0 {_HASH}", "pins pyspark, which every driver has"),
        (f"Clonos==0.2 {_HASH}", "pins clonos"),
        ("\x00", "is not a requirement"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(PackagesInvalid, match=why):
        locked(tmp_path, line)


def version_of(module: str, folder: Path) -> str:
    code = f"import {module}; print({module}.VERSION)"
    variables = {**os.environ, **environment(folder, os.environ)}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True).stdout.strip()


def test_two_versions_of_a_package_are_installed_side_by_side(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (locked(tmp_path, wheel(wheels, "greeting", version)) for version in ("1.0", "2.0"))
    one, two = (install(lock, tmp_path / "home") for lock in (first, second))
    assert (version_of("greeting", one), version_of("greeting", two)) == ("1.0", "2.0")
    assert sorted(path.name for path in one.parent.iterdir() if not path.name.endswith(".lock")) == sorted(
        [one.name, two.name]
    ), "nothing else is left"
    monkeypatch.setattr(packages, "_run_uv", None)
    assert install(first, tmp_path / "home") == one, "it is installed once"


def test_packages_in_use_are_used_by_a_second_driver_too(tmp_path: Path, wheels: Path) -> None:
    """A driver holds the lock of its packages as long as it lives."""
    lock = locked(tmp_path, wheel(wheels, "greeting", "1.0"))
    packages._hold(install(lock, tmp_path / "home"))
    second = threading.Thread(target=install, args=(lock, tmp_path / "home"), daemon=True)
    second.start()
    second.join(20)
    os.close(packages._held.pop())
    assert not second.is_alive(), "it waited for the end of the first driver"


def test_a_helper_in_the_current_folder_does_not_replace_a_module_of_the_new_start(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_file(tmp_path, wheel(wheels, "greeting", "1.0"))
    for helper in ("rich", "typer"):
        (tmp_path / f"{helper}.py").write_text("raise SystemExit('the helper was imported')")
    starts: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _program, command, variables: starts.append((command, variables)))
    monkeypatch.setattr(packages, "_hold", lambda _folder: None)
    monkeypatch.setattr(sys, "argv", ["clonos", "--version"])
    packages.activate(tmp_path / "job.py", tmp_path / "home")
    [(command, variables)] = starts
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_file_that_the_index_does_not_have_is_not_tried_again(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = wheel(wheels, "greeting", "1.0")
    next((wheels / "greeting").glob("*.whl")).unlink()
    index = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(wheels)))
    threading.Thread(target=index.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{index.server_port}")
    try:
        with pytest.raises(PackagesInvalid, match=r"uv: .*404"):
            install(locked(tmp_path, line), tmp_path / "home")
    finally:
        index.shutdown()
        index.server_close()


def test_the_paths_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    base = {"PYTHONPATH": f"/a{os.pathsep}/old", packages.ACTIVE: "/old"}
    assert environment(tmp_path, base) == {packages.ACTIVE: str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}/a"}
    assert environment(None, base) == {}


def test_what_uv_refuses_is_quoted(tmp_path: Path, wheels: Path) -> None:
    line = wheel(wheels, "greeting", "1.0")
    other = wheel(wheels, "other", "1.0").partition("--hash")[2]
    with pytest.raises(PackagesInvalid, match=r"uv: .*[Hh]ash mismatch.*greeting"):
        install(locked(tmp_path, line.partition("--hash")[0] + f"--hash{other}"), tmp_path / "home")
    with pytest.raises(PackagesInvalid, match=r"uv: .*missing"):
        install(locked(tmp_path, f"missing==1.0 {_HASH}"), tmp_path / "home")
    left = [path.name for path in (tmp_path / "home" / "packages").iterdir()]
    assert all(name.endswith(".lock") for name in left), "nothing half installed is left"


def test_code_of_a_package_is_not_built(tmp_path: Path, wheels: Path) -> None:
    """A source distribution would run its own code as the agent's user."""
    import hashlib
    import tarfile

    (wheels / "greeting").mkdir()
    source = wheels / "greeting" / "greeting-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name, text in {"setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')", "PKG-INFO": "Name: greeting"}.items():
            member = tarfile.TarInfo(f"greeting-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    list_files(source.parent)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with pytest.raises(PackagesInvalid, match=r"wheel|binary|source"):
        install(locked(tmp_path, f"greeting==1.0 --hash=sha256:{digest}"), tmp_path / "home")
    assert not (tmp_path / "ran").exists()


def test_an_index_that_does_not_answer_is_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PackagesUnavailable, match="uv: ") as failure:
        install(locked(tmp_path, f"greeting==1.0 {_HASH}"), tmp_path / "home")
    assert failure.value.retry
    assert "UV_DEFAULT_INDEX" in failure.value.hint


def test_a_folder_that_cannot_be_written_is_an_error_of_the_host(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(PackagesUnavailable, match=r"cannot be stored in .*home"):
        install(locked(tmp_path, wheel(wheels, "greeting", "1.0")), tmp_path / "home")


def test_versions_that_do_not_fit_the_driver_are_refused(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(PackagesInvalid, match=r"pins pyarrow 1\.0, but clonos .* needs pyarrow>=18"):
        install(locked(tmp_path, wheel(wheels, "pyarrow", "1.0")), tmp_path / "home")


def test_requirements_come_from_the_lock_or_the_driver(tmp_path: Path, wheels: Path) -> None:
    line = wheel(wheels, "greeting", "1.0", requires=["words>=2", "msgspec", "nothing; extra == 'more'"])
    with pytest.raises(PackagesInvalid, match=r"greeting 1\.0 needs words>=2, and the job has none"):
        install(locked(tmp_path, line), tmp_path / "home")
    with pytest.raises(PackagesInvalid, match=r"needs words>=2, and the job has 1\.0"):
        install(locked(tmp_path, line, wheel(wheels, "words", "1.0")), tmp_path / "home")
    assert (
        version_of("words", install(locked(tmp_path, line, wheel(wheels, "words", "2.1")), tmp_path / "home")) == "2.1"
    )


def test_unused_packages_are_removed(tmp_path: Path) -> None:
    cache = tmp_path / "packages"
    now = time.time()
    for number in range(14):
        (cache / f"p{number:02}").mkdir(parents=True)
        (cache / f"p{number:02}.lock").touch()
        os.utime(cache / f"p{number:02}.lock", (now - number, now - number))
    os.utime(cache / "p03.lock", (now - 8 * 86_400, now - 8 * 86_400))
    for name, age_s in {".build-killed": 3600, ".build-now": 60}.items():
        (cache / name).mkdir()
        os.utime(cache / name, (now - age_s, now - age_s))
    code = f"from clonos.jobs import packages as p; from pathlib import Path; p._hold(Path({str(cache / 'p12')!r}))"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        prune(tmp_path)
        left = sorted(path.name for path in cache.iterdir() if path.is_dir())
        assert left.pop(0) == ".build-now"
        assert left == [f"p{number:02}" for number in range(11) if number != 3] + ["p12"], "p12 is in use"
    finally:
        holder.communicate(b"\n", timeout=60)
    prune(tmp_path)
    assert not (cache / "p12").exists()


def test_the_lock_belongs_to_the_code(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import clonos\n")
    assert LOCK not in code_files(job)
    assert pack_file(job).name == "job.py"
    lock_file(tmp_path, f"greeting==1.0 {_HASH}")
    before = code_files(job)[LOCK]
    packed = pack_file(job)
    assert packed.main == "job.py"
    with zipfile.ZipFile(BytesIO(packed.content)) as archive:
        assert archive.namelist() == ["job.py", LOCK]
    assert packed.content == pack_folder(tmp_path, "job.py").content
    lock_file(tmp_path, f"greeting==1.1 {_HASH}")
    assert code_files(job)[LOCK] != before


def test_a_lock_that_hosts_would_refuse_is_not_submitted(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text('import clonos\n\n@clonos.job(name="a")\ndef a(ctx): ...\n')
    lock_file(tmp_path, "greeting>=1")
    for path in (tmp_path, tmp_path / "job.py"):
        with pytest.raises(PackagesInvalid, match="greeting>=1"):
            read_submission(path)
