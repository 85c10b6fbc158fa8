"""A standby's states, and how it is told to take over."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from clonos.standby.orders import Orders, promote
from clonos.standby.rehearsal import NotRehearsed, narrow
from clonos.standby.scratch import held, link_checkpoint
from clonos.standby.states import TRANSITIONS, StandbyState


def test_every_state_is_reached_and_those_that_end_are_known() -> None:
    assert set(TRANSITIONS) == set(StandbyState)
    reached, todo = set[StandbyState](), [StandbyState.STARTING]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += TRANSITIONS[state]
    assert reached == set(StandbyState)
    assert {state for state, to in TRANSITIONS.items() if not to} == {StandbyState.PROMOTED, StandbyState.FAILED}
    assert all(StandbyState.FAILED in to for to in TRANSITIONS.values() if to), "each may fail"


def test_a_promotion_is_heard_once_it_was_told(tmp_path: Path) -> None:
    pipe = tmp_path / "promotion"
    assert not promote(pipe), "nobody is there"
    orders = Orders(pipe)
    assert not orders.promoted(0)
    assert promote(pipe)
    assert orders.promoted(1)
    assert orders.promoted(0), "it stays so"
    orders.close()
    assert not promote(pipe)
    assert not pipe.exists()


def test_a_promotion_before_it_listens_is_not_lost(tmp_path: Path) -> None:
    """The pipe is there before the session is."""
    orders = Orders(tmp_path / "promotion")
    assert promote(tmp_path / "promotion")
    assert promote(tmp_path / "promotion"), "an agent that was restarted may tell it again"
    assert orders.promoted(0)
    orders.close()


@pytest.mark.parametrize("accept", [True, False])
def test_it_hears_whether_to_replay_what_another_version_left(tmp_path: Path, accept: bool) -> None:
    orders = Orders(tmp_path / "promotion")
    assert promote(tmp_path / "promotion", accept_new_code=accept)
    assert orders.promoted(0)
    assert orders.accept_new_code == accept
    orders.close()


def test_a_pipe_that_a_dead_standby_left_has_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "promotion")
    assert not promote(tmp_path / "promotion")
    orders = Orders(tmp_path / "promotion")
    assert promote(tmp_path / "promotion")
    orders.close()


def _planned(folder: Path, begin: str, end: str) -> None:
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text(f"v1\n{begin}")


def test_a_planned_epoch_is_narrowed_to_nothing_or_to_the_newest_records(tmp_path: Path) -> None:
    begin, end = '{"t":{"0":5,"1":0,"2":3}}', '{"t":{"0":9,"1":0,"2":3}}'
    _planned(tmp_path / "none", begin, end)
    narrow(tmp_path / "none", newest=False)
    assert (tmp_path / "none" / "offsets" / "0").read_text() == f'v1\n{{"batchWatermarkMs":0}}\n{begin}'
    _planned(tmp_path / "newest", begin, end)
    narrow(tmp_path / "newest", newest=True)
    first = (tmp_path / "newest" / "sources" / "0" / "0").read_text().splitlines()
    assert first[0] == "v1"
    assert json.loads(first[1]) == {"t": {"0": 8, "1": 0, "2": 3}}, "one record; none where there is none"
    assert (tmp_path / "newest" / "offsets" / "0").read_text().endswith(end)


@pytest.mark.parametrize("begin", ["", "no json"])
def test_a_source_that_does_not_say_where_it_begins_is_not_rehearsed(tmp_path: Path, begin: str) -> None:
    _planned(tmp_path, begin, '{"t":{"0":9}}')
    with pytest.raises(NotRehearsed, match="source 0"):
        narrow(tmp_path, newest=True)


_ENTRY = '{"batchWatermarkMs":5,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"4"}}'


def _checkpoint(folder: Path) -> Path:
    for epoch, end in ((0, 3), (1, 8), (2, 9)):
        for log in ("offsets", "commits"):
            (folder / log).mkdir(parents=True, exist_ok=True)
        (folder / "offsets" / str(epoch)).write_text(f'v1\n{_ENTRY}\n{{"t":{{"0":{end},"1":0}}}}\n-')
        if epoch < 2:
            (folder / "commits" / str(epoch)).write_text(f'v2\n{{"nextBatchWatermarkMs":{epoch}}}')
    (folder / "metadata").write_text('{"id":"its own"}')
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text('v1\n{"t":{"0":0,"1":0}}')
    (folder / "state" / "0" / "3" / "SSTs").mkdir(parents=True)
    (folder / "state" / "0" / "3" / "2_a.changelog").write_text("changes")
    (folder / "state" / "0" / "3" / "SSTs" / "a.sst").write_text("table")
    return folder


def test_a_rehearsal_has_the_jobs_state_with_an_epoch_in_which_nothing_happens(tmp_path: Path) -> None:
    own = _checkpoint(tmp_path / "own")
    before = {file: file.read_text() for file in own.rglob("*") if file.is_file()}
    assert link_checkpoint(own, tmp_path / "one") == "changes"
    (own / "state" / "0" / "3" / "2_a.zip").write_text("snapshot")
    before[own / "state" / "0" / "3" / "2_a.zip"] = "snapshot"
    scratch = tmp_path / "two"
    assert link_checkpoint(own, scratch) == "snapshot"
    assert sorted(file.name for file in (scratch / "commits").iterdir()) == ["1"]
    committed, planned = ((scratch / "offsets" / name).read_text().splitlines() for name in "12")
    assert committed[2:] == ['{"t":{"0":7,"1":0}}', "-"], "one record, where the newest epoch had one"
    assert planned[2:] == ['{"t":{"0":8,"1":0}}', "-"]
    metadata = json.loads(planned[1])
    assert (metadata["batchWatermarkMs"], metadata["batchTimestampMs"]) == (0, 1), "no timer is due"
    assert metadata["conf"] == {"spark.sql.shuffle.partitions": "4"}
    assert (scratch / "metadata").read_text() != (own / "metadata").read_text(), "another query"
    linked = scratch / "state" / "0" / "3" / "SSTs" / "a.sst"
    assert linked.stat().st_ino == (own / "state" / "0" / "3" / "SSTs" / "a.sst").stat().st_ino
    # Spark clears up in its own checkpoint.
    for file in scratch.rglob("*"):
        if file.is_file():
            file.unlink()
    assert {file: file.read_text() for file in own.rglob("*") if file.is_file()} == before


def test_a_partition_that_rests_is_not_read(tmp_path: Path) -> None:
    """Its newest record may be gone."""
    own = _checkpoint(tmp_path / "own")
    (own / "offsets" / "0").write_text(f'v1\n{_ENTRY}\n{{"t":{{"0":8}}}}\n-')
    link_checkpoint(own, tmp_path / "scratch")
    assert (tmp_path / "scratch" / "offsets" / "1").read_text().splitlines()[2] == '{"t":{"0":8,"1":0}}'


def test_state_on_another_disk_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_source: str, _target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    own = _checkpoint(tmp_path / "own")
    monkeypatch.setattr(os, "link", refused)
    link_checkpoint(own, tmp_path / "scratch")
    assert (tmp_path / "scratch" / "state" / "0" / "3" / "SSTs" / "a.sst").is_symlink()


def test_a_checkpoint_without_state_is_rehearsed_on_too(tmp_path: Path) -> None:
    own = _checkpoint(tmp_path / "own")
    shutil.rmtree(own / "state")
    assert held(own) == link_checkpoint(own, tmp_path / "scratch") == "offsets"
    assert sorted(file.name for file in (tmp_path / "scratch" / "offsets").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("gone", ["commits", "offsets", "sources"])
def test_there_is_nothing_to_rehearse_on_in_half_a_checkpoint(tmp_path: Path, gone: str) -> None:
    own = _checkpoint(tmp_path / "own")
    shutil.rmtree(own / gone)
    assert link_checkpoint(own, tmp_path / "scratch") == "nothing"
    assert not (tmp_path / "scratch").exists()
