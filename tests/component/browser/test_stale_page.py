"""A page whose service hangs shows its age, and recovers without a reload."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from component.browser.browser_session import BrowserSession
from support.serving import ApiProcess


def test_a_page_shows_its_age_while_the_service_hangs(look: Callable[..., BrowserSession], tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as api:
        sessions = [look(api.served.url, api.served.admin) for _ in range(2)]
        pages = [sessions[0].go("/"), sessions[1].go("/hosts")]
        for page in pages:
            expect(page.locator("#link")).to_have_text("● live", timeout=20_000)
        for session in sessions:
            session.away = True
        os.kill(api.process.pid, signal.SIGSTOP)
        try:
            for page in pages:
                expect(page.locator("#link")).to_contain_text("✕ last update", timeout=60_000)
                expect(page.locator("body")).to_have_attribute("data-stale", "yes")
        finally:
            os.kill(api.process.pid, signal.SIGCONT)
        for page in pages:
            expect(page.locator("#link")).to_have_text("● live", timeout=60_000)
            expect(page.locator("body")).not_to_have_attribute("data-stale", "yes")
