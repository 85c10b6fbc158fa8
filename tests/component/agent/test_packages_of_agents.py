"""An agent installs the packages of a job's lock, and starts its driver or standby with them."""

from __future__ import annotations

import io
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clonos.jobs.packages import LOCK
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, processes_of
from component.agent.test_standbys_of_agents import STANDS_BY
from component.agent.test_supervising import reported
from component.agent.test_users import home, root
from component.agent.test_warm_pool import POOL, folders, pooled, ready
from support.wheels import only_from, wheel

Host = Callable[..., ThreadAgent]
__all__ = ["home"]  # a fixture

PRINTS = b"import greeting; print('greeting', greeting.VERSION, flush=True)\n"


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "wheels").mkdir()
    for name, value in only_from(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "wheels"


def archive(code: bytes, lock: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("job.py", code)
        packed.writestr(LOCK, lock)
    return buffer.getvalue()


def greeted(api: FakeApi, run: str, version: str, times: int = 1) -> None:
    eventually(
        lambda: api.log[run].splitlines().count(f"greeting {version}") == times, f"{run} uses {version}: {api.log}"
    )


def test_two_jobs_use_different_versions_of_a_package(api: FakeApi, host: Host, run: str, wheels: Path) -> None:
    """The second has a standby, which is promoted, and then a restart."""
    first, second = f"{run}a", f"{run}b"
    code = STANDS_BY.replace(b"PAUSE", b"0")
    stands_by = archive(PRINTS + code, wheel(wheels, "greeting", "2.0"))
    drives = pooled(api, first, archive(PRINTS + b"until_stopped()", wheel(wheels, "greeting", "1.0")))
    api.assign(drives, pooled(api, second, stands_by, standby=True))
    host()
    reported(api, first, "RUNNING", driver_state="RUNNING")
    waiting = reported(api, second, "RUNNING", driver_state="READY")
    greeted(api, first, "1.0")
    greeted(api, second, "2.0")
    api.assign(drives, pooled(api, second, stands_by))
    promoted = reported(api, second, "RUNNING", driver_state="RUNNING")
    assert promoted.pid == waiting.pid
    assert promoted.pid is not None
    os.kill(promoted.pid, signal.SIGKILL)
    reported(api, second, "RUNNING", driver_state="RUNNING", attempts=2)
    greeted(api, second, "2.0", times=2)


@pytest.mark.turn
def test_a_job_with_packages_uses_no_pool_driver(
    api: FakeApi, host: Host, run: str, tmp_path: Path, wheels: Path
) -> None:
    """A pool driver has imported the host's packages."""
    host(**POOL)
    ready(api)
    (pool_driver,) = folders(tmp_path)
    api.assign(pooled(api, run, archive(PRINTS + b"until_stopped()", wheel(wheels, "greeting", "1.0"))))
    report = reported(api, run, "RUNNING", driver_state="RUNNING")
    greeted(api, run, "1.0")
    assert report.pid not in processes_of(pool_driver.name)


@pytest.mark.turn
@pytest.mark.parametrize("lock", ["greeting>=1", f"greeting==1.0 --hash=sha256:{'0' * 64}"])
def test_packages_that_cannot_be_installed_fail_the_run(api: FakeApi, host: Host, run: str, lock: str) -> None:
    api.assign(pooled(api, run, archive(b"until_stopped()", lock)))
    host()
    failure = reported(api, run, "EXITED", final=True).failure
    assert failure is not None
    assert failure.error == "packages-invalid"
    assert "greeting" in failure.what


@pytest.mark.turn
def test_an_index_that_does_not_answer_blocks_the_run_until_it_does(
    api: FakeApi, host: Host, run: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = wheel(wheels, "greeting", "1.0")
    for name, value in {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    api.assign(pooled(api, run, archive(PRINTS + b"until_stopped()", lock)))
    host()
    blocked: Any = eventually(
        lambda: (report := api.reports.get(run)) and report.failure, "the run is blocked", timeout_s=60
    )
    assert blocked.error == "packages-unavailable"
    for name, value in only_from(wheels).items():
        monkeypatch.setenv(name, value)
    reported(api, run, "RUNNING", driver_state="RUNNING")
    greeted(api, run, "1.0")


_PROBE = """
cat "$CLONOS_PACKAGES/greeting.py"
touch "$CLONOS_PACKAGES/new" 2>/dev/null && echo "can write"
cat "$CLONOS_PACKAGES.lock" && echo "can lock"
echo '{"event": "state", "state": "RUNNING"}' >>$1
exec sleep 600
"""


@root
def test_a_driver_with_a_user_of_its_own_reads_packages_and_writes_none(
    api: FakeApi, host: Host, run: str, home: Path, wheels: Path
) -> None:
    spec = pooled(api, run, archive(b"pass", wheel(wheels, "greeting", "1.0")))
    api.assign(spec.model_copy(update={"owner": "alice", "owner_number": 1}))
    agent = host(uids="20000-20001", home=home, command=("/bin/sh", "-c", _PROBE, "{spec}", "{events}"))
    reported(api, run, "RUNNING")
    eventually(lambda: "can lock" in api.log[run], "the probe is done")
    assert api.log[run].splitlines() == ["VERSION = '1.0'", "can lock"]
    api.assign()
    eventually(lambda: not api.reports, "the run is removed")
    agent.stop()
