"""An agent starts, restarts and stops drivers according to its work, with real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clonos.agent import run_attempt
from clonos.agent.capacity import measure_checkpoint
from clonos.agent.process import kill_all
from clonos.resources.hosts import RunReport, RunRestartPolicy
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, alive, processes_of, run_spec
from support.busy import slowdown, within

Host = Callable[..., ThreadAgent]


def reported(api: FakeApi, run: str, state: str, **fields: Any) -> RunReport:
    """Wait for a report with these values."""

    def matching() -> RunReport | None:
        report = api.reports.get(run)
        expected = {"state": state, **fields}
        return report if report and all(getattr(report, name) == value for name, value in expected.items()) else None

    report: RunReport = eventually(matching, f"{run} is {state} {fields}, not {api.reports.get(run)}", timeout_s=60)
    return report


def test_size_of_a_checkpoint_is_reported(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    query = tmp_path / "jobs" / "fake" / "checkpoint" / "out"
    (query / "commits").mkdir(parents=True)
    (query / "metadata").write_bytes(b"12")
    (query / "commits" / "0").write_bytes(b"345")
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    host(measure_s=0.05)
    reported(api, run, "RUNNING", checkpoint_bytes={"out": 5})
    (query / "commits" / "1").write_bytes(b"6789")
    reported(api, run, "RUNNING", checkpoint_bytes={"out": 9})


def test_size_of_a_remote_checkpoint_is_unknown(tmp_path: Path) -> None:
    elsewhere = run_spec("r1", "a" * 64)
    assert measure_checkpoint(elsewhere, tmp_path) is None
    spec = elsewhere.spec.spec.model_copy(update={"checkpoint": "s3a://bucket/job"})
    moved = elsewhere.model_copy(update={"spec": elsewhere.spec.model_copy(update={"spec": spec})})
    assert measure_checkpoint(moved, tmp_path) is None


def test_agent_starts_stops_and_removes_a_run(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(b"until_stopped()")
    api.assign(run_spec(run, code, earlier_attempts=4))
    host()
    report = reported(api, run, "RUNNING", generation=1, driver_state="RUNNING")
    assert report.attempts == 5
    assert report.pid is not None
    assert os.getsid(report.pid) == os.getpgid(report.pid) == report.pid
    assert "memory" not in api.registered[0].limits

    api.assign(run_spec(run, code, "STOPPED", earlier_attempts=4))
    stopped = reported(api, run, "EXITED", final=True)
    assert (stopped.exit_code, stopped.failure, stopped.attempts) == (0, None, 5)
    eventually(lambda: len(api.events[run]) == 4, "all events arrive")
    assert [json.loads(line)["event"] for line in api.events[run]] == ["claimed", "state", "state", "summary"]
    eventually(lambda: api.log[run] == "attempt 1\n", "the log arrives")

    api.assign()
    eventually(lambda: run not in api.reports, "the run is removed")
    assert list((tmp_path / "agent" / "host-1" / "runs").iterdir()) == []
    assert list((tmp_path / "agent" / "host-1" / "artifacts").iterdir()) == []


def test_driver_that_ignores_a_stop_is_killed_after_the_timeout(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)")
    api.assign(run_spec(run, code))
    host()
    reported(api, run, "RUNNING")
    requested = time.monotonic()
    api.assign(run_spec(run, code, "STOPPED", stop_timeout_s=5.0))
    reported(api, run, "STOPPING")
    with within(20.0):
        report = reported(api, run, "EXITED", final=True)
    assert report.exit_code == -signal.SIGKILL
    assert report.failure is not None
    assert report.failure.error == "stop-timed-out"
    assert time.monotonic() - requested > 4.9
    assert processes_of(run) == []


def test_forced_stop_replaces_a_graceful_stop(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)")
    api.assign(run_spec(run, code))
    host()
    reported(api, run, "RUNNING")
    api.assign(run_spec(run, code, "STOPPED", stop_timeout_s=300))
    reported(api, run, "STOPPING")
    api.assign(run_spec(run, code, "STOPPED", stop_mode="force"))
    assert reported(api, run, "EXITED", final=True).exit_code == -signal.SIGKILL


@pytest.mark.parametrize(("desired", "ends"), [("STOPPED", True), ("ABSENT", False)])
def test_transactions_of_a_killed_driver_are_ended_if_no_other_driver_follows(
    api: FakeApi, host: Host, run: str, tmp_path: Path, desired: str, ends: bool
) -> None:
    """ABSENT: a standby may have taken over, and its producers must not be fenced."""
    ended = tmp_path / "ended"
    program = f"import sys; open({str(ended)!r}, 'a').write(' '.join(sys.argv[1:]))"
    command = (sys.executable, "-c", program, "{job}", "{platform}")
    code = api.upload(b"running(); time.sleep(600)")
    api.assign(run_spec(run, code, platform="c0ffee"))
    host(ending_command=command)
    reported(api, run, "RUNNING")
    api.assign(run_spec(run, code, desired, stop_mode="force", platform="c0ffee"))
    reported(api, run, "EXITED", final=True)
    assert ended.exists() is ends
    assert not ends or ended.read_text() == "fake c0ffee", "before the end is reported"


def test_an_adoption_holds_for_one_claim(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    """A driver that another platform has fenced must not take the log back."""
    seen = tmp_path / "seen"
    code = f"""
