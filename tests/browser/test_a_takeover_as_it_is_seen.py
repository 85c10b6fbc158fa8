"""A job is submitted in the page, its driver is killed, and the page shows who took over, without being loaded anew."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from browser.looking import Looker
from chaos.shouting import JOB, PATIENCE_S, Shout, started
from integration.test_up_and_down import Machine
from observe import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(600)]

Look = Callable[..., Looker]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home")
    yield made
    made.clonos("down")
    assert made.processes() == []


def test_a_takeover(machine: Machine, look: Look, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    up, plain = started(machine, request)
    shout = Shout(plain, up["kafka"])
    code = tmp_path / "job.py"
    code.write_text(JOB)
    spec = {"main": "job.py", "params": {"in": "in", "out": "out"}, "standby": {"replicas": 1}}
    named = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": "shout"}, "spec": spec}
    token = (machine.home / "admin.token").read_text().strip()
    viewer = machine.json("token", "create", "eyes", "--role", "viewer")["token"]

    somebody = look(up["api"], token)
    page = somebody.go("/submit")
    page.get_by_label("Code").set_input_files(code)
    page.get_by_label("Specification").fill("metadata: {name: 'not a name'}")
    expect(page.locator("#verdict")).to_contain_text("It would be refused")
    page.get_by_label("Specification").fill(yaml.safe_dump(named))
    page.get_by_role("button", name="Submit").click(timeout=15_000)
    page.wait_for_url(re.compile("/jobs/"))
    job = page.url.rpartition("/")[2]
    assert somebody.faults() == []

    eyes = look(up["api"], viewer, viewport={"width": 390, "height": 800}, color_scheme="dark")
    overview = eyes.go("/")
    row = overview.locator(f"#j-{job}")
    shout.feed()
    shout.await_all("the first records are published")
    expect(row).to_contain_text("standby READY", timeout=PATIENCE_S * 1000)
    assert eyes.faults() == []
    overview.evaluate("document.body.dataset.same = 'yes'")

    driver = shout.driver()
    shout.kill(driver)
    shout.feed()
    expect(row).to_contain_text("crash", timeout=PATIENCE_S * 1000)
    shout.await_all("the standby goes on")
    expect(row).to_contain_text(re.compile(r"crash\s+[\d.]+ (ms|s|min)"), timeout=PATIENCE_S * 1000)
    assert overview.evaluate("document.body.dataset.same") == "yes", "it was not loaded anew"

    # The control plane dies under the open page.
    eyes.away = somebody.away = True
    state = json.loads((machine.home / "local" / "state.json").read_text())
    os.kill(state["control_plane"]["pid"], signal.SIGKILL)
    expect(overview.locator("#link")).to_have_attribute("data-state", "away", timeout=20_000)
    expect(overview.locator("#link")).to_have_attribute("data-state", "live", timeout=60_000)
    assert overview.evaluate("document.body.dataset.same") == "yes", "it carries on"
    eyes.away = somebody.away = False

    recovery = eventually(lambda: plain.get(f"/jobs/{job}/recoveries").json()["data"], "it is told")[0]
    row.get_by_role("link", name="crash").click()
    overview.wait_for_url(re.compile("/recoveries/"))
    assert recovery["id"] in overview.url
    table = overview.locator(".waterfall").first
    for phase in recovery["phases"]:
        named_so = table.get_by_role("row").filter(
            has=overview.get_by_role("rowheader", name=phase["name"], exact=True)
        )
        expect(named_so).to_contain_text(f"{phase['duration_ms']:.0f} ms")
    assert overview.get_by_role("button", name="Stop").count() == 0
    for path in (f"/jobs/{job}", f"/jobs/{job}?tab=recoveries", f"/jobs/{job}?tab=logs", "/hosts", "/events"):
        eyes.go(path)
        assert eyes.faults() == [], path
        assert eyes.page.locator("[data-call]").count() == 0, "a viewer has no buttons"

    page = somebody.go(f"/jobs/{job}")
    page.get_by_role("button", name="Stop").click()
    page.locator("#ask").get_by_role("button", name="Stop").click()
    expect(page.locator(".heading")).to_contain_text("STOPPED", timeout=60_000)
    shout.check()
