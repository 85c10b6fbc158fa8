"""The log of a job in the browser: epochs collapsed, searched, filtered, raw, downloaded, and empty."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import sample_platform
from support.serving import Served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("logs"), jobs=5, hosts=2) as served:
        yield served


@pytest.fixture(scope="module")
def jobs(api: Served) -> list[dict[str, Any]]:
    with api.client() as admin:
        listed: list[dict[str, Any]] = admin.get("/jobs").raise_for_status().json()["data"]
        return listed


def has_log(api: Served, job: dict[str, Any]) -> bool:
    with api.client() as admin:
        return bool(admin.get(f"/jobs/{job['id']}/logs", params={"tail": 1}).json()["lines"])


def test_the_log_tab(api: Served, jobs: list[dict[str, Any]], look: Callable[..., BrowserSession]) -> None:
    job = next(job for job in jobs if has_log(api, job))
    session = look(api.url, api.admin)
    page = session.go(f"/jobs/{job['id']}?tab=logs")
    rows = page.locator("#lines .entry")
    expect(page.locator("#lines")).to_contain_text("the job's own line")
    expect(rows.filter(has_text="committed")).to_have_text([re.compile("epochs 0–59 committed, 61 lines")])
    expect(rows.filter(has_text="replay of epoch 60")).to_have_count(1)
    expect(rows.filter(has_text="lag of out")).to_have_text([re.compile("in 700 \\(newest of 3 lines\\)")])
    assert session.faults() == []

    page.get_by_label("Search").fill("CONNECTION to node")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Spark JVM")
    page.get_by_label("Search").fill("no such line")
    expect(page.locator("#log-empty")).to_have_text("No line matches.")
    page.get_by_label("Search").fill("")
    page.get_by_label("Level").select_option("error")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("score failed")
    rows.get_by_text("3 more lines").click()
    expect(rows).to_contain_text("OSError: away")

    page.get_by_label("raw").check()
    expect(page.locator("#lines")).to_contain_text('"event": "score failed"')
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"{job['name']}.log"
    assert '"event": "score failed"' in download.value.path().read_text()
    assert len(download.value.path().read_text().splitlines()) == 1, "the file has the filter of the page"
    page.get_by_label("raw").uncheck()
    page.get_by_label("Level").select_option("")
    page.get_by_label("every epoch").check()
    expect(rows.filter(has_text=re.compile(r"epoch \d+ of out"))).to_have_count(61)


def test_a_job_without_a_log(api: Served, jobs: list[dict[str, Any]], look: Callable[..., BrowserSession]) -> None:
    job = next(job for job in jobs if not has_log(api, job))
    page = look(api.url, api.admin).go(f"/jobs/{job['id']}?tab=logs")
    expect(page.locator("#log-empty")).to_have_text("The job's drivers have written no log lines yet.")
