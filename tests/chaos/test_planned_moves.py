"""Records flow steadily while a job is moved, drained, upgraded, and upgraded to broken code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import pytest
import yaml
from stamped_job import JOB, TIMEOUT_S, StampedJob

from clonos.client import Client
from clonos.resources.jobs import Recovery
from clonos.resources.service import Operation
from clonos.settings import KafkaSettings
from clonos.testing.harness import CommittedReader, Stack, eventually

T = TypeVar("T")
pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]

UPGRADED: Final = JOB.replace('f"{value} {clonos', 'f"{value} new {clonos')
RAISES: Final = JOB.replace("    return f", '    raise ValueError("broken")\n    return f')
UNDEFINED: Final = JOB.replace('    lines = ctx.source(ctx.params["in"])', "    lines = no_such_name")
_EVERY_S: Final = 0.02


class SteadyJob(StampedJob):
    """A job with endless input, whose output a reader follows."""

    def __init__(self, client: Client, kafka: KafkaSettings) -> None:
        super().__init__(client, kafka)
        self._stopping = threading.Event()
        self._arrivals: list[float] = []
        self._reader = CommittedReader(kafka, {"out": 2}, lambda _row, _at: self._arrivals.append(time.time()))
        self._reader.start()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            self.feed(2)

    def await_flow(self) -> None:
        """Wait until a record arrives more than a second from now."""
        now = time.time()
        assert self._reader.wait_for(lambda: bool(self._arrivals) and self._arrivals[-1] > now + 1.0, TIMEOUT_S)

    def during(self, description: str, change: Callable[[], T]) -> T:
        """Make a change while records flow before and after."""
        self.await_flow()
        started = time.time()
        result = change()
        self.await_flow()
        print(f"{description}: done after {time.time() - started:.1f} s, load {os.getloadavg()[0]:.1f}")
        return result

    def await_recovery(self) -> Recovery:
        """Wait until the newest recovery is complete; print the reader's wait and the phases."""

        def completed() -> Recovery | None:
            newest = self.recoveries()[0]
            return newest if newest.outcome == "COMPLETED" else None

        recovery = self.until(completed, "the recovery is complete")
        assert recovery.ended_at is not None
        started, ended = recovery.started_at.timestamp(), recovery.ended_at.timestamp()
        arrivals = [at for at in self._arrivals if started - 1.0 < at < ended + 1.0]
        longest = max(later - earlier for earlier, later in pairwise(arrivals))
        phases = {phase.name: round(phase.duration_ms) for phase in recovery.phases}
        print(f"  {recovery.cause}: the reader waited {longest * 1000:.0f} ms, {recovery.downtime_ms} ms, {phases}")
        return recovery

    def close(self) -> None:
        """Stop the input and wait until everything is published."""
        self._stopping.set()
        self._thread.join(60)
        self.await_all("everything is published")
        self._reader.stop()

    def await_running(self, host: str | None = None, version: int | None = None) -> None:
        """Wait until the job runs, on this host and as this version."""

        def running() -> bool:
            job = self.get()
            placed = host in (None, job.host) and version in (None, job.observed_version)
            return job.state == "RUNNING" and placed

        self.until(running, f"it runs on {host or 'any host'}")


def write_job(folder: Path, code: str, replicas: int = 1) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "job.py").write_text(code)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": replicas}}
    document = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return str(folder)


@pytest.mark.chaos(fault="move, drain, upgrade, rescale, broken upgrades", target="driver", topology="clonos up")
@pytest.mark.full
def test_records_flow_while_the_driver_is_replaced(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    job = SteadyJob(stack.client, stack.kafka)
    stack.cli("submit", write_job(tmp_path / "job", JOB))
    job.await_running()

    # To another host, where a standby is ready.
    home = job.get().host
    (other,) = {host.name for host in stack.client.hosts.list().data} - {home}
    job.await_standby()
    moved = job.during("move", lambda: stack.json("job", "move", job.name, "--to", other))
    assert moved["state"] == "COMPLETED"
    job.await_running(other)
    recovery = job.await_recovery()
    assert (recovery.cause, recovery.from_host, recovery.to_host) == ("move", home, other)

    # Off a host that is drained.
    job.await_standby()

    def drain() -> None:
        stack.cli("host", "drain", other)
        job.await_running(home)

    job.during("drain", drain)
    assert job.await_recovery().cause == "move"
    stack.cli("host", "undrain", other)

    # To other code.
    job.await_standby()
    upgraded = write_job(tmp_path / "upgraded", UPGRADED)
    done = job.during("upgrade", lambda: stack.json("job", "upgrade", job.name, upgraded))
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 2)
    assert job.await_recovery().cause == "upgrade"
    job.await_running(version=2)

    # To another number of shuffle partitions.
    job.await_standby()
    done = job.during("rescale", lambda: stack.json("job", "rescale", job.name, "--partitions", "3"))
    assert (done["state"], done["result"]["version"]) == ("COMPLETED", 3)
    job.await_running(version=3)
    eventually(
        lambda: any("rescaled" in line for line in stack.client.jobs.logs(job.name, tail=500).lines),
        "the driver reports the rescale",
    )

    # To code that no standby becomes ready with: the driver is not disturbed.
    generation = job.get().generation
    undefined = write_job(tmp_path / "undefined", UNDEFINED)
    assert_failed(job.during("upgrade to code without a job", lambda: failed_upgrade(stack, undefined)), "move-failed")
    assert (job.get().generation, job.get().observed_version) == (generation, 3)

    # To code that fails with the first record: the previous version is restored.
    job.await_standby()
    raises = write_job(tmp_path / "raises", RAISES)
    assert_failed(job.during("upgrade to code that raises", lambda: failed_upgrade(stack, raises)), "upgrade-failed")
    job.await_running(version=3)
    failure = job.await_recovery().failure
    assert failure is not None
    assert failure.error == "job-code-failed"
    assert job.get().version == 3, "each later start runs it"
    assert [version.version for version in stack.client.jobs.versions(job.name).data] == [5, 4, 3, 2, 1]

    job.close()
    job.check()
    texts = [(row.value() or b"").decode().split() for row in job.rows()]
    assert {text[1] == "new" for text in texts} == {True, False}


def failed_upgrade(stack: Stack, path: str) -> Operation:
    """The operation of an upgrade that fails."""
    assert stack.run("job", "upgrade", "stamped", path).returncode != 0
    return stack.client.operations.list(job="stamped").data[0]


def assert_failed(operation: Operation, error: str) -> None:
    assert (operation.kind, operation.state) == ("upgrade", "FAILED")
    assert operation.failure is not None
    assert operation.failure.error == error
