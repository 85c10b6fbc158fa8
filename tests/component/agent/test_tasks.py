"""Tasks for savepoints are executed once and reported until acknowledged; drivers start from a savepoint."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clonos.agent import restoring
from clonos.agent.restoring import require_unpublished
from clonos.agent.task_process import execute
from clonos.driver import savepoint
from clonos.driver.checkpoint_owner import (
    OWNER_FILE,
    JobOwner,
    OwnerFile,
    check_checkpoint,
    encode,
    read_owner,
)
from clonos.errors import CheckpointForeign, JobForeign, SavepointMissing, SpecError, WouldPublishAgain
from clonos.log.control import ControlState
from clonos.log.platform_identity import Platform
from clonos.resources.hosts import HostTask
from clonos.spark.local_folder import LocalFolder
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec
from component.agent.test_supervising import reported

Host = Callable[..., ThreadAgent]


def checkpoint(folder: Path, epochs: int, query: str = "q") -> Path:
    """Write a checkpoint in the format of Spark."""
    for log in ("offsets", "commits"):
        (folder / query / log).mkdir(parents=True, exist_ok=True)
        for epoch in range(epochs):
            (folder / query / log / str(epoch)).write_text(f"{log} {epoch}")
    (folder / query / "metadata").write_text("{}")
    return folder


def restore(target: Path | str, location: Path | str, *arguments: Any, owner: JobOwner) -> None:
    restoring.restore(LocalFolder(str(target)), LocalFolder(str(location)), *arguments, owner=owner)


def take_savepoint(checkpoint: Path, target: Path, owner: JobOwner) -> None:
    savepoint.take(LocalFolder(str(checkpoint)), LocalFolder(str(target)), owner=owner)


def text_in(folder: Path) -> str | None:
    return LocalFolder(str(folder)).read_text(OWNER_FILE)


def epochs_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "q" / "commits").iterdir())


@pytest.mark.parametrize("through", ["name", "link"])
def test_the_checkpoint_of_another_job_is_neither_copied_nor_rewound(tmp_path: Path, through: str) -> None:
    """No spelling leads around the owner file, which is in the directory."""
    theirs = checkpoint(tmp_path / "theirs", 3)
    (theirs / OWNER_FILE).write_text('{"job": "theirs", "lineage": 1}')
    location = theirs
    if through == "link":
        location = tmp_path / "link"
        location.symlink_to(theirs)
    copy = {"location": str(location), "target": str(tmp_path / "copy"), "job": "mine"}
    taken = execute(HostTask(task="t", kind="savepoint", arguments=copy))
    assert taken.failure is not None
    assert taken.failure.error == "checkpoint-foreign"
    with pytest.raises(CheckpointForeign, match="is the checkpoint of theirs, not the checkpoint of mine"):
        restore(location, str(location), 0, "w1", owner=JobOwner("mine"))
    assert epochs_of(theirs) == ["0", "1", "2"]
    assert not (tmp_path / "copy").exists()
    restore(theirs, str(theirs), 0, "w1", owner=JobOwner("theirs"))
    assert epochs_of(theirs) == ["0"]


def stolen(task: str, **arguments: object) -> str:
    """The error of a task of mallory's job, or ``ok``."""
    mine = {"job": "m-b", "subjects": ["mallory"]}
    result = execute(HostTask(task="t", kind=task, arguments={**mine, **arguments}))  # type: ignore[arg-type]
    return "ok" if result.failure is None else result.failure.error


