"""An agent brings what runs to what is ordered: real processes, stopped, killed and crashed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.api import FakeApi
from agent.hosts import ThreadAgent, alive, order, processes_of
from clonos.agent import keeper
from clonos.agent.measuring import sizes
from clonos.agent.process import end_all
from clonos.resources.hosts import RestartOrder, RunReport
from observe import eventually

Host = Callable[..., ThreadAgent]


def reported(api: FakeApi, run: str, state: str, **fields: Any) -> RunReport:
    """The first report that is so."""

    def found() -> RunReport | None:
        report = api.reports.get(run)
        wanted = {"state": state, **fields}
        return report if report and all(getattr(report, name) == value for name, value in wanted.items()) else None

    report: RunReport = eventually(found, f"{run} is {state} {fields}, not {api.reports.get(run)}", timeout_s=20)
    return report


def test_the_size_of_a_checkpoint_is_told(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    query = tmp_path / "jobs" / "fake" / "checkpoint" / "out"
    (query / "commits").mkdir(parents=True)
    (query / "metadata").write_bytes(b"12")
    (query / "commits" / "0").write_bytes(b"345")
    api.order(order(run, api.upload(b"until_stopped()")))
    host(measure_s=0.05)
    reported(api, run, "RUNNING", checkpoint_bytes={"out": 5})
    (query / "commits" / "1").write_bytes(b"6789")
    reported(api, run, "RUNNING", checkpoint_bytes={"out": 9})


def test_the_size_of_a_checkpoint_elsewhere_is_not_known(tmp_path: Path) -> None:
    elsewhere = order("r1", "a" * 64)
    assert sizes(elsewhere, tmp_path) is None
    spec = elsewhere.spec.spec.model_copy(update={"checkpoint": "s3a://bucket/job"})
    moved = elsewhere.model_copy(update={"spec": elsewhere.spec.model_copy(update={"spec": spec})})
    assert sizes(moved, tmp_path) is None


def test_starts_stops_and_forgets(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(b"until_stopped()")
    api.order(order(run, code, attempt_base=4))
    host()
    report = reported(api, run, "RUNNING", generation=1, driver_state="RUNNING")
    assert report.attempts == 5
    assert report.pid is not None
    assert os.getsid(report.pid) == os.getpgid(report.pid) == report.pid
    assert "memory" not in api.registered[0].limits

    api.order(order(run, code, "STOP", attempt_base=4))
    stopped = reported(api, run, "EXITED", final=True)
    assert (stopped.exit_code, stopped.failure, stopped.attempts) == (0, None, 5)
    eventually(lambda: len(api.events[run]) == 4, "all events arrive")
    assert [json.loads(line)["event"] for line in api.events[run]] == ["claimed", "state", "state", "summary"]
    eventually(lambda: api.log[run] == "attempt 1\n", "the log arrives")

    api.order()
    eventually(lambda: run not in api.reports, "it is forgotten")
    assert list((tmp_path / "agent" / "host-1" / "runs").iterdir()) == []
    assert list((tmp_path / "agent" / "host-1" / "artifacts").iterdir()) == []


def test_who_ignores_a_stop_is_killed_when_its_time_is_over(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)")
    api.order(order(run, code))
    host()
    reported(api, run, "RUNNING")
    asked = time.monotonic()
    api.order(order(run, code, "STOP", stop_timeout_s=0.8))
    reported(api, run, "STOPPING")
    report = reported(api, run, "EXITED", final=True)
    assert report.exit_code == -signal.SIGKILL
    assert report.failure is None
    assert 0.7 < time.monotonic() - asked < 10
    assert processes_of(run) == []


def test_a_stop_becomes_a_forced_one(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"signal.signal(signal.SIGTERM, signal.SIG_IGN); running(); time.sleep(600)")
    api.order(order(run, code))
    host()
    reported(api, run, "RUNNING")
    api.order(order(run, code, "STOP", stop_timeout_s=300))
    reported(api, run, "STOPPING")
    api.order(order(run, code, "STOP", stop_mode="force"))
    assert reported(api, run, "EXITED", final=True).exit_code == -signal.SIGKILL


def test_a_frozen_driver_is_ended_and_started_again(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patiently(*which: Any) -> int:
        """End what the driver started, but not before somebody was told that it is frozen."""
        heard = threading.Event()
        while report.pid == which[1] and not heard.wait(0.01) and time.monotonic() < deadline:
            if any(one.state == "EXITED" for one in api.history[run]):
                heard.set()
        return end_all(*which)

    deadline = time.monotonic() + 15
    monkeypatch.setattr(keeper, "end_all", patiently)
    api.order(order(run, api.upload(b"until_stopped()"), restart=RestartOrder(yield_s=1.0)))
    host(silent_s=2.0)
    report = reported(api, run, "RUNNING", attempts=1)
    assert report.pid is not None
    os.kill(report.pid, signal.SIGSTOP)
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.pid != report.pid
    told = [one for one in api.history[run] if one.state == "EXITED"]
    assert {one.failure.error for one in told if one.failure} == {"driver-hung"}
    assert told[0].pid == report.pid, "told before it was killed: a standby need not wait for that"
    assert len({one.failure.at for one in told if one.failure}) == 1, "the time of the failure is one"


def test_a_driver_that_shows_that_it_lives_goes_on(api: FakeApi, host: Host, run: str) -> None:
    """It may have nothing to tell; it is silent for as long as its agent listens, and no longer."""
    api.order(order(run, api.upload(b"until_stopped()")))
    host(silent_s=0.9)
    reported(api, run, "RUNNING", attempts=1)
    heard = api.heartbeats
    eventually(lambda: api.heartbeats > heard + 15, "three seconds pass", timeout_s=20)
    reported(api, run, "RUNNING", attempts=1)


@pytest.mark.parametrize("how", ["force", "GONE", "forgotten", "crash", "stop"])
def test_nothing_is_left_of_a_driver(api: FakeApi, host: Host, run: str, tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    line = f"Path({str(pids)!r}).write_text(' '.join(map(str, grandchildren()))); until_stopped()"
    code = api.upload(line.encode())
    api.order(order(run, code, restart={"attempts": 0}))
    host()
    report = reported(api, run, "RUNNING")
    family = [report.pid, *map(int, pids.read_text().split())]
    assert all(alive(pid) for pid in family if pid)
    if how == "crash":
        os.kill(report.pid or 0, signal.SIGKILL)
    elif how == "forgotten":
        api.order()
    else:
        goal = "GONE" if how == "GONE" else "STOP"
        api.order(order(run, code, goal, stop_mode="force" if how == "force" else "graceful"))
    eventually(lambda: not any(alive(pid) for pid in family if pid), "all are gone")
    assert processes_of(run) == []


def test_crashes_are_tried_again_ever_later_and_then_given_up(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(generation=int(os.environ['CLONOS_ATTEMPT'])); fail('epoch-failed', 71)")
    api.order(order(run, code, restart={"attempts": 3, "backoff_ms": 100, "max_backoff_ms": 300}))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.attempts, report.exit_code, report.generation) == (4, 71, 4)
    assert report.failure is not None
    assert report.failure.error == "restarts-exhausted"
    assert "it is broken" in report.failure.what
    starts = sorted({one.started_at for one in api.history[run] if one.started_at})
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(pauses) == 3
    for pause, least in zip(pauses, (100, 200, 300), strict=True):
        assert pause >= timedelta(milliseconds=least)
    not_final = [one for one in api.history[run] if one.state == "EXITED" and not one.final]
    assert not_final
    assert not_final[0].failure is not None
    assert not_final[0].failure.error == "epoch-failed"


def test_who_was_well_for_a_while_has_all_attempts_again(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    code = api.upload(f"time.sleep(0.15); sys.exit(14) if Path({str(enough)!r}).exists() else sys.exit(71)".encode())
    api.order(order(run, code, restart=RestartOrder(attempts=1, backoff_ms=1, healthy_s=0.1)))
    host()
    eventually(lambda: api.reports.get(run) and api.reports[run].attempts > 4, "it goes on for ever")
    enough.touch()
    assert reported(api, run, "EXITED", final=True).exit_code == 14


def test_who_finishes_epochs_has_all_attempts_again(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(); emit('epoch', query='out', epoch=1, records=1, duration_ms=1); sys.exit(71)")
    api.order(order(run, code, restart=RestartOrder(attempts=1, backoff_ms=1)))
    host()
    eventually(lambda: api.reports.get(run) and api.reports[run].attempts > 4, "it goes on for ever")
    assert not api.reports[run].final


def test_what_is_the_users_to_mend_is_final_at_once(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"fail('job-code-failed', 14, 'division by zero')")))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.attempts, report.exit_code) == (1, 14)
    assert report.failure is not None
    assert (report.failure.error, report.failure.domain, report.failure.what) == (
        "job-code-failed",
        "user",
        "division by zero",
    )


def test_an_exit_is_seen_and_told_at_once(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"until_stopped()"), restart={"backoff_ms": 0}))
    host()
    first = reported(api, run, "RUNNING")
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    killed = datetime.now(UTC)
    again = reported(api, run, "RUNNING", attempts=2)
    assert again.started_at
    assert again.started_at - killed < timedelta(seconds=2)
    assert again.exit_code == -signal.SIGKILL
    assert again.failure is not None
    assert (again.failure.error, again.failure.retry) == ("driver-died", True)


def test_an_agent_ends_at_once_whatever_goes_on(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"sys.exit(71)"), restart={"attempts": 10_000, "backoff_ms": 0}))
    for _ in range(15):
        beats = api.heartbeats
        agent = host()
        eventually(lambda beats=beats: api.heartbeats > beats + 2, "it lives")
        asked = time.monotonic()
        agent.stop()
        assert time.monotonic() - asked < 3


def test_who_was_stopped_by_somebody_else_is_started_again(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"until_stopped()")))
    host()
    os.kill(reported(api, run, "RUNNING").pid or 0, signal.SIGTERM)
    reported(api, run, "RUNNING", attempts=2)


def test_who_has_finished_is_not_started_again(api: FakeApi, host: Host, run: str) -> None:
    code = api.upload(b"running(); end('FINISHED')")
    api.order(order(run, code))
    agent = host()
    report = reported(api, run, "EXITED", final=True)
    assert (report.exit_code, report.failure, report.driver_state) == (0, None, "FINISHED")
    agent.stop()
    api.reports.clear()
    host()  # neither by the next agent
    assert reported(api, run, "EXITED", final=True).attempts == 1


def test_a_driver_that_cannot_be_started_is_given_up(api: FakeApi, host: Host, run: str) -> None:
    api.order(order(run, api.upload(b"")))
    host(command=("/nowhere/python", "{spec}"))
    report = reported(api, run, "EXITED", final=True)
    assert report.failure is not None
    assert "/nowhere/python" in report.failure.what
    assert report.attempts == 4


def test_a_driver_sees_no_secret_of_its_agent(
    api: FakeApi, host: Host, run: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canary = "canary-5a1f"
    for name in ("CLONOS_TOKEN", "CLONOS_API_TOKEN", "DATABASE_URL", "CLONOS_DATABASE__URL", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, canary)
    for name in ("HTTP_PROXY", "PYTHONPATH", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, f"/{canary}")
    monkeypatch.setenv("CLONOS_KAFKA__SASL_USERNAME", "needed")
    token = tmp_path / "token"
    token.write_text(canary)
    line = b"print(json.dumps([dict(os.environ), sys.argv, os.getcwd(), os.listdir('/proc/self/fd')])); until_stopped()"
    api.order(order(run, api.upload(line)))
    host(token_file=token)
    report = reported(api, run, "RUNNING")
    eventually(lambda: api.log[run].count("\n") == 2, "it printed its environment")
    assert canary not in api.log[run]
    assert canary not in Path(f"/proc/{report.pid}/environ").read_text()
    environment, _, directory, _ = json.loads(api.log[run].splitlines()[1])
    assert environment["CLONOS_KAFKA__SASL_USERNAME"] == "needed"
    assert environment["CLONOS_HOME"] == str(tmp_path)
    assert environment["CLONOS_LOG_FORMAT"] == "json"
    assert Path(directory).name == "work"


def test_what_a_killed_driver_kept_for_itself_goes_with_it(api: FakeApi, host: Host, run: str, tmp_path: Path) -> None:
    code = api.upload(b"import tempfile; tempfile.mkdtemp(prefix='state-'); until_stopped()")
    kept = tmp_path / "agent" / "host-1" / "runs" / run / "tmp"
    api.order(order(run, code))
    host()
    first = reported(api, run, "RUNNING", attempts=1)
    (before,) = kept.iterdir()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    reported(api, run, "RUNNING", attempts=2)
    (after,) = kept.iterdir()
    assert after != before
    api.order(order(run, code, "STOP"))
    reported(api, run, "EXITED", final=True)
    assert not kept.exists()


_PROBE = """
dir=$(dirname $0)
for file in driver.json driver.log code/job.py ../../orders.json; do
    cat "$dir/$file" >/dev/null 2>&1 && echo "reads $file"
    (: >>"$dir/$file") 2>/dev/null && echo "writes $file"
