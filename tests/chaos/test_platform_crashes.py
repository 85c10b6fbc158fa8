"""A job on the platform through crashes of its driver, the control plane and a host: exactly once, and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from stamped_job import JOB, TIMEOUT_S, StampedJob

from clonos.testing.harness import Stack, eventually
from support.local_stack import end_by_sigterm

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(3000)]


@contextmanager
def process_paused(pid: int) -> Iterator[None]:
    """Pause one process without its children."""
    process = psutil.Process(pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.mark.ci
@pytest.mark.chaos(fault="SIGKILL, SIGSTOP", target="driver, control plane, agent", topology="clonos up")
def test_a_job_survives_crashes_of_driver_control_plane_and_host(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    job = StampedJob(stack.client, stack.kafka)
    (tmp_path / "job.py").write_text(JOB)
    stack.cli("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    job.feed()
    job.await_all("the first records are published")
    home = job.get().host
    assert home is not None

    # The driver: its agent starts it again.
    job.kill_driver()
    job.feed()
    job.await_all("the restarted driver publishes")
    recovery = eventually(
        lambda: next((row for row in stack.json("recovery", "ls", "stamped")["data"] if row["downtime_ms"]), None),
        "the recovery is reported",
        timeout_s=TIMEOUT_S,
    )
    assert (recovery["failed_generation"], recovery["generation"], recovery["to_host"]) == (1, 2, home)
    assert recovery["failure"]["error"] == "driver-crashed"
    assert stack.json("job", "inspect", "stamped")["job"]["generation"] == 2

    # The control plane is paused when the driver is killed: the agent restarts it alone.
    state = stack.state()
    driver = job.await_driver()
    with process_paused(state["control_plane"]["pid"]):
        driver.kill()
        job.feed()
        job.await_all("the restarted driver publishes without a control plane")
    job.await_generation(3)

    # The host: its agent is paused and its driver killed, so the job moves; the resumed agent does not start it.
    driver = job.await_driver()
    with process_paused(state["agents"][home]["pid"]):
        driver.kill()
        job.feed()
        job.await_all("the driver on the other host publishes")
        assert job.get().host != home
    job.feed()
    job.await_all("it publishes after the host is back")

    job.await_generation(4)
    stopped = stack.client.operations.wait(stack.client.jobs.stop(job.name), timeout_s=TIMEOUT_S)
    assert stopped.state == "COMPLETED"
    assert job.get().state == "STOPPED"
    causes = [generation.cause for generation in stack.client.jobs.generations(job.name).data]
    assert causes[::-1] == ["start", "crash", "crash", "host-lost"]
    job.check()
    stack.down()
    assert stack.processes() == []


@pytest.mark.full
@pytest.mark.chaos(fault="SIGTERM", target="all processes", topology="clonos up")
def test_sigterm_ends_a_platform_with_a_busy_driver(
    stack: Stack, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The next `clonos up` continues the job."""
    report = stack.up()
    job = StampedJob(stack.client, stack.kafka)
    (tmp_path / "job.py").write_text(JOB)
    stack.cli("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out")
    job.feed()
    job.await_all("the first records are published")
    job.feed(200)
    record_property("ended_s", round(end_by_sigterm(stack), 2))
    stack.up("--port", report["api"].rsplit(":", 1)[1])
    job.feed()
    job.await_all("the job continues")
    job.check()
