"""Somebody who looks at pages, and what their browser complains about."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Page

AXE: Final = Path(__file__).parent / "axe.min.js"


class Looker:
    """Somebody who looks, and what their browser complained about.

    Attributes:
        wrong: What it complained about, and requests to other hosts.
        away: The control plane is: streams may end.
        refused: Paths and what they answer with because that is what they were asked for, such as the API's word on a
            specification that is being typed; a browser complains of that as well.
    """

    def __init__(self, context: BrowserContext, url: str, token: str) -> None:
        self.url = url
        self.wrong: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)
        self.away = False
        self.refused = {"/api/v1/jobs/validate": 422}
        self.page.goto(f"{url}/hosts")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{url}/hosts")

    def _said(self, message: Any) -> None:
        away = self.away and "net::ERR" in message.text
        status = self.refused.get(urlsplit(message.location["url"]).path)
        refused = status is not None and f"status of {status}" in message.text
        if message.type == "error" and not away and not refused:
            self.wrong.append(message.text)

    def _asked(self, request: Any) -> None:
        host = urlsplit(request.url).netloc
        if host and host != urlsplit(self.url).netloc:
            self.wrong.append(f"a request to {host}")

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def faults(self) -> list[str]:
        """Serious ones that axe-core finds on the page as it is.

        Its script comes by the debugger: the page's policy lets none in, and that stays so.
        """
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run()")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:120]} ({one['nodes'][0].get('failureSummary', '')[:200]})"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
