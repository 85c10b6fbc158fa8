"""A job is submitted in the browser, its driver is killed, and the page shows the takeover without a reload."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from chaos.stamped_job import JOB, TIMEOUT_S, StampedJob
from clonos.testing.harness import Stack, eventually
from component.browser.browser_session import BrowserSession

pytestmark = [pytest.mark.ci, pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(3000)]

Look = Callable[..., BrowserSession]


def test_the_overview_shows_a_takeover(stack: Stack, look: Look, tmp_path: Path) -> None:
    up = stack.up()
    stamped = StampedJob(stack.client, stack.kafka)
    code = tmp_path / "job.py"
    code.write_text(JOB)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": 1}}
    named = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "stamped"}, "spec": spec}
    token = (stack.home / "admin.token").read_text().strip()
    viewer = stack.json("token", "create", "eyes", "--role", "viewer")["token"]

    session = look(up["api"], token)
    page = session.go("/submit")
    page.get_by_label("Code").set_input_files(code)
    page.get_by_label("Specification").fill("metadata: {name: 'not a name'}")
    expect(page.locator("#verdict")).to_contain_text("Invalid", timeout=TIMEOUT_S * 1000)
    page.get_by_label("Specification").fill(yaml.safe_dump(named))
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile("/jobs/"))
    job = page.url.rpartition("/")[2]
    assert session.faults() == []

    eyes = look(up["api"], viewer, viewport={"width": 390, "height": 800}, color_scheme="dark")
    overview = eyes.go("/")
    row = overview.locator(f"#j-{job}")
    stamped.feed()
    stamped.await_all("the first records are published")
    expect(row).to_contain_text("standby READY", timeout=TIMEOUT_S * 1000)
    assert eyes.faults() == []
    overview.evaluate("document.body.dataset.same = 'yes'")

    driver = stamped.await_driver()
    driver.kill()
    stamped.feed()
    expect(row).to_contain_text("crash", timeout=TIMEOUT_S * 1000)
    stamped.await_all("the standby continues")
    expect(row).to_contain_text(re.compile(r"crash\s+[\d.]+ (ms|s|min)"), timeout=TIMEOUT_S * 1000)
    assert overview.evaluate("document.body.dataset.same") == "yes", "the page was not reloaded"

    # The control plane is killed while the page is open. Its supervisor is stopped until the page has shown the loss:
    # a restart that takes less than 5 s is not shown.
    eyes.away = session.away = True
    state = stack.state()
    os.kill(state["supervisor"]["pid"], signal.SIGSTOP)
    try:
        os.kill(state["control_plane"]["pid"], signal.SIGKILL)
        expect(overview.locator("#link")).to_have_attribute("data-state", "away", timeout=60_000)
    finally:
        os.kill(state["supervisor"]["pid"], signal.SIGCONT)
    expect(overview.locator("#link")).to_have_attribute("data-state", "live", timeout=60_000)
    assert overview.evaluate("document.body.dataset.same") == "yes", "the page was not reloaded"
    eyes.away = session.away = False

    recovery = eventually(stamped.recoveries, "the recovery is recorded")[0]
    row.get_by_role("link", name="crash").click()
    overview.wait_for_url(re.compile("/recoveries/"))
    assert recovery.id in overview.url
    table = overview.locator(".waterfall").first
    for phase in recovery.phases:
        named_so = table.get_by_role("row").filter(has=overview.get_by_role("rowheader", name=phase.name, exact=True))
        expect(named_so).to_contain_text(f"{phase.duration_ms:.0f} ms")
    assert overview.get_by_role("button", name="Stop").count() == 0
    for path in (f"/jobs/{job}", f"/jobs/{job}?tab=recoveries", f"/jobs/{job}?tab=logs", "/hosts", "/events"):
        eyes.go(path)
        assert eyes.faults() == [], path
        assert eyes.page.locator("[data-call]").count() == 0, "a viewer has no buttons"

    page = session.go(f"/jobs/{job}")
    page.get_by_role("button", name="Stop").click()
    page.locator("#ask").get_by_role("button", name="Stop").click()
    expect(page.locator(".heading")).to_contain_text("STOPPED", timeout=60_000)
    stamped.check()
