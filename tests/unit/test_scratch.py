"""The folder for temporary files of a driver, and the limit of open files."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from clonos import host_inputs
from clonos.errors import EnvironmentFault, ScratchUnwritable
from clonos.scratch import own_scratch

_HOLD = (
    "import pathlib, sys; from clonos.scratch import own_scratch\n"
    "with own_scratch(pathlib.Path(sys.argv[1])) as folder: print(folder, flush=True); sys.stdin.read()"
)


def test_a_driver_has_a_folder_of_its_own_and_removes_those_of_killed_ones(tmp_path: Path) -> None:
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        folders = [Path((holder.stdout.readline() if holder.stdout else "").strip()) for holder in holders]
        assert all(folder.is_dir() for folder in folders)
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        before = os.environ.get("TMPDIR")
        with own_scratch(tmp_path) as folder:
            assert (tempfile.gettempdir(), os.environ["TMPDIR"]) == (str(folder), str(folder))
            assert [each.exists() for each in folders] == [False, True], "only the killed process's folder is removed"
        assert not folder.exists()
        assert os.environ.get("TMPDIR") == before
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ScratchUnwritable, match="file"), own_scratch(tmp_path / "file" / "scratch"):
        pass


def test_a_low_limit_of_open_files_is_raised_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.__setitem__(slice(None), pair))
    host_inputs.require_files()
    assert limits == [4096, 4096]
    limits[:] = [256, 256]
    with pytest.raises(EnvironmentFault, match="only 256 files") as refused:
        host_inputs.require_files()
    assert "LimitNOFILE" in refused.value.hint