def test_the_savepoint_of_another_subject_is_neither_copied_nor_changed_nor_deleted(tmp_path: Path) -> None:
    """The control plane may have accepted another name of the folder, such as a link."""
    alice = JobOwner("alice-job", ("alice",))
    source, saved = checkpoint(tmp_path / "alice", 3), tmp_path / "saved"
    take_savepoint(str(source), str(saved), owner=alice)
    (tmp_path / "link").symlink_to(saved)
    before = sorted(path.relative_to(saved) for path in saved.rglob("*"))
    link = str(tmp_path / "link")
    assert stolen("savepoint", location=link, target=str(tmp_path / "copy")) == "checkpoint-foreign"
    assert stolen("delete-savepoint", location=link) == "checkpoint-foreign"
    own = checkpoint(tmp_path / "mallory", 2)
    assert stolen("savepoint", location=str(own), target=f"{link}/m-b/1") == "checkpoint-foreign"
    with pytest.raises(CheckpointForeign, match=r"is a savepoint of alice-job \(alice\), not a savepoint of m-b"):
        restore(tmp_path / "m-b", link, None, "w1", owner=JobOwner("m-b", ("mallory",)))
    assert sorted(path.relative_to(saved) for path in saved.rglob("*")) == before
    assert not (tmp_path / "m-b.before-w1").exists()
    # Another job of the owner starts from it, and owner files do not come along.
    target = tmp_path / "next"
    restore(target, str(saved), None, "w1", owner=JobOwner("alice-next", ("alice",)))
    check_checkpoint(text_in(target), JobOwner("alice-next", ("alice",)), str(target))
    with pytest.raises(CheckpointForeign, match="is a savepoint of alice-job"):
        check_checkpoint(text_in(saved), alice, str(saved))  # not even of its own job


def test_the_same_name_of_another_subject_is_another_job(tmp_path: Path) -> None:
    """Two control planes may share a mount; an admin takes over a name with its former owner among the subjects."""
    theirs = checkpoint(tmp_path / "theirs", 3)
    (theirs / OWNER_FILE).write_text('{"job": "orders", "subject": "ada", "lineage": 1}')
    with pytest.raises(CheckpointForeign, match=r"is the checkpoint of orders \(ada\), not the checkpoint of orders"):
        restore(theirs, str(theirs), 1, "w1", owner=JobOwner("orders", ("bob",)))
    restore(theirs, str(theirs), 1, "w1", owner=JobOwner("orders", ("root", "ada")))
    file = read_owner(text_in(theirs))
    assert file is not None
    assert (file.subject, file.savepoint) == ("root", False)


def test_a_checkpoint_of_another_control_plane_needs_an_adoption(tmp_path: Path) -> None:
    """Two control planes may share a mount, and have subjects of the same name."""
    east = Platform("e" * 32, "the control plane at https://east", control_plane=True)
    west, home = replace(east, id="w" * 32, name="west"), Platform("h" * 32, "`clonos run`")
    file = OwnerFile("orders", "ada", 1, platform=east)
    folder = checkpoint(tmp_path / "orders", 3)
    (folder / OWNER_FILE).write_text(encode(file))
    for other in (west, home):
        with pytest.raises(JobForeign, match=r"the checkpoint of orders of the control plane at https://east; this is"):
            restore(folder, str(folder), 1, "w1", owner=JobOwner("orders", ("ada",), other))
    assert epochs_of(folder) == ["0", "1", "2"]
    assert read_owner(text_in(folder)) == file
    restore(folder, str(folder), 1, "w1", owner=JobOwner("orders", ("ada",), west, adopt=True))
    assert epochs_of(folder) == ["0", "1"]
    check_checkpoint(text_in(folder), JobOwner("orders", ("ada",), west), str(folder))
    with pytest.raises(JobForeign, match="job start orders --adopt"):
        check_checkpoint(text_in(folder), JobOwner("orders", ("ada",), east), str(folder))
    check_checkpoint(text_in(folder), JobOwner("orders", ("ada",)), str(folder))  # an agent of an older version
    # Savepoints are handed over: they name no platform.
    take_savepoint(str(folder), str(tmp_path / "saved"), owner=JobOwner("orders", ("ada",), west))
    restore(tmp_path / "east", str(tmp_path / "saved"), None, "w1", owner=JobOwner("orders", ("ada",), east))
    copied = read_owner(text_in(tmp_path / "east"))
    assert copied is not None
    assert copied.platform == east


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as another user")
def test_a_task_has_the_user_of_drivers(api: FakeApi, host: Host) -> None:
    """It works on folders that drivers own, and must reach nothing else."""
    report = """printf '{"instance": "", "ok": true, "result": {"is": "%s %s"}}' "$(id -u)" "$(id -G)" """
    with tempfile.TemporaryDirectory() as folder:  # not below pytest's directory, which other users cannot enter
        Path(folder).chmod(0o711)
        api.assign(tasks=(HostTask(task="t1", kind="savepoint", arguments={}),))
        agent = host(uid=65534, gid=65533, home=Path(folder), task_command=("/bin/sh", "-c", report))
        eventually(lambda: api.results["t1"], "the result is reported")
        agent.stop()
    assert api.results["t1"][0].result == {"is": "65534 65533"}


