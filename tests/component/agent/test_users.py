"""Drivers and tasks of each owner run as a user of their own, with `AgentSettings.uids`."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from clonos.agent.users import DriverUser, driver_user, give_folder
from clonos.errors import EnvironmentFault, SpecError
from clonos.resources.hosts import HostTask
from clonos.resources.jobs import Failure
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec, settings
from component.agent.test_supervising import reported

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run drivers as other users")
# The ids of runs are in lists of the control plane, so another owner knows them.
_PROBE = """
own=$(dirname $0)
echo "is $(id -u) $(id -G)"
for owner in alice mallory; do
    for file in spec.yaml code/job.py work/w events.jsonl driver.log driver.json; do
        cat "${own%-*}-$owner/$file" >/dev/null 2>&1 && echo "reads $owner $file"
        (: >>"${own%-*}-$owner/$file") 2>/dev/null && echo "writes $owner $file"
    done
    ls "$CLONOS_HOME/jobs/$owner" >/dev/null 2>&1 && echo "lists $owner"
    (: >>"$CLONOS_HOME/jobs/$owner/file") 2>/dev/null && echo "writes $owner checkpoint"
done
for folder in jobs secrets agent agent/host-1/runs agent/host-1/artifacts; do
    ls "$CLONOS_HOME/$folder" >/dev/null 2>&1 && echo "lists $folder"
