"""Savepoints as copies of files; `tests/integration/jobs/test_savepoint.py` has the same with Spark.

Mounted file systems have links. HDFS has none, and S3 renames no folder in one step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from clonos.agent.restoring import restore
from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import OWNER_FILE, JobOwner
from clonos.driver.savepoint import MANIFEST
from clonos.errors import CheckpointDamaged, CheckpointForeign, CheckpointUnwritable, SavepointMissing, SpecError
from clonos.spark import local_folder
from clonos.spark.local_folder import LocalFolder
from support.disk_folder import DiskFolder

OWNER = JobOwner("orders")
STATE = "state/0/0"
Open = Callable[..., Any]


def hdfs(path: Path, **arguments: Any) -> DiskFolder:
    return DiskFolder(path, objects=False, **arguments)


def mounted(path: Path) -> LocalFolder:
    return LocalFolder(f"file://{path}")


@pytest.fixture(params=[mounted, hdfs, DiskFolder], ids=["mounted", "HDFS", "S3"])
def folder(request: pytest.FixtureRequest) -> Open:
    """Opens a folder of each kind of file system."""
    opened: Open = request.param
    return opened


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def checkpoint(place: Path, *, committed: int = 4, oldest: int = 1) -> Path:
    """A checkpoint as Spark writes it, with the epoch after `committed` in progress."""
    query = place / "out"
    write(place / OWNER_FILE, json.dumps({"job": "orders", "lineage": 1}))
    write(query / "metadata", '{"id":"x"}')
    write(query / "sources" / "0" / "0", "{}")
    for epoch in range(oldest, committed + 2):
        write(query / "offsets" / str(epoch), f"offsets {epoch}")
        write(query / STATE / f"{epoch + 1}_{epoch:04}.changelog", f"state {epoch + 1}")
        if epoch <= committed:
            write(query / "commits" / str(epoch), f"commit {epoch}")
            write(query / "commits" / f".{epoch}.crc", "sum")
    write(query / STATE / f"{oldest + 1}_abcd.zip", "snapshot")
    write(query / STATE / "SSTs" / "9.sst", "table")
    write(query / STATE / ".7.changelog.tmp", "half")
    write(query / "offsets" / ".9.tmp", "half")
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "saved" / "kept"


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_a_savepoint_holds_what_the_newest_commit_needs(folder: Open, source: Path, kept: Path) -> None:
    taken = savepoint.take(folder(source), folder(kept), owner=OWNER)
    assert taken.epochs == {"out": 4}
    names = files(kept / "out")
    assert names == {
        *("metadata", "sources/0/0", f"{STATE}/SSTs/9.sst", f"{STATE}/2_abcd.zip"),
        *(f"offsets/{epoch}" for epoch in range(1, 5)),
        *(f"commits/{epoch}" for epoch in range(1, 5)),
        *(f"commits/.{epoch}.crc" for epoch in range(1, 5)),
        *(f"{STATE}/{epoch + 1}_{epoch:04}.changelog" for epoch in range(1, 5)),
    }
    assert files(kept.parent) == {f"kept/out/{name}" for name in names} | {f"kept/{MANIFEST}", f"kept/{OWNER_FILE}"}
    assert savepoint.read(folder(kept)) == taken
    assert not list(source.glob(".savepoint-*"))
    with pytest.raises(SpecError, match="already exists"):
        savepoint.take(folder(source), folder(kept), owner=OWNER)
    with pytest.raises(CheckpointForeign):
        savepoint.take(folder(source), folder(kept.with_name("b")), owner=JobOwner("bills"))
    savepoint.delete(folder(kept), OWNER)
    savepoint.delete(folder(kept), OWNER)
    assert not kept.exists()


def test_an_older_epoch_is_taken_while_it_is_retained(folder: Open, source: Path, kept: Path) -> None:
    assert savepoint.take(folder(source), folder(kept), epochs={"out": 2}, owner=OWNER).epochs == {"out": 2}
    assert not {name for name in files(kept) if name.endswith(("/3", "/4", "4_0003.changelog"))}
    with pytest.raises(SavepointMissing, match="Epoch 0 of out is not retained"):
        savepoint.take(folder(source), folder(kept.with_name("two")), epochs={"out": 0}, owner=OWNER)
    assert not kept.with_name("two").exists()


def test_the_rest_of_an_interrupted_copy_is_replaced(folder: Open, source: Path, kept: Path) -> None:
    write(kept / ".draft")
    write(kept / "old")
    savepoint.take(folder(source), folder(kept), owner=OWNER)
    assert not (kept / "old").exists()
    write(kept.with_name("other") / "file")
    with pytest.raises(SpecError, match="already exists"):
        savepoint.take(folder(source), folder(kept.with_name("other")), owner=OWNER)


@pytest.mark.parametrize("kind", [hdfs, DiskFolder], ids=["HDFS", "S3"])
def test_an_epoch_that_spark_removes_during_the_copy_is_refused(kind: Open, source: Path, kept: Path) -> None:
    def remove(_name: str) -> None:
        (source / "out" / "commits" / "2").unlink(missing_ok=True)

    with pytest.raises(SavepointMissing, match="was removed while it was being copied"):
        savepoint.take(kind(source, before_copy=remove), kind(kept), owner=OWNER, epochs={"out": 2})
    assert not kept.exists()
    with pytest.raises(SavepointMissing, match="is not retained"):
        savepoint.take(kind(source), kind(kept), owner=OWNER, epochs={"out": 2})


def test_files_that_spark_removes_before_they_are_linked_belong_to_no_retained_epoch(
    source: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = local_folder._link_file

    def purging(doomed: set[str]) -> Callable[[Path, Path], None]:
        def link(file: Path, target: Path) -> None:
            if str(file.relative_to(source)) in doomed:
                file.unlink()
            linked(file, target)

        return link

    monkeypatch.setattr(local_folder, "_link_file", purging({"out/offsets/1", "out/commits/1"}))
    assert savepoint.take(mounted(source), mounted(kept), owner=OWNER).epochs == {"out": 4}
    monkeypatch.setattr(local_folder, "_link_file", purging({"out/commits/4"}))
    with pytest.raises(SavepointMissing, match="was removed while it was being copied"):
        savepoint.take(mounted(source), mounted(kept.with_name("two")), owner=OWNER)
    assert not kept.with_name("two").exists()


def test_files_that_spark_removes_after_they_are_linked_are_copied(
    source: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = LocalFolder.copy

    def after_purge(self: LocalFolder, target: LocalFolder, names: Any) -> list[str]:
        shutil.rmtree(source / "out")
        return copied(self, target, names)

    with monkeypatch.context() as purging:
        purging.setattr(LocalFolder, "copy", after_purge)
        assert savepoint.take(mounted(source), mounted(kept), owner=OWNER).epochs == {"out": 4}
    assert (kept / "out" / "commits" / "4").read_text() == "commit 4"


def test_the_state_of_each_listed_commit_is_listed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark commits an epoch while the files are listed: its state is on the disk before its commit."""
    walk = os.walk

    def committing(top: Path) -> Any:
        for parent, folders, names in walk(top):
            folders.reverse()  # as a file system may order them
            yield parent, folders, names
            if Path(parent).name == "state":
                write(source / "out" / STATE / "6_0005.changelog")
                write(source / "out" / "commits" / "5")

    monkeypatch.setattr(local_folder.os, "walk", committing)
    listed = mounted(source).files()
    assert f"out/{STATE}/6_0005.changelog" in listed or "out/commits/5" not in listed


