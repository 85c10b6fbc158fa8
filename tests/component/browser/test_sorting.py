"""The columns of the overview sort by mouse and keyboard, and stay sorted while figures change."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.tables import JobRow
from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import change_rows, sample_platform
from support.serving import Served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("sorting"), jobs=12, hosts=3) as served:
        yield served


def names(page: Page) -> list[str]:
    return page.locator("#rows th a").all_inner_texts()


def lags(page: Page) -> list[int]:
    texts = page.locator("#rows [data-figure='0']").all_inner_texts()
    return [int(re.sub(r"\D", "", text) or -1) for text in texts]


def test_columns_sort(api: Served, look: Callable[..., BrowserSession]) -> None:
    session = look(api.url, api.admin)
    page = session.go("/")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    by_attention = names(page)
    column = page.get_by_role("columnheader", name="Lag")

    button = page.get_by_role("button", name="Lag")
    button.focus()
    button.press("Enter")
    expect(column).to_have_attribute("aria-sort", "descending")
    expect(button).to_be_focused()
    assert lags(page) == sorted(lags(page), reverse=True)
    assert page.url.endswith("?sort=-lag")
    assert session.faults() == []

    last_with_lag = max(index for index, lag in enumerate(lags(page)) if lag >= 0)
    name = names(page)[last_with_lag]

    async def fall_behind(session: AsyncSession) -> None:
        row = (await session.scalars(select(JobRow).where(JobRow.name == name))).one()
        figures = copy.deepcopy(row.figures)
        figures.queries["out"].lag = {"in": 123_456}
        row.metrics = figures

    change_rows(api, fall_behind)
    expect(page.locator("#rows th a").first).to_have_text(name)
    page.reload()
    expect(column).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#rows th a").first).to_have_text(name)

    button.click()
    expect(column).to_have_attribute("aria-sort", "ascending")
    known = [lag for lag in lags(page) if lag >= 0]
    assert known == sorted(known)
    assert lags(page)[: len(known)] == known, "jobs without a lag are last"
    button.click()
    expect(column).not_to_have_attribute("aria-sort", re.compile("."))
    assert sorted(names(page)) == sorted(by_attention)
    assert "sort" not in page.url

    page.get_by_role("button", name="Job", exact=True).click()
    expect(page.get_by_role("columnheader", name="Job")).to_have_attribute("aria-sort", "ascending")
    assert names(page) == sorted(names(page), key=lambda text: (text.rpartition("-")[0], int(text.rpartition("-")[2])))
