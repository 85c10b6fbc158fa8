"""Every page with data: accessible, no wider than the screen, and without browser errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from clonos_api.dashboard.job import TABS
from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import sample_platform
from support.serving import Served

SCREENS: dict[str, dict[str, Any]] = {
    "wide and light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "narrow and dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("pages"), jobs=8, hosts=3) as served:
        yield served


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page(api: Served, look: Callable[..., BrowserSession], screen: str) -> None:
    with api.client() as admin:
        jobs = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
        # The jobs with the most data.
        paths = ["/", "/hosts", "/clusters", "/recoveries", "/events", "/submit", "/jobs/nosuch"]
        with_epochs = next(job for job in jobs if admin.get(f"/jobs/{job['id']}/checkpoints").json()["history"])
        paths += [f"/jobs/{with_epochs['id']}?tab={tab}" for tab in TABS]
        recovered = [(job, admin.get(f"/jobs/{job['id']}/recoveries").json()["data"]) for job in jobs]
        paths += [f"/jobs/{job['id']}/recoveries/{listed[0]['id']}" for job, listed in recovered if listed][:1]
    session = look(api.url, api.admin, **SCREENS[screen])
    session.refused["/jobs/nosuch"] = 404
    wrong: dict[str, Any] = {}
    for path in paths:
        page = session.go(path)
        page.wait_for_load_state("load")
        faults = session.faults()
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if faults or wider > 0:
            wrong[path] = (faults, wider)
    assert wrong == {}


def test_pages_below_the_path_of_a_proxy(tmp_path: Path, look: Callable[..., BrowserSession]) -> None:
    """Scripts, streams, buttons and the sign-in, too; the service answers as behind a proxy that keeps the path."""
    with sample_platform(tmp_path, jobs=5, hosts=2, public_url="https://tools.example/clonos") as api:
        session = look(f"{api.url}/clonos", api.admin)
        outside: list[str] = []
        session.page.on(
            "request", lambda request: outside.append(request.url) if "/clonos/" not in request.url else None
        )
        with api.client() as admin:
            job = admin.get("/jobs").json()["data"][0]["id"]
        for path in ("/", "/hosts", f"/jobs/{job}?tab=logs", f"/jobs/{job}"):
            page = session.go(path)
            expect(page.locator("#link")).to_have_attribute("data-state", "live")
        expect(page.locator("#lead")).not_to_be_empty()
        page.get_by_role("link", name="Hosts", exact=True).click()
        page.wait_for_url(f"{api.url}/clonos/hosts")
        page.get_by_role("button", name="Drain").first.click()
        page.locator("#ask-yes").click()
        expect(page.locator("#notes")).to_contain_text("Drain: requested.")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{api.url}/clonos/signin")
        assert outside == []
