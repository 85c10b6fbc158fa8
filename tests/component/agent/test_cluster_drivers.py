"""Drivers on Spark clusters, and checks of clusters: descriptions, secrets, and what the check application prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clonos.agent.settings import CLUSTER_CHECK_COMMAND
from clonos.agent.tasks import result_of
from clonos.jobs.cluster import ClusterSpec, read_cluster
from clonos.resources.hosts import HostTask, TaskResult
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, processes_of, run_spec
from component.agent.test_supervising import reported
from support.busy import slowdown

Host = Callable[..., ThreadAgent]


def cluster(**settings: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"metadata": {"name": "c"}, "spec": {"master": "spark://m:7077", **settings}})


def secret(home: Path, name: str, text: str) -> None:
    folder = home / "secrets" / "clusters"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def check(task: str, described: ClusterSpec, timeout_s: float = 60.0) -> HostTask:
    arguments = {"cluster": "id", "version": 1, "spec": described.model_dump(mode="json", by_alias=True)}
    return HostTask(task=task, kind="check-cluster", arguments={**arguments, "timeout_s": timeout_s})


def result(api: FakeApi, task: str) -> TaskResult:
    eventually(lambda: api.results[task], "the result is reported")
    return api.results[task][0]


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import json, os, sys\n{code}")


def test_a_driver_gets_its_cluster_and_the_secret(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    secret(tmp_path, "auth", "hunter2\n")
    secret(tmp_path, "key", "hunter3")
    described = cluster(authSecret="auth", sparkConf={"spark.ssl.keyPassword": "${secret:key}"})
    code = b"print(sys.argv[3:], os.environ['CLONOS_CLUSTER_SECRET'][::-1], flush=True); until_stopped()"
    api.assign(run_spec(run, api.upload(code), cluster=described))
    host()
    reported(api, run, "RUNNING")
    file = tmp_path / "agent" / "host-1" / "runs" / run / "cluster.json"
    eventually(lambda: f"['--cluster', '{file}'] 2retnuh" in api.log[run], "the driver gets the file and the secret")
    read = read_cluster(file)
    assert read.spec.spark_conf == {"spark.ssl.keyPassword": "hunter3"}
    assert read.spec.auth_secret == "auth"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hunter" not in (tmp_path / "agent" / "host-1" / "work.json").read_text()


def test_a_driver_without_a_cluster_has_neither(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    secret(tmp_path, "auth", "hunter2")
    code = b"print(sys.argv[3:], 'CLONOS_CLUSTER_SECRET' in os.environ, flush=True); until_stopped()"
    api.assign(run_spec(run, api.upload(code)))
    host()
    reported(api, run, "RUNNING")
    eventually(lambda: "[] False" in api.log[run], "the driver has no cluster")
    assert not (tmp_path / "agent" / "host-1" / "runs" / run / "cluster.json").exists()


@pytest.mark.parametrize(
    "settings", [{"authSecret": "absent"}, {"sparkConf": {"spark.x": "${secret:absent}"}}], ids=["auth", "conf"]
)
def test_a_run_without_a_secret_of_its_cluster_fails(
    api: FakeApi, host: Host, run: str, settings: dict[str, Any]
) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()"), cluster=cluster(**settings)))
    host()
    failure = reported(api, run, "EXITED", final=True).failure
    assert failure is not None
    assert failure.error == "spec-invalid"
    assert "clusters/absent" in failure.hint
    assert processes_of(run) == []


def test_a_check_reports_what_the_application_printed(api: FakeApi, host: Host, tmp_path: Path) -> None:
    secret(tmp_path, "auth", "hunter2")
    code = """