done
cat $0 >/dev/null && : >scratch && echo "is $(id -u) $(id -G)"
echo '{"event": "state", "state": "RUNNING"}' >>$1
exec sleep 600
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run drivers as another user")
def test_drivers_of_another_user_can_write_only_what_is_theirs(api: FakeApi, host: Host, run: str) -> None:
    # Not below pytest's own folder, which is closed to others.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        api.order(order(run, api.upload(b"pass")))
        agent = host(uid=65534, gid=65534, home=Path(folder), command=("/bin/sh", "-c", _PROBE, "{spec}", "{events}"))
        reported(api, run, "RUNNING")
        eventually(lambda: "is" in api.log[run], "it wrote what it found")
        assert api.log[run].splitlines() == ["reads code/job.py", "is 65534 65534"]
        assert api.registered[0].limits == ["uid"]
        api.order()
        eventually(lambda: run not in api.reports, "it is forgotten")
        agent.stop()


def test_a_driver_gets_the_secrets_that_its_specification_refers_to(
    api: FakeApi, host: Host, run: str, tmp_path: Path
) -> None:
    """They stand in the driver's own file only; a secret that the host lacks is the user's to mend."""
    spec = {"metadata": {"name": "fake"}, "spec": {"params": {"login": "ada:${secret:db}"}}}
    code = api.upload(b"print(_job['spec']['params']['login'], oct(_spec.stat().st_mode)); until_stopped()")
    api.order(order(run, code, spec=spec))
    host()
    report = reported(api, run, "EXITED", final=True)
    assert report.failure is not None
    assert (report.failure.error, report.failure.domain, report.attempts) == ("spec-invalid", "user", 0)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "db").write_text("l0velace\n")
    api.order()
    eventually(lambda: run not in api.reports, "it is forgotten")
    api.order(order(run, code, spec=spec))
    reported(api, run, "RUNNING")
    eventually(lambda: "ada:l0velace 0o100600" in api.log[run], f"the driver has it: {api.log[run]}")
    kept = [one for one in (tmp_path / "agent").rglob("*") if one.is_file() and b"l0velace" in one.read_bytes()]
    assert {one.name for one in kept} == {"spec.yaml", "driver.log"}