def test_savepoint_is_taken_and_deleted(api: FakeApi, host: Host, tmp_path: Path) -> None:
    source, target = checkpoint(tmp_path / "checkpoint", 3), tmp_path / "saved" / "one"
    create = HostTask(
        task="t1", kind="savepoint", arguments={"location": str(source), "target": str(target), "job": "orders"}
    )
    api.assign(tasks=(create,))
    agent = host()
    eventually(lambda: api.results["t1"], "the result is reported")
    assert api.results["t1"][0].ok
    assert api.results["t1"][0].result["epochs"] == {"q": 2}
    assert epochs_of(target) == ["0", "1", "2"]

    agent.stop()
    host()  # reports the stored result; executing the task again would fail, because the target exists
    eventually(lambda: len(api.results["t1"]) == 2, "the result is reported again")
    assert api.results["t1"][1].ok

    remove = HostTask(task="t2", kind="delete-savepoint", arguments={"location": str(target), "job": "orders"})
    missing = HostTask(
        task="t3", kind="savepoint", arguments={"location": str(tmp_path / "nowhere"), "target": "x", "job": "orders"}
    )
    api.assign(tasks=(remove, missing))
    eventually(lambda: api.results["t2"] and api.results["t3"], "both results are reported")
    assert api.results["t2"][0].ok
    assert not target.exists()
    failure = api.results["t3"][0].failure
    assert failure is not None
    assert failure.error == "savepoint-missing"
    assert not (tmp_path / "agent" / "host-1" / "tasks" / "t1.json").exists(), "the work no longer contains the task"


