"""Savepoints as copies of files; `tests/integration/jobs/test_savepoint.py` has the same with Spark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import OWNER_FILE, JobOwner
from clonos.driver.savepoint import delete_savepoint, read_savepoint, restore_savepoint, take_savepoint
from clonos.errors import CheckpointDamaged, CheckpointUnwritable, SavepointMissing, SpecError


def checkpoint(place: Path, *, committed: int = 4, oldest: int = 1) -> Path:
    """A checkpoint as Spark writes it, with the epoch after `committed` in progress."""
    query = place / "out"
    state = query / "state" / "0" / "0"
    for folder in (query / "offsets", query / "commits", query / "sources" / "0", state / "SSTs"):
        folder.mkdir(parents=True)
    (query / "metadata").write_text('{"id":"x"}')
    (query / "sources" / "0" / "0").write_text("{}")
    for epoch in range(oldest, committed + 2):
        (query / "offsets" / str(epoch)).write_text(f"offsets {epoch}")
        (state / f"{epoch + 1}_{epoch:04}.changelog").write_text(f"state {epoch + 1}")
        if epoch <= committed:
            (query / "commits" / str(epoch)).write_text(f"commit {epoch}")
            (query / "commits" / f".{epoch}.crc").write_text("sum")
    (state / f"{oldest + 1}_abcd.zip").write_text("snapshot")
    (state / "SSTs" / "9.sst").write_text("table")
    (query / "offsets" / ".9.tmp").write_text("half")
    return place


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_a_savepoint_holds_what_the_newest_commit_needs(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    taken = take_savepoint(f"file://{source}", str(tmp_path / "kept" / "one"), owner=JobOwner("orders"))
    assert taken.epochs == {"out": 4}
    names = files(tmp_path / "kept" / "one" / "out")
    state = "state/0/0"
    assert names == {
        *("metadata", "sources/0/0", f"{state}/SSTs/9.sst", f"{state}/2_abcd.zip"),
        *(f"offsets/{epoch}" for epoch in range(1, 5)),
        *(f"commits/{epoch}" for epoch in range(1, 5)),
        *(f"commits/.{epoch}.crc" for epoch in range(1, 5)),
        *(f"{state}/{epoch + 1}_{epoch:04}.changelog" for epoch in range(1, 5)),
    }
    assert files(tmp_path / "kept") == {f"one/out/{name}" for name in names} | {
        "one/savepoint.json",
        f"one/{OWNER_FILE}",
    }
    assert read_savepoint(str(tmp_path / "kept" / "one")) == taken
    assert not list(source.glob(".savepoint-*"))


def test_an_older_epoch_is_taken_while_it_is_retained(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    assert take_savepoint(str(source), str(tmp_path / "one"), epochs={"out": 2}, owner=JobOwner("orders")).epochs == {
        "out": 2
    }
    assert not {name for name in files(tmp_path / "one") if name.endswith(("/3", "/4", "4_0003.changelog"))}
    with pytest.raises(SavepointMissing, match="Epoch 0 of out is not retained"):
        take_savepoint(str(source), str(tmp_path / "two"), epochs={"out": 0}, owner=JobOwner("orders"))
    assert not (tmp_path / "two").exists()


def test_files_that_spark_removes_during_the_copy_belong_to_no_retained_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    linked = savepoint._link_file

    def purging(doomed: set[str]) -> Callable[[Path, Path], None]:
        def link(file: Path, target: Path) -> None:
            if str(file.relative_to(source)) in doomed:
                file.unlink()
            linked(file, target)

        return link

    monkeypatch.setattr(savepoint, "_link_file", purging({"out/offsets/1", "out/commits/1"}))
    assert take_savepoint(str(source), str(tmp_path / "one"), owner=JobOwner("orders")).epochs == {"out": 4}
    monkeypatch.setattr(savepoint, "_link_file", purging({"out/commits/4"}))
    with pytest.raises(SavepointMissing, match="was removed while it was being copied"):
        take_savepoint(str(source), str(tmp_path / "two"), owner=JobOwner("orders"))
    assert not (tmp_path / "two").exists()


def test_restore_copies_once(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    savepoint_path = str(tmp_path / "kept")
    take_savepoint(str(source), savepoint_path, owner=JobOwner("orders"))
    place = tmp_path / "jobs" / "again"
    restore_savepoint(savepoint_path, str(place), JobOwner("orders"))
    (place / "out" / "commits" / "5").write_text("a later commit")
    restore_savepoint(savepoint_path, str(place), JobOwner("orders"))
    assert (place / "out" / "commits" / "5").exists()
    with pytest.raises(CheckpointUnwritable, match="did not come from a savepoint"):
        restore_savepoint(savepoint_path, str(source), JobOwner("orders"))


def test_only_savepoints_are_deleted(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    with pytest.raises(SavepointMissing):
        delete_savepoint(str(source), JobOwner("orders"))
    assert files(source)
    take_savepoint(str(source), str(tmp_path / "kept"), owner=JobOwner("orders"))
    delete_savepoint(str(tmp_path / "kept"), JobOwner("orders"))
    delete_savepoint(str(tmp_path / "kept"), JobOwner("orders"))
    assert not (tmp_path / "kept").exists()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "checkpoint")
    with pytest.raises(SpecError, match="not a mounted directory"):
        take_savepoint("s3a://bucket/checkpoint", str(tmp_path / "kept"), owner=JobOwner("orders"))
    with pytest.raises(SavepointMissing, match="holds no checkpoint"):
        take_savepoint(str(tmp_path / "nowhere"), str(tmp_path / "kept"), owner=JobOwner("orders"))
    (tmp_path / "kept").mkdir()
    with pytest.raises(SpecError, match="already exists"):
        take_savepoint(str(source), str(tmp_path / "kept"), owner=JobOwner("orders"))

    def full(_source: BinaryIO, target: BinaryIO) -> None:
        target.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(CheckpointUnwritable, match="No space left"):
        take_savepoint(str(source), str(tmp_path / "other"), owner=JobOwner("orders"))
    assert {file.name for file in tmp_path.iterdir()} == {"checkpoint", "kept"}
    assert not list(source.glob(".savepoint-*"))


def test_a_damaged_manifest_is_not_a_savepoint(tmp_path: Path) -> None:
    (tmp_path / "savepoint.json").write_text(json.dumps({"epochs": {}}))
    with pytest.raises(SavepointMissing):
        read_savepoint(str(tmp_path))


@pytest.mark.parametrize("place", ["sources/0/loot", "sources/0", "sources", "commits/4", "metadata", "sources/0/pipe"])
def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path, place: str) -> None:
    """It may lead to a file that the job's author cannot read, or to a pipe."""
    source = checkpoint(tmp_path / "checkpoint")
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
        take_savepoint(str(source), str(tmp_path / "kept"), owner=JobOwner("orders"))
    assert not (tmp_path / "kept").exists()
    assert [file.name for file in tmp_path.iterdir() if file.is_dir()].count("kept") == 0


def test_a_link_in_a_savepoint_is_not_followed(tmp_path: Path) -> None:
    source, kept, target = checkpoint(tmp_path / "checkpoint"), tmp_path / "kept", tmp_path / "again"
    take_savepoint(str(source), str(kept), owner=JobOwner("orders"))
    (tmp_path / "secret").write_text("t0ken")
    (kept / "out" / "sources" / "0" / "loot").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointDamaged, match="not a regular file"):
        restore_savepoint(str(kept), str(target), JobOwner("orders"))
    assert not target.exists()
