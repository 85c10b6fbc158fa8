"""A standby's states, its promotion and its scratch checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.driver.background import BackgroundWorker
from clonos.errors import BrokerUnavailable
from clonos.standby import standby_driver
from clonos.standby.promotion import PromotionMailbox, promote
from clonos.standby.rehearsal import NotRehearsed, narrow_epoch
from clonos.standby.scratch import checkpoint_content, link_checkpoint
from clonos.standby.standby_driver import Standby
from clonos.standby.states import TRANSITIONS, StandbyState
from clonos.telemetry import driver_events as reported
from clonos.telemetry.driver_events import DriverEvent, StandbyTrouble
from clonos.testing.harness import eventually


def test_every_state_is_reachable_and_final_states_are_listed() -> None:
    assert set(TRANSITIONS) == set(StandbyState)
    reached, todo = set[StandbyState](), [StandbyState.STARTING]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += TRANSITIONS[state]
    assert reached == set(StandbyState)
    final = {StandbyState.PROMOTED, StandbyState.FAILED, StandbyState.RETIRED}
    assert {state for state, to in TRANSITIONS.items() if not to} == final
    for end in (StandbyState.FAILED, StandbyState.RETIRED):
        assert all(end in to for to in TRANSITIONS.values() if to), "each may end"


def test_promotion_is_received(tmp_path: Path) -> None:
    pipe = tmp_path / "promotion"
    assert not promote(pipe), "there is no receiver"
    mailbox = PromotionMailbox(pipe)
    assert not mailbox.promoted(0)
    assert promote(pipe)
    assert mailbox.promoted(1)
    assert mailbox.promoted(0), "it stays so"
    mailbox.close()
    assert not promote(pipe)
    assert not pipe.exists()


def test_a_pipe_that_senders_see_has_a_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "promotion"
    make, seen = os.mkfifo, []

    def mkfifo(path: Path, mode: int) -> None:
        make(path, mode)
        seen.append(pipe.exists())

    monkeypatch.setattr(os, "mkfifo", mkfifo)
    mailbox = PromotionMailbox(pipe)
    assert seen == [False], "the pipe is opened before it has its name"
    assert promote(pipe)
    mailbox.close()
    assert list(tmp_path.iterdir()) == []


def test_promotion_before_the_first_receive_is_not_lost(tmp_path: Path) -> None:
    """The pipe is there before the session is."""
    mailbox = PromotionMailbox(tmp_path / "promotion")
    assert promote(tmp_path / "promotion")
    assert promote(tmp_path / "promotion"), "a restarted agent may repeat the promotion"
    assert mailbox.promoted(0)
    mailbox.close()


@pytest.mark.parametrize("accept", [True, False])
def test_promotion_carries_accept_new_code(tmp_path: Path, accept: bool) -> None:
    mailbox = PromotionMailbox(tmp_path / "promotion")
    assert promote(tmp_path / "promotion", accept_new_code=accept)
    assert mailbox.promoted(0)
    assert mailbox.accept_new_code == accept
    mailbox.close()


def test_pipe_of_a_dead_standby_has_no_receiver(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "promotion")
    assert not promote(tmp_path / "promotion")
    mailbox = PromotionMailbox(tmp_path / "promotion")
    assert promote(tmp_path / "promotion")
    mailbox.close()


def _planned(folder: Path, begin: str, end: str) -> None:
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text(f"v1\n{begin}")


def test_a_planned_epoch_is_narrowed_to_nothing_or_to_the_newest_records(tmp_path: Path) -> None:
    begin, end = '{"t":{"0":5,"1":0,"2":3}}', '{"t":{"0":9,"1":0,"2":3}}'
    _planned(tmp_path / "none", begin, end)
    narrow_epoch(tmp_path / "none", newest=False)
    assert (tmp_path / "none" / "offsets" / "0").read_text() == f'v1\n{{"batchWatermarkMs":0}}\n{begin}'
    _planned(tmp_path / "newest", begin, end)
    narrow_epoch(tmp_path / "newest", newest=True)
    first = (tmp_path / "newest" / "sources" / "0" / "0").read_text().splitlines()
    assert first[0] == "v1"
    assert json.loads(first[1]) == {"t": {"0": 8, "1": 0, "2": 3}}, "one record; none where there is none"
    assert (tmp_path / "newest" / "offsets" / "0").read_text().endswith(end)


@pytest.mark.parametrize("begin", ["", "no json"])
def test_source_without_start_offsets_is_not_rehearsed(tmp_path: Path, begin: str) -> None:
    _planned(tmp_path, begin, '{"t":{"0":9}}')
    with pytest.raises(NotRehearsed, match="source 0"):
        narrow_epoch(tmp_path, newest=True)


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


def test_scratch_checkpoint_has_the_jobs_state_and_an_empty_epoch(tmp_path: Path) -> None:
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
    # Spark removes files from the scratch checkpoint.
    for file in scratch.rglob("*"):
        if file.is_file():
            file.unlink()
    assert {file: file.read_text() for file in own.rglob("*") if file.is_file()} == before


def test_idle_partition_is_not_read(tmp_path: Path) -> None:
    """Its newest record may have been deleted."""
    own = _checkpoint(tmp_path / "own")
    (own / "offsets" / "0").write_text(f'v1\n{_ENTRY}\n{{"t":{{"0":8}}}}\n-')
    link_checkpoint(own, tmp_path / "scratch")
    assert (tmp_path / "scratch" / "offsets" / "1").read_text().splitlines()[2] == '{"t":{"0":8,"1":0}}'


def test_state_on_another_disk_is_symlinked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_source: str, _target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    own = _checkpoint(tmp_path / "own")
    monkeypatch.setattr(os, "link", refused)
    link_checkpoint(own, tmp_path / "scratch")
    assert (tmp_path / "scratch" / "state" / "0" / "3" / "SSTs" / "a.sst").is_symlink()


def test_checkpoint_without_state_is_copied_too(tmp_path: Path) -> None:
    own = _checkpoint(tmp_path / "own")
    shutil.rmtree(own / "state")
    assert checkpoint_content(own) == link_checkpoint(own, tmp_path / "scratch") == "offsets"
    assert sorted(file.name for file in (tmp_path / "scratch" / "offsets").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("missing", ["commits", "offsets", "sources"])
def test_incomplete_checkpoint_is_not_copied(tmp_path: Path, missing: str) -> None:
    own = _checkpoint(tmp_path / "own")
    shutil.rmtree(own / missing)
    assert link_checkpoint(own, tmp_path / "scratch") == "nothing"
    assert not (tmp_path / "scratch").exists()


class Workers:
    """A waiting standby, whose Python workers cannot be started because of `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception, *, jvm_runs: bool) -> None:
        self.events: list[DriverEvent] = []
        self.standby = Standby.__new__(Standby)
        self.standby._state = StandbyState.READY
        self.standby._emit = self.events.append
        self.standby._spark = cast(Any, None)
        parking = SimpleNamespace(connect=lambda: None, refresh=lambda *_: None)
        self.standby._driver = cast(Any, SimpleNamespace(check=lambda: None, parking=parking))
        self.standby._live, self.standby._scratch = [], Path()
        self.standby._prepared = cast(Any, SimpleNamespace(refresh=lambda: None))
        self.fail = True

        def fails(_standby: Standby) -> None:
            if self.fail:
                raise failure

        monkeypatch.setattr(Standby, "_warm_workers", fails)
        monkeypatch.setattr(standby_driver, "alive", lambda _spark: jvm_runs)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(BrokerUnavailable("Kafka is away."), "broker-unavailable"), (RuntimeError("worker lost"), "epoch-failed")],
)
def test_a_standby_without_workers_is_stale(monkeypatch: pytest.MonkeyPatch, failure: Exception, error: str) -> None:
    workers = Workers(monkeypatch, failure, jvm_runs=True)
    workers.standby._keep_workers()
    (trouble, state) = workers.events
    assert isinstance(trouble, StandbyTrouble)
    assert trouble.error == error
    assert state == reported.Standby(StandbyState.STALE)
    workers.standby._keep_workers()
    assert len(workers.events) == 2, "it is STALE already"
    workers.standby._refresh(lambda: None)
    assert len(workers.events) == 2, "the log can be followed, but no worker runs"
    workers.fail = False
    workers.standby._keep_workers()
    workers.standby._refresh(lambda: None)
    assert workers.events[2:] == [reported.Standby(StandbyState.READY)]


def test_a_standby_without_a_jvm_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = RuntimeError("connection refused")
    with pytest.raises(RuntimeError, match="refused"):
        Workers(monkeypatch, failure, jvm_runs=False).standby._keep_workers()


def test_a_check_that_hangs_delays_no_promotion_and_makes_the_standby_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, RuntimeError("unused"), jvm_runs=True)
    standby, answers = workers.standby, threading.Event()
    standby._driver.check = lambda: answers.wait(60) and None  # type: ignore[method-assign,func-returns-value]
    followed: list[int] = []
    state = SimpleNamespace(committed={})
    prepared = SimpleNamespace(state=state, refresh=lambda: None, follow=lambda: followed.append(1))
    standby._prepared = cast(Any, prepared)
    standby._checks, standby._check, standby._check_began = BackgroundWorker("checks"), None, 0.0
    standby._failed_check, standby._workers_failed, standby._metered_epochs = None, False, {}
    standby._workers_warmed_at = time.monotonic()
    standby._refreshed_at = standby._followed_at = standby._reported_at = float("-inf")
    standby._reported_epochs = {}
    standby._keep_warm()  # begins the check, and follows the log at the same time
    standby._keep_warm()
    assert (standby._state, followed) == (StandbyState.READY, [1])
    monkeypatch.setattr(standby_driver, "_LONG_CHECK_S", 0.0)
    standby._keep_warm()
    trouble, state_of_standby = workers.events
    assert isinstance(trouble, StandbyTrouble)
    assert trouble.error == "checkpoint-unavailable"
    assert state_of_standby == reported.Standby(StandbyState.STALE)
    answers.set()
    eventually(lambda: standby._keep_warm() or standby._state is StandbyState.READY, "the check passes")