def test_task_fails_if_its_process_is_killed(api: FakeApi, host: Host) -> None:
    api.assign(tasks=(HostTask(task="t1", kind="savepoint"),))
    host(task_command=(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
    eventually(lambda: api.results["t1"], "the result is reported")
    assert not api.results["t1"][0].ok


def test_task_whose_process_cannot_be_started_fails_with_the_reason(api: FakeApi, host: Host) -> None:
    api.assign(tasks=(HostTask(task="t1", kind="savepoint"),))
    host(task_command=("/nonexistent/program",))
    eventually(lambda: api.results["t1"], "the result is reported")
    failure = api.results["t1"][0].failure
    assert failure is not None
    assert (failure.error, "/nonexistent/program" in failure.what) == ("environment", True)


def test_restore_is_executed_once_for_each_request_key(tmp_path: Path) -> None:
    job, saved = checkpoint(tmp_path / "job", 5), checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    restore(f"file://{job}", str(saved), None, "w1", owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1"]
    assert epochs_of(tmp_path / "job.before-w1") == ["0", "1", "2", "3", "4"]
    checkpoint(job, 4)  # the job continues from there
    restore(f"file://{job}", str(saved), None, "w1", owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1", "2", "3"]
    restore(f"file://{job}", str(saved), None, "w2", owner=JobOwner("orders"))  # another request key
    assert epochs_of(job) == ["0", "1"]
    assert epochs_of(tmp_path / "job.before-w2") == ["0", "1", "2", "3"]


def test_only_the_newest_previous_checkpoint_remains(tmp_path: Path) -> None:
    """Older ones become empty directories, which show that their requests were executed."""
    job, saved = checkpoint(tmp_path / "job", 5), checkpoint(tmp_path / "saved", 2)
    other = checkpoint(tmp_path / "job-2.before-w1", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    for request_key in ("w1", "w2", "w3"):
        restore(job, str(saved), None, request_key, owner=JobOwner("orders"))
        assert epochs_of(tmp_path / f"job.before-{request_key}") == (
            ["0", "1"] if request_key != "w1" else [str(n) for n in range(5)]
        )
    assert [[file.name for file in (tmp_path / f"job.before-{key}").iterdir()] for key in ("w1", "w2")] == [
        [".moved"]
    ] * 2
    assert epochs_of(other) == ["0", "1"]  # another job's
    checkpoint(job, 7)
    restore(
        str(job), str(saved), None, "w1", owner=JobOwner("orders")
    )  # a driver on a host considered lost repeats its request
    assert epochs_of(job) == [str(n) for n in range(7)]


def test_restore_refuses_to_publish_logged_epochs_again(tmp_path: Path) -> None:
    job = checkpoint(tmp_path / "job", 5)
    state = ControlState(committed={"q": 4})
    checked: list[dict[str, int]] = []

    def allow(epochs: Mapping[str, int]) -> None:
        checked.append(dict(epochs))
        require_unpublished(state, epochs)

    with pytest.raises(WouldPublishAgain):
        restore(job, str(job), 2, "w1", allow, owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1", "2", "3", "4"]  # nothing has changed
    assert not (tmp_path / "job.before-w1").exists()
    restore(job, str(job), 4, "w2", allow, owner=JobOwner("orders"))
    state.committed["q"] = 9  # the job continued from there; a restart of its driver repeats the request
    restore(job, str(job), 4, "w2", allow, owner=JobOwner("orders"))
    assert checked == [{"q": 2}, {"q": 4}]
    saved = checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    with pytest.raises(WouldPublishAgain):
        restore(job, str(saved), None, "w3", allow, owner=JobOwner("orders"))
    restore(job, str(saved), None, "w3", owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1"]


def test_restore_to_an_epoch_of_the_same_checkpoint(tmp_path: Path) -> None:
    job = checkpoint(tmp_path / "job", 5)
    for _ in range(2):
        restore(job, f"file://{job}", 2, "w1", owner=JobOwner("orders"))
        assert epochs_of(job) == ["0", "1", "2"]
    with pytest.raises(SavepointMissing):
        restore(job, str(job), 7, "w2", owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1", "2"]  # nothing has changed
    restore(job, str(job), 1, "w2", owner=JobOwner("orders"))
    assert epochs_of(job) == ["0", "1"]
    with pytest.raises(SpecError):
        restore("s3a://bucket/job", "s3a://bucket/saved", None, "w1", owner=JobOwner("orders"))


def test_driver_starts_from_a_savepoint(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    saved = checkpoint(tmp_path / "saved", 2)
    (saved / "savepoint.json").write_text(json.dumps({"epochs": {"q": 1}, "size_bytes": 1}))
    code = api.upload(b"print(sys.argv[3:], flush=True); until_stopped()")
    point = {"savepoint": "s1", "publish_again": True}
    api.assign(run_spec(run, code, restore_location=str(saved), request_key="w1", start_from=point))
    host()
    report = reported(api, run, "RUNNING")
    assert epochs_of(tmp_path / "jobs" / "fake" / "checkpoint") == ["0", "1"]
    eventually(lambda: "['--new-lineage', '--request-key', 'w1']" in api.log[run], "the driver gets the request key")
    assert report.attempts == 1
    other = f"{run}x"
    api.assign(run_spec(other, code, restore_location=str(tmp_path / "nowhere"), request_key="w2"))
    failed = reported(api, other, "EXITED", final=True)
    assert failed.failure is not None
    assert failed.failure.error == "savepoint-missing"
    api.assign()
    eventually(lambda: not api.reports, "both runs are removed")
