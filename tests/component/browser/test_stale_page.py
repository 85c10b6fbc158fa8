"""A page whose service hangs shows its age, and recovers without a reload."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import change_rows
from support.serving import ApiProcess
from support.stored import job_row


def test_a_page_shows_its_age_while_the_service_hangs(look: Callable[..., BrowserSession], tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as api:
        change_rows(api.served, lambda session: job_row(session, "orders"))
        paths = ("/", "/hosts", "/jobs/orders")
        sessions = [look(api.served.url, api.served.admin) for _ in paths]
        pages = [session.go(path) for session, path in zip(sessions, paths, strict=True)]
        for page in pages:
            expect(page.locator("#link")).to_have_text("● live", timeout=60_000)
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
