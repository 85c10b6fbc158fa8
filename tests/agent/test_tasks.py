"""Savepoints: copied once, told until heard, and where a job starts from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent.api import FakeApi
from agent.hosts import ThreadAgent, order
from agent.test_supervising import reported
from clonos.agent.restoring import published_beyond, restore
from clonos.errors import SavepointMissing, SpecError, WouldPublishAgain
from clonos.log.control import ControlState
from clonos.resources.hosts import TaskOrder
from observe import eventually

Host = Callable[..., ThreadAgent]


def checkpoint(folder: Path, epochs: int, query: str = "q") -> Path:
    """As Spark writes it."""
    for log in ("offsets", "commits"):
        (folder / query / log).mkdir(parents=True, exist_ok=True)
        for epoch in range(epochs):
            (folder / query / log / str(epoch)).write_text(f"{log} {epoch}")
    (folder / query / "metadata").write_text("{}")
    return folder


def epochs_of(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "q" / "commits").iterdir())


def test_a_savepoint_is_made_and_deleted(api: FakeApi, host: Host, tmp_path: Path) -> None:
    source, target = checkpoint(tmp_path / "checkpoint", 3), tmp_path / "saved" / "one"
    make = TaskOrder(task="t1", kind="savepoint", arguments={"location": str(source), "target": str(target)})
    api.order(tasks=(make,))
    agent = host()
    eventually(lambda: api.results["t1"], "it is told")
    assert api.results["t1"][0].ok
    assert api.results["t1"][0].result["epochs"] == {"q": 2}
    assert epochs_of(target) == ["0", "1", "2"]

    agent.stop()
    host()  # still ordered: told again, and not done again (the target is there: it would fail)
    eventually(lambda: len(api.results["t1"]) == 2, "it is told again")
    assert api.results["t1"][1].ok

    remove = TaskOrder(task="t2", kind="delete-savepoint", arguments={"location": str(target)})
    again = TaskOrder(task="t3", kind="savepoint", arguments={"location": str(tmp_path / "nowhere"), "target": "x"})
    api.order(tasks=(remove, again))
    eventually(lambda: api.results["t2"] and api.results["t3"], "they are told")
    assert api.results["t2"][0].ok
    assert not target.exists()
    failure = api.results["t3"][0].failure
    assert failure is not None
    assert failure.error == "savepoint-missing"
    assert not (tmp_path / "agent" / "host-1" / "tasks" / "t1.json").exists(), "it is not ordered any more"


def test_a_task_whose_process_dies_has_failed(api: FakeApi, host: Host) -> None:
    api.order(tasks=(TaskOrder(task="t1", kind="savepoint"),))
    host(task_command=(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    eventually(lambda: api.results["t1"], "it is told")
    assert not api.results["t1"][0].ok


def test_going_back_to_a_savepoint_is_done_once(tmp_path: Path) -> None:
    place, saved = checkpoint(tmp_path / "job", 5), checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    restore(f"file://{place}", str(saved), None, "w1")
    assert epochs_of(place) == ["0", "1"]
    assert epochs_of(tmp_path / "job.before-w1") == ["0", "1", "2", "3", "4"]
    checkpoint(place, 4)  # it goes on from there
    restore(f"file://{place}", str(saved), None, "w1")
    assert epochs_of(place) == ["0", "1", "2", "3"]
    restore(f"file://{place}", str(saved), None, "w2")  # another wish
    assert epochs_of(place) == ["0", "1"]
    assert epochs_of(tmp_path / "job.before-w2") == ["0", "1", "2", "3"]


def test_only_what_was_put_aside_last_is_kept(tmp_path: Path) -> None:
    """It is as large as the checkpoint; an empty folder goes on to say that the older wish is done."""
    place, saved = checkpoint(tmp_path / "job", 5), checkpoint(tmp_path / "saved", 2)
    other = checkpoint(tmp_path / "job-2.before-w1", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    for wish in ("w1", "w2", "w3"):
        restore(str(place), str(saved), None, wish)
        assert epochs_of(tmp_path / f"job.before-{wish}") == (
            ["0", "1"] if wish != "w1" else [str(n) for n in range(5)]
        )
    assert [list((tmp_path / f"job.before-{wish}").iterdir()) for wish in ("w1", "w2")] == [[], []]
    assert epochs_of(other) == ["0", "1"]  # another job's
    checkpoint(place, 7)
    restore(str(place), str(saved), None, "w1")  # a driver on a host that was taken for lost repeats its wish
    assert epochs_of(place) == [str(n) for n in range(7)]


def test_what_the_log_knows_is_not_published_again_unasked(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "job", 5)
    state = ControlState(ended={"q": 4})
    asked: list[dict[str, int]] = []

    def allow(epochs: Mapping[str, int]) -> None:
        asked.append(dict(epochs))
        published_beyond(state, epochs)

    with pytest.raises(WouldPublishAgain):
        restore(str(place), str(place), 2, "w1", allow)
    assert epochs_of(place) == ["0", "1", "2", "3", "4"]  # nothing was touched
    assert not (tmp_path / "job.before-w1").exists()
    restore(str(place), str(place), 4, "w2", allow)
    state.ended["q"] = 9  # the job went on from there; a restart of its driver repeats the wish
    restore(str(place), str(place), 4, "w2", allow)
    assert asked == [{"q": 2}, {"q": 4}]
    saved = checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    with pytest.raises(WouldPublishAgain):
        restore(str(place), str(saved), None, "w3", allow)
    restore(str(place), str(saved), None, "w3")
    assert epochs_of(place) == ["0", "1"]


def test_going_back_to_an_epoch_of_its_own(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "job", 5)
    for _ in range(2):
        restore(str(place), f"file://{place}", 2, "w1")
        assert epochs_of(place) == ["0", "1", "2"]
    with pytest.raises(SavepointMissing):
        restore(str(place), str(place), 7, "w2")
    assert epochs_of(place) == ["0", "1", "2"]  # nothing was touched
    restore(str(place), str(place), 1, "w2")
    assert epochs_of(place) == ["0", "1"]
    with pytest.raises(SpecError):
        restore("s3a://bucket/job", "s3a://bucket/saved", None, "w1")


def test_a_driver_starts_from_a_savepoint(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    code = api.upload(b"print(sys.argv[3:], flush=True); until_stopped()")
    point = {"savepoint": "s1", "publish_again": True}
    api.order(order(run, code, restore_location=str(saved), wish="w1", start_from=point))
    host()
    report = reported(api, run, "RUNNING")
    assert epochs_of(tmp_path / "jobs" / "fake" / "checkpoint") == ["0", "1"]
    eventually(lambda: "['--new-lineage', '--wish', 'w1']" in api.log[run], "it is told what it stands on")
    assert report.attempts == 1
    other = f"{run}x"
    api.order(order(other, code, restore_location=str(tmp_path / "nowhere"), wish="w2"))
    failed = reported(api, other, "EXITED", final=True)
    assert failed.failure is not None
    assert failed.failure.error == "savepoint-missing"
    api.order()
    eventually(lambda: not api.reports, "all is forgotten")
