"""Debian's Chromium, driven by Playwright; every page is watched for errors, violations and foreign requests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from component.browser.browser_session import BrowserSession
from support.reporting import missing

expect.set_options(timeout=30_000)  # a busy machine; the default is 5 s
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def chromium(pytestconfig: pytest.Config) -> Iterator[Browser]:
    """One browser for the tests of a module."""
    executable = shutil.which("chromium")
    if executable is None:
        missing(pytestconfig, "Chromium", "There is no chromium: apt-get install -y chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Browser) -> Iterator[Callable[..., BrowserSession]]:
    """Signs in; fails at the end if a browser reported an error."""
    made: list[BrowserSession] = []

    def sign_in(url: str, token: str, **how: Any) -> BrowserSession:
        made.append(BrowserSession(chromium.new_context(**how), url, token))
        return made[-1]

    yield sign_in
    for session in made:
        session.page.context.close()
    assert [session.wrong for session in made if session.wrong] == []