cluster = json.load(sys.stdin)
print("a line of Spark", file=sys.stderr)
seen = [cluster["spec"]["master"], os.environ["CLONOS_CLUSTER_SECRET"][::-1]]
print(json.dumps({"spark": "4.2.1", "executors": 2, "problems": seen}))
"""
    api.assign(tasks=(check("t1", cluster(authSecret="auth")),))
    host(cluster_check_command=script(code))
    done = result(api, "t1")
    assert done.ok
    assert done.result["executors"] == 2
    assert done.result["problems"] == ["spark://m:7077", "2retnuh"]


def test_a_check_without_its_secret_fails_before_it_starts(api: FakeApi, host: Host, tmp_path: Path) -> None:
    started = tmp_path / "started"
    api.assign(tasks=(check("t1", cluster(authSecret="absent")),))
    host(cluster_check_command=script(f"open({str(started)!r}, 'w')"))
    failure = result(api, "t1").failure
    assert failure is not None
    assert failure.error == "spec-invalid"
    assert not started.exists()


def test_a_check_that_does_not_end_is_killed_with_its_children(api: FakeApi, host: Host, tmp_path: Path) -> None:
    """A Python process whose JVM waits for executors that do not come."""
    pids, scratch = tmp_path / "pids", tmp_path / "scratch"
    code = f"""
import signal, subprocess
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open(os.environ["TMPDIR"] + "/state", "w").close()
open({str(scratch)!r}, "w").write(os.environ["TMPDIR"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
signal.pause()
"""
    limit_s = round(5 * slowdown())  # the process and its child start within it
    api.assign(tasks=(check("t1", cluster(), timeout_s=limit_s),))
    host(cluster_check_command=script(code))
    failure = result(api, "t1").failure
    assert failure is not None
    assert failure.error == "environment"
    assert f"within {limit_s} s" in failure.what
    for pid in map(int, pids.read_text().split()):
        eventually(lambda pid=pid: gone(pid), f"process {pid} exits")
    eventually(lambda: not Path(scratch.read_text()).exists(), "its temporary files are removed")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as another user")
def test_a_check_has_the_user_of_the_subject_that_added_the_cluster(api: FakeApi, host: Host) -> None:
    """The executors of a foreign cluster answer to it: it must not be root."""
    with tempfile.TemporaryDirectory() as folder:  # not below pytest's directory, which other users cannot enter
        Path(folder).chmod(0o711)
        api.assign(tasks=(check("t1", cluster()).model_copy(update={"owner_number": 2}),))
        report = """printf '{"problems": ["%s"]}' "$(id -u)" """
        agent = host(uids="60000-60009", home=Path(folder), cluster_check_command=("/bin/sh", "-c", report))
        assert result(api, "t1").result["problems"] == ["60001"]
        agent.stop()


PRINTED = {"error": "session-incompatible", "what": "Python differs.", "kept": "all.", "hint": "install it."}


@pytest.mark.parametrize(
    ("errors", "error", "what", "hint"),
    [
        (f"A log line\n{json.dumps(PRINTED)}\n", "session-incompatible", "Python differs.", "install it."),
        (json.dumps({"error": "no-such-slug", "what": "It fails."}), "error", "It fails.", ""),
        ("Traceback\nValueError: no\n", "error", "The check exited with 3: ValueError: no", ""),
        ("", "error", "The check exited with 3: it wrote no error", ""),
    ],
)
def test_the_error_of_a_check(errors: str, error: str, what: str, hint: str) -> None:
    failure = result_of(3, "", errors).failure
    assert failure is not None
    assert (failure.error, failure.what, failure.hint) == (error, what, hint)


@pytest.mark.parametrize("out", ["", "{}x", json.dumps({"executors": -1}), json.dumps({"other": 1})])
def test_a_check_that_prints_no_report_has_failed(out: str) -> None:
    assert result_of(0, "{}", "").ok
    failed = result_of(0, out, "")
    assert not failed.ok
    assert failed.failure is not None
    assert "it printed no report" in failed.failure.what


def test_the_check_application_prints_errors_that_the_agent_reads() -> None:
    ended = subprocess.run(CLUSTER_CHECK_COMMAND, input="{}", capture_output=True, text=True, timeout=100)
    failure = result_of(ended.returncode, ended.stdout, ended.stderr).failure
    assert failure is not None
    assert failure.error == "spec-invalid"
    assert "metadata" in failure.what