open({str(seen)!r}, "a").write(f"{{sys.argv}}\\n")
number = len(open({str(seen)!r}).readlines())
if number > 1:
    running(number)
if number < 3:
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""
    api.assign(run_spec(run, api.upload(code.encode()), platform="c0ffee", adopt=True))
    host()
    reported(api, run, "RUNNING", attempts=3)
    without_claim, first_claim, third = seen.read_text().splitlines()
    assert "--adopt" in without_claim
    assert "--adopt" in first_claim
    assert "--adopt" not in third
    assert "'--platform', 'c0ffee the control plane at http://" in third


def test_unresponsive_driver_is_killed_and_restarted(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_all_after_the_report(*arguments: Any) -> int:
        """Kill the driver's processes, but only after the agent reported the driver as unresponsive."""
        received = threading.Event()
        while report.pid == arguments[1] and not received.wait(0.01) and time.monotonic() < deadline:
            if any(past.state == "EXITED" for past in api.history[run]):
                received.set()
        return kill_all(*arguments)

    deadline = time.monotonic() + 300
    monkeypatch.setattr(run_attempt, "kill_all", kill_all_after_the_report)
    api.assign(run_spec(run, api.upload(b"until_stopped()"), restart=RunRestartPolicy(takeover_wait_s=1.0)))
    host(driver_heartbeat_timeout_s=6.0)
    report = reported(api, run, "RUNNING", attempts=1)
    assert report.pid is not None
    os.kill(report.pid, signal.SIGSTOP)
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.pid != report.pid
    exited = [past for past in api.history[run] if past.state == "EXITED"]
    assert {past.failure.error for past in exited if past.failure} == {"driver-unresponsive"}
    assert exited[0].pid == report.pid, "reported before the kill, so that a standby does not wait for it"
    assert len({past.failure.at for past in exited if past.failure}) == 1, "the time of the failure does not change"


def test_driver_with_signs_of_life_keeps_running(api: FakeApi, host: Host, run: str) -> None:
    """An idle driver emits no events; touching its event file is enough."""
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    limit_s = 2.0 * slowdown()
    host(driver_heartbeat_timeout_s=limit_s)
    reported(api, run, "RUNNING", attempts=1)
    over = time.monotonic() + 1.5 * limit_s
    eventually(lambda: time.monotonic() > over, "the limit passes", timeout_s=120)
    reported(api, run, "RUNNING", attempts=1)


@pytest.mark.parametrize("how", ["force", "ABSENT", "removed", "crash", "stop"])
def test_all_processes_of_a_driver_are_killed(api: FakeApi, host: Host, run: str, tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    line = f"Path({str(pids)!r}).write_text(' '.join(map(str, grandchildren()))); until_stopped()"
    code = api.upload(line.encode())
    api.assign(run_spec(run, code, restart={"attempts": 0}))
    host()
    report = reported(api, run, "RUNNING")
    family = [report.pid, *map(int, pids.read_text().split())]
    assert all(alive(pid) for pid in family if pid)
    if how == "crash":
        os.kill(report.pid or 0, signal.SIGKILL)
    elif how == "removed":
        api.assign()
    else:
        desired = "ABSENT" if how == "ABSENT" else "STOPPED"
        api.assign(run_spec(run, code, desired, stop_mode="force" if how == "force" else "graceful"))
    eventually(lambda: not any(alive(pid) for pid in family if pid), "all processes exit")
    assert processes_of(run) == []


def test_crashing_driver_is_restarted_after_growing_pauses(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(generation=int(os.environ['CLONOS_ATTEMPT'])); fail('epoch-failed', 71)")
    api.assign(run_spec(run, code, restart={"attempts": 3, "initial_backoff_ms": 100, "max_backoff_ms": 300}))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.attempts, report.exit_code, report.generation) == (4, 71, 4)
    assert report.failure is not None
    assert report.failure.error == "restarts-exhausted"
    assert "it is broken" in report.failure.what
    starts = sorted({past.started_at for past in api.history[run] if past.started_at})
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(pauses) == 3
    for pause, least in zip(pauses, (100, 200, 300), strict=True):
        assert pause >= timedelta(milliseconds=least)
    not_final = [past for past in api.history[run] if past.state == "EXITED" and not past.final]
    assert not_final
    assert not_final[0].failure is not None
    assert not_final[0].failure.error == "epoch-failed"


def test_healthy_time_resets_the_attempts(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    code = api.upload(f"time.sleep(0.15); sys.exit(14) if Path({str(enough)!r}).exists() else sys.exit(71)".encode())
    api.assign(run_spec(run, code, restart=RunRestartPolicy(attempts=1, initial_backoff_ms=1, reset_after_s=0.1)))
    host()
    eventually(lambda: api.reports.get(run) and api.reports[run].attempts > 4, "the restarts continue")
    enough.touch()
    assert reported(api, run, "EXITED", final=True).exit_code == 14


def test_finished_epoch_resets_the_attempts(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(); emit('epoch', query='out', epoch=1, records_out=1, duration_ms=1); sys.exit(71)")
    api.assign(run_spec(run, code, restart=RunRestartPolicy(attempts=1, initial_backoff_ms=1)))
    host()
    eventually(lambda: api.reports.get(run) and api.reports[run].attempts > 4, "the restarts continue")
    assert not api.reports[run].final


def test_error_of_the_user_is_final(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"fail('job-code-failed', 14, 'division by zero')")))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.attempts, report.exit_code) == (1, 14)
    assert report.failure is not None
    assert (report.failure.error, report.failure.domain, report.failure.what) == (
        "job-code-failed",
        "user",
        "division by zero",
    )


def test_exit_is_reported_at_once(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()"), restart={"initial_backoff_ms": 0}))
    host()
    first = reported(api, run, "RUNNING")
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    killed = datetime.now(UTC)
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.started_at
    assert again.started_at - killed < timedelta(seconds=10) * slowdown()
    assert again.exit_code == -signal.SIGKILL
    assert again.failure is not None
    assert (again.failure.error, again.failure.retry) == ("driver-crashed", True)


def test_agent_stops_at_once_during_restarts(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"sys.exit(71)"), restart={"attempts": 10_000, "initial_backoff_ms": 0}))
    for _ in range(15):
        beats = api.heartbeats
        agent = host()
        eventually(lambda beats=beats: api.heartbeats > beats + 2, "the agent sends heartbeats")
        with within(15.0):
            agent.stop()


