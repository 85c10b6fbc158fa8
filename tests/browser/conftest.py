"""Debian's Chromium, driven by Playwright; every page is watched for errors, violations and foreign requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from browser.looking import Looker
from reporting import missing

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Iterator[Browser]:
    """One browser for all tests."""
    found = shutil.which("chromium")
    if found is None:
        missing(pytestconfig, "Chromium", "There is no chromium: apt-get install -y chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Browser) -> Iterator[Callable[..., Looker]]:
    """Signs in; fails afterwards if a browser complained."""
    made: list[Looker] = []

    def sign_in(url: str, token: str, **how: Any) -> Looker:
        made.append(Looker(chromium.new_context(**how), url, token))
        return made[-1]

    yield sign_in
    for one in made:
        one.page.context.close()
    assert [one.wrong for one in made if one.wrong] == []
