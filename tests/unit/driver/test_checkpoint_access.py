"""Errors of a checkpoint's file system are typed: one that does not answer is waited for."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from clonos.driver.checkpoint import CheckpointDirectory, unusable
from clonos.driver.checkpoint_owner import OWNER_FILE
from clonos.errors import CheckpointUnavailable, CheckpointUnwritable, EpochFailed
from clonos.spark.local_folder import LocalFolder
from clonos.spark.stored_files import StoredFolder


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


class Store:
    """A file system of Hadoop that refuses all access above ``/jobs``."""

    def __init__(self, refusal: str = "AccessDeniedException") -> None:
        self._refusal = refusal

    def exists(self, path: Any) -> bool:
        if not str(path.text).startswith("/jobs"):
            raise java_error(java_exception("IOException", java_exception(self._refusal)))
        return False


class StorePath:
    """As Hadoop's ``Path``: a scheme without a path is refused."""

    def __init__(self, text: Any, name: str = "") -> None:
        base = text.scheme + text.text if isinstance(text, StorePath) else str(text)
        scheme, colon, path = base.rpartition(":")
        if not path:
            raise java_error(java_exception("URISyntaxException"))
        self.scheme = scheme + colon
        path = f"/{path.strip('/')}"
        self.text = f"{path.rstrip('/')}/{name}" if name else path

    def getParent(self) -> StorePath | None:  # noqa: N802
        parent = self.text.rpartition("/")[0]
        return StorePath(self.scheme + (parent or "/")) if self.text != "/" else None

    def toString(self) -> str:  # noqa: N802
        return self.scheme + self.text

    def getFileSystem(self, configuration: Any) -> Any:  # noqa: N802
        return configuration


def stored(store: Store, location: str = "/jobs/one/out") -> tuple[CheckpointDirectory, StoredFolder]:
    directory = CheckpointDirectory.__new__(CheckpointDirectory)
    directory.location, directory._local = location, None
    directory._fs, directory._path = store, StorePath
    jvm: Any = SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=StorePath))))
    )
    return directory, StoredFolder(jvm, store, location)


def test_a_refusal_above_the_checkpoint_counts_as_no_file() -> None:
    """A user of an object store may have rights below a prefix of the bucket only."""
    directory, folder = stored(Store())
    assert not any(directory.texts_above(OWNER_FILE))
    assert not any(folder.texts_above(OWNER_FILE))
    directory, folder = stored(Store("SomethingElse"))
    with pytest.raises(EpochFailed):
        directory.texts_above(OWNER_FILE)
    with pytest.raises(OSError, match="IOException"):
        folder.texts_above(OWNER_FILE)


def test_owner_files_are_read_up_to_the_root_of_any_file_system() -> None:
    """A savepoint of a job on S3 may be taken into a local folder."""
    for folder in stored(Store(), "file:///jobs/one/out"):
        assert folder.texts_above(OWNER_FILE) == [None, None]  # the root of the file system is refused


@pytest.mark.parametrize("location", ["/jobs/one/out", "hdfs:///jobs/one/out", "file:///jobs/one/out"])
def test_folders_beside_one_have_its_spelling(location: str) -> None:
    """Hadoop's own has a scheme and a host: a restore took its newest replaced checkpoint for an older one."""
    names = ("out", "out.before-one", "out.before-two", "other.before-one")
    found = [SimpleNamespace(getPath=lambda name=name: SimpleNamespace(getName=lambda: name)) for name in names]
    _, folder = stored(Store(), location)
    folder._folder = SimpleNamespace(getName=lambda: "out", getParent=lambda: "/jobs/one")
    folder._fs = SimpleNamespace(listStatus=lambda _folder: found)
    assert [beside.location for beside in folder.siblings(".before-")] == [
        f"{location}.before-one",
        f"{location}.before-two",
    ]


def test_a_refusal_above_a_local_checkpoint_counts_as_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "one" / "out"
    place.mkdir(parents=True)
    (tmp_path / "one" / OWNER_FILE).write_text("text")
    directory = CheckpointDirectory.__new__(CheckpointDirectory)
    directory.location = directory._local = str(place)
    read_text = Path.read_text

    def refusing(file: Path, **options: Any) -> str:
        if not file.is_relative_to(tmp_path / "one"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_text(file, **options)

    monkeypatch.setattr(Path, "read_text", refusing)
    for texts in (directory.texts_above(OWNER_FILE), LocalFolder(str(place)).texts_above(OWNER_FILE)):
        assert [text for text in texts if text] == ["text"]


def test_missing_state_of_a_local_checkpoint_needs_no_jvm(tmp_path: Path) -> None:
    directory = CheckpointDirectory.__new__(CheckpointDirectory)
    directory.location = directory._local = str(tmp_path)  # no `_fs`
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").write_text('v2\n{"stateUniqueIds":{"0":[["a"],["b"]]}}')
    for part in ("0", "1"):
        assert directory.lacks_state()
        (tmp_path / "state" / "0" / part).mkdir(parents=True)
    assert not directory.lacks_state()
