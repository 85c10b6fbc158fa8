"""A job's page lives from one stream: it fetches its content again only after events, and has no stream when hidden."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.testing.harness import eventually
from clonos_api.dashboard.job import TABS
from clonos_api.store import events
from clonos_api.store.tables import JobRow
from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import change_rows, sample_platform
from support.serving import Served

Look = Callable[..., BrowserSession]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("job"), jobs=8, hosts=3) as served:
        yield served


@pytest.fixture
def job(api: Served) -> dict[str, Any]:
    """A RUNNING job with epochs and exceptions."""
    with api.client() as admin:
        jobs: list[dict[str, Any]] = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
        running = [job for job in jobs if job["state"] == "RUNNING"]
        return next(job for job in running if admin.get(f"/jobs/{job['id']}/checkpoints").json()["history"])


def report(api: Served, job: dict[str, Any], *, lag: int, epoch: int) -> None:
    """Change the job's figures, as its driver's reports do."""

    async def change(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job["id"])
        figures = copy.deepcopy(row.figures)
        figures.queries["out"].epoch, figures.queries["out"].lag = epoch, {"in": lag}
        row.metrics = figures

    change_rows(api, change)


def streams(api: Served) -> int:
    assert api.app is not None
    count: int = api.app.state.replica.streams.total()
    return count


def count_fetches(page: Page) -> list[str]:
    """The addresses that the page fetches its content from, from now on."""
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url) if "hx-request" in request.headers else None)
    return fetched


def test_the_lead_line_lives_from_the_stream(api: Served, job: dict[str, Any], look: Look) -> None:
    page = look(api.url, api.admin).go(f"/jobs/{job['id']}?tab=configuration")
    fetched = count_fetches(page)
    lead = page.locator("#lead")
    expect(lead).to_contain_text("records/s")
    for lag in (777, 888):  # each is sent at another second
        report(api, job, lag=lag, epoch=lag)
        expect(lead).to_contain_text(f"lag {lag}")
    assert len(fetched) <= 1, "once after the stream was opened"

    async def fail(session: AsyncSession) -> None:
        row = await session.get_one(JobRow, job["id"])
        row.state = "FAILED"
        events.append(session, "job.state", job=row.id, data={"from": "RUNNING", "to": "FAILED"})

    change_rows(api, fail)
    try:
        expect(lead).to_contain_text("failed after epoch 888")
        expect(page.locator(".heading")).to_contain_text("FAILED")
    finally:

        async def run(session: AsyncSession) -> None:
            (await session.get_one(JobRow, job["id"])).state = "RUNNING"

        change_rows(api, run)


def test_new_epochs_update_the_tables(api: Served, job: dict[str, Any], look: Look) -> None:
    page = look(api.url, api.admin).go(f"/jobs/{job['id']}")
    expect(page.locator("#lead")).to_contain_text("records/s")
    queries = page.locator("table").filter(has=page.get_by_role("columnheader", name="Newest epoch"))
    report(api, job, lag=0, epoch=4_567)
    expect(queries).to_contain_text("4 567")


def test_each_tab_has_one_stream_and_the_logs_have_two(api: Served, job: dict[str, Any], look: Look) -> None:
    session = look(api.url, api.admin)
    for tab in TABS:
        page = session.go(f"/jobs/{job['id']}?tab={tab}")
        expect(page.locator("#link")).to_have_attribute("data-state", "live")
        wanted = 2 if tab == "logs" else 1
        eventually(lambda wanted=wanted: streams(api) == wanted, f"{tab} has {wanted} open streams")


def test_a_hidden_page_closes_its_streams(api: Served, job: dict[str, Any], look: Look) -> None:
    session = look(api.url, api.admin)
    session.page.clock.install()
    page = session.go(f"/jobs/{job['id']}?tab=logs")
    eventually(lambda: streams(api) == 2, "the page has its streams")
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', {configurable: true, value: hidden});"
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    page.clock.fast_forward(60_000)
    eventually(lambda: streams(api) == 0, "the hidden page has none")
    page.evaluate(hide, False)
    eventually(lambda: streams(api) == 2, "the visible page has them again")


def test_what_a_user_has_unfolded_stays_so(api: Served, job: dict[str, Any], look: Look) -> None:
    page = look(api.url, api.admin).go(f"/jobs/{job['id']}?tab=logs")
    exceptions = page.locator("#exceptions")
    exceptions.locator("summary").first.click()
    exceptions.get_by_text("Stack trace").first.click()
    expect(exceptions).to_contain_text("OSError: away")
    page.evaluate("document.querySelector('section.tab').dataset.old = 'yes'")
    page.evaluate("document.dispatchEvent(new Event('refresh'))")
    expect(page.locator("section.tab")).not_to_have_attribute("data-old", "yes")  # it was fetched again
    expect(exceptions.locator("pre").first).to_be_visible()


def series(values: list[float]) -> dict[str, Any]:
    """Five minutes in intervals of ten seconds; `values` are the latencies of each interval."""
    points: list[dict[str, Any]] = []
    for number, value in enumerate(values):
        at = f"2026-01-01T12:{number // 6:02}:{number % 6}0Z"
        figures = {"epoch_ms_p50": value, "epoch_ms_p99": value, "latency_ms_p50": value, "latency_ms_p99": value}
        rates = {"records_in_per_s": 10.0, "records_out_per_s": 10.0, "lag": {"in": 0}, "epochs": 3}
        points.append({"at": at, **rates, **figures})
    span = {"range": "5m", "interval_s": 10, "since": "2026-01-01T12:00:00Z", "until": "2026-01-01T12:05:00Z"}
    return {**span, "queries": {"out": points}, "annotations": []}


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([40_000.0, *[200.0] * 28], "▲ time: the highest value, 40 s, is above the axis."),
        ([250.0, *[200.0] * 28], ""),
    ],
)
def test_a_chart_is_readable_without_a_pointer_and_with_an_outlier(
    api: Served, job: dict[str, Any], look: Look, values: list[float], note: str
) -> None:
    session = look(api.url, api.admin)
    session.page.route("**/series?*", lambda route: route.fulfill(json=series(values)))
    page = session.go(f"/jobs/{job['id']}")
    legend = page.locator("#durations .u-legend")
    expect(legend).to_contain_text("latency, p50")
    expect(legend).to_contain_text("200 ms")
    expect(page.locator("#durations .cut")).to_have_text(note)


def test_a_narrow_page_shows_all_columns_and_the_graph(api: Served, look: Look) -> None:
    session = look(api.url, api.admin, viewport={"width": 390, "height": 844})
    with api.client() as admin:
        jobs = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
        drawn = next(job for job in jobs if admin.get(f"/jobs/{job['id']}/graph").json()["nodes"])
    wider = "() => [...document.querySelectorAll('.scroll, nav')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    for path in (f"/jobs/{drawn['id']}", f"/jobs/{drawn['id']}?tab=checkpoints", "/hosts", "/clusters", "/recoveries"):
        page = session.go(path)
        page.wait_for_load_state("load")
        assert page.evaluate(wider) == 0, path
    page = session.go(f"/jobs/{drawn['id']}")
    topics = page.locator("#job-graph .in").first
    assert topics.evaluate("side => getComputedStyle(side, '::before').content") == '"Reads"'
    below = "query => query.getBoundingClientRect().top - query.previousElementSibling.getBoundingClientRect().bottom"
    assert page.locator("#job-graph .query").first.evaluate(below) >= 0