def test_driver_stopped_by_another_process_is_restarted(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    host()
    os.kill(reported(api, run, "RUNNING").pid or 0, signal.SIGTERM)
    reported(api, run, "RUNNING", attempts=2)


def test_finished_driver_is_not_restarted(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(); end('FINISHED')")
    api.assign(run_spec(run, code))
    agent = host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.exit_code, report.failure, report.driver_state) == (0, None, "FINISHED")
    agent.stop()
    api.reports.clear()
    host()  # the next agent does not restart it either
    assert reported(api, run, "EXITED", final=True).attempts == 1


def test_command_that_cannot_start_exhausts_the_attempts(api: FakeApi, host: Host, run: str) -> None:
    api.assign(run_spec(run, api.upload(b"")))
    host(command=("/nowhere/python", "{spec}"))
    report = reported(api, run, "EXITED", final=True)
    assert report.failure is not None
    assert "/nowhere/python" in report.failure.what
    assert report.attempts == 4


PASSED_ON = (
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)


def test_driver_environment_contains_no_secret_of_the_agent(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canary = "canary-5a1f"
    for name in ("CLONOS_TOKEN", "CLONOS_API_TOKEN", "DATABASE_URL", "CLONOS_DATABASE__URL", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, canary)
    for name in ("PYTHONPATH", "JAVA_TOOL_OPTIONS", "UV_INDEX_PASSWORD"):
        monkeypatch.setenv(name, f"/{canary}")
    monkeypatch.setenv("CLONOS_KAFKA__SASL_USERNAME", "needed")
    for name, value in {"TZ": "Europe/Berlin", "LC_ALL": "C", "LC_CTYPE": "C"}.items():
        monkeypatch.setenv(name, value)
    for name in PASSED_ON:
        monkeypatch.setenv(name, f"of {name}")
    token = tmp_path / "token"
    token.write_text(canary)
    line = b"print(json.dumps([dict(os.environ), sys.argv, os.getcwd(), os.listdir('/proc/self/fd')])); until_stopped()"
    api.assign(run_spec(run, api.upload(line)))
    host(token_file=token)
    report = reported(api, run, "RUNNING")
    eventually(lambda: api.log[run].count("\n") == 2, "the driver has printed its environment")
    assert canary not in api.log[run]
    assert canary not in Path(f"/proc/{report.pid}/environ").read_text()
    environment, _, directory, _ = json.loads(api.log[run].splitlines()[1])
    assert environment["CLONOS_KAFKA__SASL_USERNAME"] == "needed"
    assert {name: environment[name] for name in PASSED_ON} == {name: f"of {name}" for name in PASSED_ON}
    assert environment["CLONOS_HOME"] == str(tmp_path)
    assert environment["CLONOS_LOG_FORMAT"] == "json"
    assert (environment["TZ"], environment["LC_ALL"], "LC_CTYPE" in environment) == ("UTC", "C.UTF-8", False)
    assert Path(directory).name == "work"


def test_temporary_files_of_a_killed_driver_are_removed(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(b"import tempfile; tempfile.mkdtemp(prefix='state-'); until_stopped()")
    scratch = tmp_path / "agent" / "host-1" / "runs" / run / "tmp"
    api.assign(run_spec(run, code))
    host()
    first = reported(api, run, "RUNNING", attempts=1)
    (before,) = scratch.iterdir()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    reported(api, run, "RUNNING", attempts=2)
    (after,) = scratch.iterdir()
    assert after != before
    api.assign(run_spec(run, code, "STOPPED"))
    reported(api, run, "EXITED", final=True)
    assert not scratch.exists()


_PROBE = """
dir=$(dirname $0)
for file in driver.json driver.log code/job.py ../../work.json; do
    cat "$dir/$file" >/dev/null 2>&1 && echo "reads $file"
    (: >>"$dir/$file") 2>/dev/null && echo "writes $file"
done
cat $0 >/dev/null && : >scratch && echo "is $(id -u) $(id -G)"
echo '{"event": "state", "state": "RUNNING"}' >>$1
exec sleep 600
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run drivers as another user")
def test_drivers_of_another_user_write_only_their_own_files(api: FakeApi, host: Host, run: str) -> None:
    # Not below pytest's directory, which other users cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        api.assign(run_spec(run, api.upload(b"pass")))
        agent = host(uid=65534, gid=65534, home=Path(folder), command=("/bin/sh", "-c", _PROBE, "{spec}", "{events}"))
        reported(api, run, "RUNNING")
        eventually(lambda: "is" in api.log[run], "the probe has printed its result")
        assert api.log[run].splitlines() == ["reads code/job.py", "is 65534 65534"]
        assert api.registered[0].limits == ["uid"]
        api.assign()
        eventually(lambda: run not in api.reports, "the run is removed")
        agent.stop()


def test_driver_gets_the_secrets_of_its_specification(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    """Only the driver's own files contain the secrets. A missing secret is an error of the user."""
    spec = {"metadata": {"name": "fake"}, "spec": {"params": {"login": "ada:${secret:db}"}}}
    code = api.upload(b"print(_job['spec']['params']['login'], oct(_spec.stat().st_mode)); until_stopped()")
    api.assign(run_spec(run, code, spec=spec))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert report.failure is not None
    assert (report.failure.error, report.failure.domain, report.attempts) == ("spec-invalid", "user", 0)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "db").write_text("l0velace\n")
    api.assign()
    eventually(lambda: run not in api.reports, "the run is removed")
    api.assign(run_spec(run, code, spec=spec))
    reported(api, run, "RUNNING")
    eventually(lambda: "ada:l0velace 0o100600" in api.log[run], f"the driver has the secret: {api.log[run]}")
    leaks = [path for path in (tmp_path / "agent").rglob("*") if path.is_file() and b"l0velace" in path.read_bytes()]
    assert {path.name for path in leaks} == {"spec.yaml", "driver.log"}
