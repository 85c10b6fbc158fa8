"""A connection that looks open says nothing of the store: what is old says so, and is new again by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.looking import Looker
from serving import ApiProcess

pytestmark = pytest.mark.timeout(180)


def test_a_service_that_hangs(look: Callable[..., Looker], tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as api:
        lookers = [look(api.served.url, api.served.admin) for _ in range(2)]
        pages = [lookers[0].go("/"), lookers[1].go("/hosts")]
        for page in pages:
            expect(page.locator("#link")).to_have_text("● live", timeout=20_000)
        for one in lookers:
            one.away = True
        os.kill(api.process.pid, signal.SIGSTOP)
        try:
            for page in pages:
                expect(page.locator("#link")).to_contain_text("✕ as of", timeout=60_000)
                expect(page.locator("body")).to_have_attribute("data-stale", "yes")
        finally:
            os.kill(api.process.pid, signal.SIGCONT)
        for page in pages:
            expect(page.locator("#link")).to_have_text("● live", timeout=60_000)
            expect(page.locator("body")).not_to_have_attribute("data-stale", "yes")
