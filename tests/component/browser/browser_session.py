"""A signed-in browser page that records errors and foreign requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page

_TIMEOUT_MS: Final = 120_000  # the machine may be busy
AXE: Final = Path(__file__).parent / "vendor" / "axe.min.js"


class BrowserSession:
    """A signed-in page and the errors that its browser reported.

    Attributes:
        wrong: Console errors, page errors, and requests to other hosts.
        away: The control plane is unavailable: connection errors are expected.
        refused: Expected error statuses by path, such as the validation of an incomplete specification.
    """

    def __init__(self, context: BrowserContext, url: str, token: str) -> None:
        self.url = url
        self.wrong: list[str] = []
        context.set_default_timeout(_TIMEOUT_MS)
        self.page: Page = context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._on_request)
        self.away = False
        self.refused = {"/api/v1/jobs/validate": 422}
        self.page.goto(f"{url}/hosts")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{url}/hosts")

    def _on_console(self, message: Any) -> None:
        away = self.away and "net::ERR" in message.text
        status = self.refused.get(urlsplit(message.location["url"]).path)
        refused = status is not None and f"status of {status}" in message.text
        if message.type == "error" and not away and not refused:
            self.wrong.append(message.text)

    def _on_request(self, request: Any) -> None:
        host = urlsplit(request.url).netloc
        if host and host != urlsplit(self.url).netloc:
            self.wrong.append(f"a request to {host}")

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def faults(self) -> list[str]:
        """Serious accessibility violations that axe-core reports for the current page.

        The debugger injects axe-core: the page's policy allows no foreign script.
        """
        self.page.evaluate(AXE.read_text())
        results = self.page.evaluate("axe.run()")
        return [
            f"{violation['id']}: {node['html'][:120]} ({node.get('failureSummary', '')[:200]})"
            for violation in results["violations"]
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"][:1]
        ]
