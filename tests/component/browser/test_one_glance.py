"""What the overview says at one glance, while driver, host, Kafka or control plane fail.

Each fault is real. The seconds until the page says it are in the summary of the tests.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Locator, expect

from chaos.stamped_job import JOB, TIMEOUT_S, StampedJob
from clonos.testing.harness import ProcessGroup, Stack, eventually
from component.browser.browser_session import BrowserSession
from support.reporting import measured

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(3000), pytest.mark.turn(6)]

_WITHIN_MS = 60_000  # a busy machine; the summary has the seconds


class Glance:
    """The open overview."""

    def __init__(self, config: pytest.Config, session: BrowserSession) -> None:
        self._config = config
        self.session = session
        self.page = session.go("/")
        self.banner = self.page.locator("#banner")
        self.kafka = self.page.locator("#kafka")
        self.link = self.page.locator("#link")

    def says(self, fault: str, place: Locator, text: str | re.Pattern[str], since: float) -> None:
        """Wait until a place of the page has this text."""
        expect(place).to_contain_text(text, timeout=_WITHIN_MS)
        measured(self._config, f"the overview says {fault!r} after", time.monotonic() - since)

    def is_good(self) -> None:
        """Wait until nothing needs attention."""
        expect(self.banner).to_contain_text("No running job is failing", timeout=TIMEOUT_S * 1000)
        expect(self.kafka).to_contain_text("Kafka: 1 broker", timeout=_WITHIN_MS)


@contextmanager
def fed(job: StampedJob) -> Iterator[None]:
    """Feed the job continuously: a job without input may rest, and is not red."""
    stop = threading.Event()

    def feed() -> None:
        while not stop.wait(0.5):
            job.feed(2)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def frozen(*processes: ProcessGroup | psutil.Process) -> Iterator[float]:
    """Stop processes with SIGSTOP; yields the time."""
    for process in processes:
        process.pause() if isinstance(process, ProcessGroup) else process.suspend()
    try:
        yield time.monotonic()
    finally:
        for process in processes:
            process.resume()


def broker(stack: Stack) -> psutil.Process:
    children = psutil.Process(stack.state()["supervisor"]["pid"]).children(recursive=True)
    return next(child for child in children if "kafka.Kafka" in child.cmdline())


def test_each_fault_is_seen(
    pytestconfig: pytest.Config, stack: Stack, look: Callable[..., BrowserSession], tmp_path: Path
) -> None:
    up = stack.up()
    job = StampedJob(stack.client, stack.kafka)
    (tmp_path / "job.py").write_text(JOB)
    stack.cli("submit", str(tmp_path / "job.py"), "-p", "in=in", "-p", "out=out", "--standbys", "1")
    glance = Glance(pytestconfig, look(up["api"], (stack.home / "admin.token").read_text().strip()))
    row = glance.page.locator(f"#j-{job.get().id}")

    job.feed()
    job.await_all("the first records are published")
    running = time.monotonic()
    glance.says("standby warming", row.locator(".takeover"), "cold", running)
    glance.says("standby warming, where", row.locator(".takeover"), "warming up", running)
    expect(row.locator(".takeover .mark")).to_contain_text("✔", timeout=TIMEOUT_S * 1000)
    glance.is_good()

    # Each fault lasts until the page says it. A takeover may end sooner: then the row has the recovery.
    killed = job.await_driver().kill().at
    job.feed()
    seen = glance.banner.filter(has_text="no output for").or_(row.filter(has_text="crash"))
    expect(seen.first).to_be_visible(timeout=_WITHIN_MS)
    measured(pytestconfig, "the overview says 'driver killed' after", time.monotonic() - killed)
    glance.says("driver killed, recovery", row, re.compile(r"crash\s+[\d.]+ (ms|s|min)"), killed)
    job.await_all("the standby continues")
    glance.is_good()

    with fed(job), frozen(broker(stack)) as since:
        glance.says("Kafka frozen", glance.kafka, "Kafka does not answer", since)
        glance.says("Kafka frozen, job", glance.banner, "stamped: no output for", since)
    job.await_all("the job continues")
    glance.is_good()

    host = job.get().host
    agent = psutil.Process(stack.state()["agents"][host]["pid"])
    with fed(job), frozen(agent, job.await_driver()) as since:
        glance.says("host frozen", glance.banner, re.compile(f"{host} sends no heartbeats|disconnected"), since)
        glance.says("host frozen, job", row, re.compile("no output for|host-lost"), since)
        job.until(lambda: job.get().host != host, "another host has the driver", TIMEOUT_S)
    job.await_all("the standby continues")

    glance.session.away = True
    state = stack.state()
    supervisor = psutil.Process(state["supervisor"]["pid"])
    with frozen(psutil.Process(state["control_plane"]["pid"])) as since:
        glance.says("control plane frozen", glance.link, "last update", since)
    expect(glance.link).to_have_attribute("data-state", "live", timeout=_WITHIN_MS)
    with frozen(supervisor):
        killed = time.monotonic()
        os.kill(state["control_plane"]["pid"], signal.SIGKILL)
        glance.says("control plane killed", glance.link, re.compile("disconnected|last update"), killed)
    eventually(lambda: stack.state()["control_plane"]["pid"] != state["control_plane"]["pid"], "it is restarted")
    expect(glance.link).to_have_attribute("data-state", "live", timeout=_WITHIN_MS)
    job.check()