@pytest.mark.parametrize("kind", [mounted, hdfs], ids=["mounted", "HDFS"])
def test_no_job_finds_a_part_of_its_checkpoint(
    kind: Open, source: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at any file leaves no folder with the name of the savepoint or checkpoint."""
    copied, existed, again = local_folder._copy_file, [], kept.with_name("again")

    def watching(file: Path, target: Path) -> None:
        existed.append(again.exists())
        copied(file, target)

    savepoint.take(kind(source), kind(kept), owner=OWNER)
    monkeypatch.setattr(local_folder, "_copy_file", watching)
    savepoint.restore(kind(kept), kind(again), OWNER)
    assert len(existed) > 10
    assert not any(existed)
    assert files(again / "out") == files(kept / "out")
    assert {path.name for path in kept.parent.iterdir()} == {"kept", "again"}


def test_restore_copies_once(folder: Open, source: Path, kept: Path) -> None:
    savepoint.take(folder(source), folder(kept), owner=OWNER)
    place = kept.with_name("again")
    savepoint.restore(folder(kept), folder(place), OWNER)
    (place / "out" / "commits" / "5").write_text("a later commit")
    savepoint.restore(folder(kept), folder(place), OWNER)
    assert (place / "out" / "commits" / "5").exists()
    assert not (place / ".draft").exists()


def test_a_restore_keeps_the_replaced_checkpoint_and_is_executed_once(folder: Open, source: Path, kept: Path) -> None:
    savepoint.take(folder(source), folder(kept), owner=OWNER)
    write(source / "out" / "commits" / "9", "later")

    def restored(request: str, location: Path = kept, epoch: int | None = None) -> None:
        restore(folder(source), folder(location), epoch, request, owner=OWNER)

    restored("one")
    assert not (source / "out" / "commits" / "9").exists()
    assert (source.with_name("checkpoint.before-one") / "out" / "commits" / "9").read_text() == "later"
    write(source / "out" / "commits" / "5", "continued")
    restored("one")
    assert (source / "out" / "commits" / "5").exists()
    restored("two", location=source, epoch=1)
    assert files(source / "out" / "commits") == {"1", ".1.crc"}
    assert [path.name for path in source.with_name("checkpoint.before-one").iterdir()] == [".moved"]
    assert (source.with_name("checkpoint.before-two") / "out" / "commits" / "5").exists()
    with pytest.raises(SavepointMissing, match="holds no epoch 7"):
        restored("three", location=source, epoch=7)


@pytest.mark.parametrize("step", ["copied", "moved", "removing", "drafted"])
def test_a_restore_continues_after_a_crash_at_each_step_on_s3(source: Path, kept: Path, step: str) -> None:
    previous = source.with_name("checkpoint.before-one")
    savepoint.take(DiskFolder(source), DiskFolder(kept), owner=OWNER)
    write(source / MANIFEST, json.dumps({"epochs": {"out": 0}, "size_bytes": 1}))  # of an earlier restore
    DiskFolder(source).copy(DiskFolder(previous), list(DiskFolder(source).files()))
    if step != "copied":
        (source / MANIFEST).unlink()
        write(previous / ".moved")
    if step in ("removing", "drafted"):
        DiskFolder(source).delete("out/commits")
    if step == "drafted":
        DiskFolder(source).delete()
        write(source / ".draft")
        write(source / "out" / "commits" / "0", "half")
    restore(DiskFolder(source), DiskFolder(kept), None, "one", owner=OWNER)
    assert (source / "out" / "commits" / "4").read_text() == "commit 4"
    assert (previous / "out" / "commits" / "4").read_text() == "commit 4"
    assert not (source / ".draft").exists()


@pytest.mark.parametrize("kind", [mounted, hdfs], ids=["mounted", "HDFS"])
@pytest.mark.parametrize("done", [False, True], ids=["crashed after the rename", "done by an earlier version"])
def test_a_renamed_checkpoint_is_moved_also_without_the_file_that_says_so(
    kind: Open, source: Path, kept: Path, done: bool
) -> None:
    savepoint.take(kind(source), kind(kept), owner=OWNER)
    previous = source.rename(source.with_name("checkpoint.before-one"))
    if done:
        savepoint.restore(kind(kept), kind(source), OWNER)
        write(source / "out" / "commits" / "5", "continued")
    restore(kind(source), kind(kept), None, "one", owner=OWNER)
    assert (source / "out" / "commits" / "5").exists() == done
    assert (previous / "out" / "commits" / "4").exists()


def test_what_is_not_a_savepoint_is_neither_replaced_nor_deleted(folder: Open, source: Path, kept: Path) -> None:
    before = files(source)
    savepoint.take(folder(source), folder(kept), owner=OWNER)
    with pytest.raises(CheckpointUnwritable, match="did not come from a savepoint"):
        savepoint.restore(folder(kept), folder(source), OWNER)
    with pytest.raises(SavepointMissing, match="holds no savepoint"):
        savepoint.delete(folder(source), OWNER)
    write(kept / MANIFEST, json.dumps({"epochs": {}}))
    with pytest.raises(SavepointMissing):
        savepoint.read(folder(kept))
    with pytest.raises(SavepointMissing, match="holds no checkpoint"):
        savepoint.take(folder(kept.with_name("nowhere")), folder(kept.with_name("b")), owner=OWNER)
    assert files(source) == before


def test_a_full_disk_leaves_nothing(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: BinaryIO, target: BinaryIO) -> None:
        target.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(CheckpointUnwritable, match="No space left"):
        savepoint.take(mounted(source), mounted(tmp_path / "other"), owner=OWNER)
    assert {file.name for file in tmp_path.iterdir()} == {"checkpoint"}
    assert not list(source.glob(".savepoint-*"))


def test_a_location_that_is_not_mounted_is_refused() -> None:
    with pytest.raises(SpecError, match="not a mounted directory"):
        LocalFolder("s3a://bucket/checkpoint")


@pytest.mark.parametrize("place", ["sources/0/loot", "sources/0", "sources", "commits/4", "metadata", "sources/0/pipe"])
def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path, source: Path, place: str) -> None:
    """It may lead to a file that the job's author cannot read, or to a pipe."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("t0ken")
    link = source / "out" / place
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    if place.endswith("pipe"):
        os.mkfifo(link)
    else:
        link.symlink_to(secret if place.startswith("sources") and place.count("/") < 2 else secret / "token")
    with pytest.raises((CheckpointDamaged, SavepointMissing)):
        savepoint.take(mounted(source), mounted(tmp_path / "kept"), owner=OWNER)
    assert not (tmp_path / "kept").exists()
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()].count("kept") == 0


def test_a_link_in_a_savepoint_is_not_followed(tmp_path: Path, source: Path, kept: Path) -> None:
    target = tmp_path / "again"
    savepoint.take(mounted(source), mounted(kept), owner=OWNER)
    (tmp_path / "secret").write_text("t0ken")
    (kept / "out" / "sources" / "0" / "loot").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointDamaged, match="not a regular file"):
        savepoint.restore(mounted(kept), mounted(target), OWNER)
    assert not target.exists()
