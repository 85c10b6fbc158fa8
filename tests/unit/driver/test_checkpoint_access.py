"""Errors of a checkpoint's file system are typed: one that does not answer is waited for."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from clonos.driver.checkpoint import CheckpointDirectory, unusable
from clonos.errors import CheckpointUnavailable, CheckpointUnwritable, EpochFailed


def java_exception(name: str, cause: Any = None, *, remote: str = "") -> Any:
    kind = SimpleNamespace(getSimpleName=lambda: name)
    return SimpleNamespace(
        getClass=lambda: kind, getCause=lambda: cause, toString=lambda: f"x.{name}: why", getClassName=lambda: remote
    )


def java_error(exception: Any) -> Py4JJavaError:
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = exception
    return error


@pytest.mark.parametrize(
    ("exception", "away"),
    [
        (java_exception("ConnectException"), True),
        (java_exception("IOException", java_exception("SocketTimeoutException")), True),
        (java_exception("RemoteException", remote="org.apache.hadoop.hdfs.server.namenode.SafeModeException"), True),
        (java_exception("AccessControlException"), False),
        (java_exception("RemoteException", remote="org.apache.hadoop.security.AccessControlException"), False),
        (java_exception("IOException", java_exception("IOException")), False),  # a full disk
    ],
)
def test_an_outage_is_told_from_a_refusal_by_the_causes(exception: Any, away: bool) -> None:  # codespell:ignore
    error = unusable("hdfs://host/x", java_error(exception))
    assert type(error) is (CheckpointUnavailable if away else CheckpointUnwritable)
    assert error.outage == away
    assert f"{exception.toString()}" in error.what


@pytest.mark.parametrize(
    ("number", "away"), [(errno.ESTALE, True), (errno.ETIMEDOUT, True), (errno.EIO, False), (errno.EMFILE, False)]
)
def test_a_mounted_file_system_that_does_not_answer_is_an_outage(
    number: int, away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CheckpointDirectory.__new__(CheckpointDirectory)
    directory.location, directory._local = str(tmp_path), str(tmp_path)
    (tmp_path / "offsets").mkdir()

    def fail(*_arguments: object, **_options: object) -> Any:
        raise OSError(number, "it does not work")

    assert directory.offsets() == []
    for method, read in (("iterdir", directory.offsets), ("read_text", lambda: directory.read_text("owner.json"))):
        with monkeypatch.context() as broken:
            broken.setattr(Path, method, fail)
            with pytest.raises(CheckpointUnavailable if away else EpochFailed):
                read()
    assert directory.read_text("owner.json") is None
