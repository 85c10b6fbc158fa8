"""Savepoints on file systems without links. Some of these rename no folder in one step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clonos.agent.restoring import restore_stored
from clonos.driver import stored_savepoint
from clonos.driver.checkpoint_owner import OWNER_FILE, JobOwner
from clonos.driver.savepoint import MANIFEST
from clonos.errors import CheckpointForeign, CheckpointUnwritable, SavepointMissing, SpecError
from support.disk_folder import DiskFolder


@pytest.fixture(params=[True, False], ids=["S3", "HDFS"])
def objects(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def stored(path: Path, objects: bool, **arguments: Any) -> Any:
    return DiskFolder(path, objects=objects, **arguments)


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The checkpoint of a job with one query, which has committed epochs 0 to 4 and planned 5."""
    folder = tmp_path / "checkpoint"
    write(folder / OWNER_FILE, json.dumps({"job": "orders", "lineage": 1}))
    write(folder / "out" / "metadata")
    write(folder / "out" / "sources" / "0" / "0")
    for epoch in range(6):
        write(folder / "out" / "offsets" / str(epoch))
        write(folder / "out" / "state" / "0" / "0" / f"{epoch + 1}_ab.changelog")
        if epoch < 5:
            write(folder / "out" / "commits" / str(epoch), f"commit {epoch}")
    write(folder / "out" / "state" / "0" / "0" / ".7.changelog.tmp")
    return folder


def test_a_savepoint_has_the_newest_committed_epoch_and_nothing_later(checkpoint: Path, objects: bool) -> None:
    target = checkpoint.with_name("kept")
    copied = stored_savepoint.take(stored(checkpoint, objects), stored(target, objects), owner=JobOwner("orders"))
    assert copied.epochs == {"out": 4}
    names = stored(target, objects).files().keys()
    assert {"out/commits/4", "out/state/0/0/5_ab.changelog", MANIFEST} <= names
    assert not {"out/offsets/5", "out/state/0/0/6_ab.changelog", ".draft"} & names
    assert stored_savepoint.read(stored(target, objects)) == copied
    with pytest.raises(SpecError, match="already exists"):
        stored_savepoint.take(stored(checkpoint, objects), stored(target, objects), owner=JobOwner("orders"))
    with pytest.raises(CheckpointForeign):
        stored_savepoint.take(
            stored(checkpoint, objects), stored(target.with_name("b"), objects), owner=JobOwner("bills")
        )
    stored_savepoint.delete(stored(target, objects), JobOwner("orders"))
    stored_savepoint.delete(stored(target, objects), JobOwner("orders"))
    assert not target.exists()


def test_the_rest_of_an_interrupted_copy_is_replaced(checkpoint: Path, objects: bool) -> None:
    target = checkpoint.with_name("kept")
    write(target / ".draft")
    write(target / "old")
    stored_savepoint.take(stored(checkpoint, objects), stored(target, objects), owner=JobOwner("orders"))
    assert not (target / "old").exists()
    write(target.with_name("other") / "file")
    with pytest.raises(SpecError, match="already exists"):
        stored_savepoint.take(
            stored(checkpoint, objects), stored(target.with_name("other"), objects), owner=JobOwner("orders")
        )


def test_an_epoch_that_spark_removes_during_the_copy_is_refused(checkpoint: Path, objects: bool) -> None:
    def remove(name: str) -> None:
        (checkpoint / "out" / "commits" / "2").unlink(missing_ok=True)

    source, target = stored(checkpoint, objects, before_copy=remove), checkpoint.with_name("kept")
    with pytest.raises(SavepointMissing, match="was removed while it was being copied"):
        stored_savepoint.take(source, stored(target, objects), owner=JobOwner("orders"), epochs={"out": 2})
    assert not target.exists()
    with pytest.raises(SavepointMissing, match="is not retained"):
        stored_savepoint.take(source, stored(target, objects), owner=JobOwner("orders"), epochs={"out": 2})


def test_a_restore_keeps_the_replaced_checkpoint_and_is_executed_once(checkpoint: Path, objects: bool) -> None:
    kept = checkpoint.with_name("kept")
    stored_savepoint.take(stored(checkpoint, objects), stored(kept, objects), owner=JobOwner("orders"))
    write(checkpoint / "out" / "commits" / "9", "later")

    def restored(request: str, location: Path = kept, epoch: int | None = None) -> None:
        restore_stored(stored(checkpoint, objects), stored(location, objects), epoch, request, owner=JobOwner("orders"))

    restored("one")
    assert not (checkpoint / "out" / "commits" / "9").exists()
    assert (checkpoint.with_name("checkpoint.before-one") / "out" / "commits" / "9").read_text() == "later"
    write(checkpoint / "out" / "commits" / "5", "continued")
    restored("one")
    assert (checkpoint / "out" / "commits" / "5").exists()
    restored("two", location=checkpoint, epoch=1)
    assert {path.name for path in (checkpoint / "out" / "commits").iterdir()} == {"0", "1"}
    assert [path.name for path in checkpoint.with_name("checkpoint.before-one").iterdir()] == [".moved"]
    with pytest.raises(SavepointMissing, match="holds no epoch 7"):
        restored("three", location=checkpoint, epoch=7)


@pytest.mark.parametrize("step", ["copied", "moved", "removing", "drafted"])
def test_a_restore_continues_after_a_crash_at_each_step_on_s3(checkpoint: Path, step: str) -> None:
    kept, previous = checkpoint.with_name("kept"), checkpoint.with_name("checkpoint.before-one")
    stored_savepoint.take(stored(checkpoint, True), stored(kept, True), owner=JobOwner("orders"))
    write(checkpoint / MANIFEST, json.dumps({"epochs": {"out": 0}, "size_bytes": 1}))  # of an earlier restore
    stored(checkpoint, True).copy(stored(previous, True), list(stored(checkpoint, True).files()))
    if step != "copied":
        (checkpoint / MANIFEST).unlink()
        write(previous / ".moved")
    if step in ("removing", "drafted"):
        stored(checkpoint, True).delete("out/commits")
    if step == "drafted":
        stored(checkpoint, True).delete()
        write(checkpoint / ".draft")
        write(checkpoint / "out" / "commits" / "0", "half")
    restore_stored(stored(checkpoint, True), stored(kept, True), None, "one", owner=JobOwner("orders"))
    assert (checkpoint / "out" / "commits" / "4").read_text() == "commit 4"
    assert (previous / "out" / "commits" / "4").read_text() == "commit 4"
    assert not (checkpoint / ".draft").exists()


def test_a_checkpoint_that_did_not_come_from_a_savepoint_is_not_replaced(checkpoint: Path, objects: bool) -> None:
    kept = checkpoint.with_name("kept")
    stored_savepoint.take(stored(checkpoint, objects), stored(kept, objects), owner=JobOwner("orders"))
    with pytest.raises(CheckpointUnwritable, match="did not come from a savepoint"):
        stored_savepoint.restore(stored(kept, objects), stored(checkpoint, objects), JobOwner("orders"))
    with pytest.raises(SavepointMissing, match="holds no savepoint"):
        stored_savepoint.delete(stored(checkpoint, objects), JobOwner("orders"))