done
cat "$CLONOS_HOME/agent/host-1/artifacts/$ARTIFACT" >/dev/null 2>&1 && echo "reads artifact"
cat "$CLONOS_HOME/secrets/alice/db" >/dev/null 2>&1 && echo "reads secret"
echo "is done"
echo '{"event": "state", "state": "RUNNING"}' >>$1
exec sleep 600
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A private ``CLONOS_HOME``, not below pytest's directory, which other users cannot enter."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@root
def test_owners_read_nothing_of_each_other(
    api: FakeApi, host: Callable[..., ThreadAgent], run: str, home: Path
) -> None:
    (home / "secrets" / "alice").mkdir(parents=True)
    (home / "secrets" / "alice" / "db").write_text("l0velace")
    code = api.upload(b"pass")
    alice, mallory = (
        run_spec(f"{run}-{owner}", code, name=owner, owner=owner, owner_number=number)
        for number, owner in enumerate(("alice", "mallory"), 1)
    )
    command = ("/bin/sh", "-c", _PROBE, "{spec}", "{events}")
    agent = host(uids="20000-20001", home=home, command=command, driver_environment={"ARTIFACT": code})
    for spec in (alice, mallory):
        api.assign(*([alice] if spec is alice else [alice, mallory]))
        reported(api, spec.run, "RUNNING")
        eventually(lambda spec=spec: "is done" in api.log[spec.run], "the probe is done")  # type: ignore[misc]
    for uid, spec in ((20000, alice), (20001, mallory)):
        assert api.log[spec.run].splitlines() == [
            f"is {uid} {uid}",
            f"reads {spec.name} spec.yaml",
            f"writes {spec.name} spec.yaml",
            f"reads {spec.name} code/job.py",
            f"writes {spec.name} work/w",
            f"reads {spec.name} events.jsonl",
            f"writes {spec.name} events.jsonl",
            f"lists {spec.name}",
            f"writes {spec.name} checkpoint",
            "is done",
        ]
    assert api.registered[0].limits == ["uid"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o711
    api.assign()
    eventually(lambda: not api.reports, "the runs are removed")
    agent.stop()


@root
def test_a_task_has_the_user_of_its_owner(api: FakeApi, host: Callable[..., ThreadAgent], home: Path) -> None:
    report = """printf '{"instance": "", "ok": true, "result": {"is": "%s %s"}}' "$(id -u)" "$(id -G)" """
    target = home / "savepoints" / "orders" / "s1"
    tasks = [
        HostTask(task="t1", kind="savepoint", arguments={"target": str(target)}, owner_number=2),
        HostTask(task="t2", kind="savepoint", arguments={"target": str(target)}, owner_number=1),
        HostTask(task="t3", kind="savepoint", owner_number=3),
    ]
    agent = host(uids="20000-20001", home=home, task_command=("/bin/sh", "-c", report))
    for task in tasks:
        api.assign(tasks=(task,))
        eventually(lambda task=task: api.results[task.task], "the result is reported")  # type: ignore[misc]
    agent.stop()
    results = {name: results[0] for name, results in api.results.items()}
    assert results["t1"].result == {"is": "20001 20001"}
    assert (target.parent.stat().st_uid, stat.S_IMODE(target.parent.stat().st_mode)) == (20001, 0o700)
    for name, what in (("t2", "belongs to the user 20001"), ("t3", "has no user for the owner with the number 3")):
        failure = results[name].failure
        assert failure is not None
        assert failure.error == "environment"
        assert what in failure.what


@root
def test_a_folder_of_another_user_is_left_alone(
    api: FakeApi, host: Callable[..., ThreadAgent], run: str, home: Path
) -> None:
    """The run starts as soon as an admin has changed the owner."""
    folder = home / "jobs" / "fake"
    folder.mkdir(parents=True)
    api.assign(run_spec(run, api.upload(b"until_stopped()"), owner="ada", owner_number=1))
    home.chmod(0o711)
    command = (
        "/bin/sh",
        "-c",
        """echo '{"event": "state", "state": "RUNNING"}' >>$1; exec sleep 600""",
        "x",
        "{events}",
    )
    agent = host(uids="20000-20001", home=home, command=command)

    def blocked() -> Failure:
        eventually(lambda: run in api.reports and api.reports[run].failure is not None, "the run is blocked")
        failure = api.reports[run].failure
        assert failure is not None
        return failure

    assert "belongs to the user 0, and its job runs as the user 20000" in blocked().what
    os.chown(folder, 20000, 20000)
    folder.parent.chmod(0o777)
    eventually(lambda: "Other users can add entries" in blocked().what, "the shared folder is refused")
    folder.parent.chmod(0o711)
    reported(api, run, "RUNNING")
    api.assign()
    eventually(lambda: not api.reports, "the run is removed")
    agent.stop()


@root
def test_an_agent_that_is_killed_between_the_steps_blocks_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, user = tmp_path / "jobs", DriverUser(20000, 20000)
    with monkeypatch.context() as killed:
        killed.setattr(os, "chown", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            give_folder(shared, "orders", user)
    give_folder(shared, "orders", user)
    assert [(path.name, path.stat().st_uid) for path in shared.iterdir()] == [("orders", 20000)]


def test_each_owner_has_a_user(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "http://localhost", uids="20000-20001")
    assert driver_user(chosen, 1) == DriverUser(20000, 20000)
    assert driver_user(chosen, 2) == DriverUser(20001, 20001)
    for number in (0, 3):
        with pytest.raises(EnvironmentFault, match="has no user for the owner"):
            driver_user(chosen, number)
    one = settings(tmp_path, "http://localhost", uid=7, gid=8)
    assert driver_user(one, 0) == driver_user(one, 9) == DriverUser(7, 8)
    assert driver_user(settings(tmp_path, "http://localhost"), 1) is None


@pytest.mark.parametrize("uids", ["0-5", "5", "7-6", "x-y", "-1-5", "20000-20001;"])
def test_ranges_that_are_refused(tmp_path: Path, uids: str) -> None:
    with pytest.raises(ValidationError):
        settings(tmp_path, "http://localhost", uids=uids)


@root
def test_code_is_closed_while_a_run_is_blocked(
    api: FakeApi, host: Callable[..., ThreadAgent], run: str, home: Path
) -> None:
    """A secret is missing after the code was installed."""
    spec = {"metadata": {"name": "fake"}, "spec": {"params": {"login": "${secret:db}"}}}
    api.assign(run_spec(run, api.upload(b"pass"), spec=spec, owner="ada", owner_number=1))
    agent = host(uids="20000-20001", home=home, command=("/bin/true",))
    reported(api, run, "EXITED", final=True)
    (code,) = home.glob("agent/*/runs/*/code/job.py")
    assert stat.S_IMODE(code.parents[1].stat().st_mode) == 0o700
    agent.stop()


def test_a_group_and_a_range_exclude_each_other(tmp_path: Path) -> None:
    """With one group, owners would read each other's code."""
    with pytest.raises(ValidationError, match="gid and uids exclude each other"):
        settings(tmp_path, "http://localhost", uids="20000-20001", gid=7)


def test_one_user_and_a_range_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        settings(tmp_path, "http://localhost", uids="20000-20001", uid=7)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/etc"])
def test_a_folder_is_an_entry_of_the_shared_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError):
        give_folder(tmp_path / "jobs", name, DriverUser(20000, 20000))
