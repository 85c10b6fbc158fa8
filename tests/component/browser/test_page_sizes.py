"""What a page transfers to a browser that has nothing in its cache, as served, and its first paint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import sample_platform
from support.reporting import measured, weighed
from support.serving import Served

TRANSFERRED = """['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))
  .map((entry) => [entry.name, entry.transferSize])"""
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
CHARTS = "uPlot.iife.min.js"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("sizes"), jobs=20, hosts=4) as served:
        yield served


@pytest.mark.parametrize(("page_name", "largest_bytes"), [("overview", 60_000), ("job page", 150_000)])
def test_pages_are_small(
    pytestconfig: pytest.Config,
    api: Served,
    look: Callable[..., BrowserSession],
    page_name: str,
    largest_bytes: int,
) -> None:
    path = "/"
    if page_name == "job page":
        with api.client() as admin:
            jobs = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
            job = next(job for job in jobs if admin.get(f"/jobs/{job['id']}/checkpoints").json()["history"])
        path = f"/jobs/{job['id']}"
    session = look(api.url, api.admin)
    devtools = session.page.context.new_cdp_session(session.page)
    devtools.send("Network.enable")
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    page = session.go(path)
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    if page_name == "job page":
        expect(page.locator("#rates canvas")).to_be_visible()
    page.wait_for_function(FIRST_PAINT)
    sizes = {
        PurePosixPath(urlsplit(address).path).name: size for address, size in page.evaluate(TRANSFERRED) if size > 0
    }
    measured(pytestconfig, f"{page_name}, first contentful paint", page.evaluate(FIRST_PAINT) / 1000)
    weighed(pytestconfig, f"{page_name}, transferred", sum(sizes.values()))
    if CHARTS in sizes:
        weighed(pytestconfig, f"{page_name}, its chart library alone", sizes[CHARTS])
    assert {"page.js", "style.css"} <= set(sizes), "everything is transferred"
    assert sum(sizes.values()) <= largest_bytes, sizes
