"""Takes the pictures of the dashboard in ``docs/img``: ``make screenshots``, in a few minutes.

- light, dark and narrow: a real run of two examples, whose drivers were killed (`live_platform`);
- empty pages, Spark clusters in each state, and a thousand jobs: rows that `sample_platform` makes up.

Pictures of an earlier run that are not taken any more are deleted.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from clonos.testing.harness import eventually
from component.browser.conftest import ARGUMENTS
from component.browser.live_platform import live_platform
from component.browser.sample_platform import sample_platform
from support.serving import Served

WIDE: Final = {"width": 1360, "height": 850}
NARROW: Final = {"width": 390, "height": 850}
KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "light": {"viewport": WIDE, "color_scheme": "light"},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "narrow": {"viewport": NARROW, "color_scheme": "light"},
}
EMPTY: Final = {
    "overview": "/",
    "hosts": "/hosts",
    "clusters": "/clusters",
    "events": "/events",
    "recoveries": "/recoveries",
}
_TIMEOUT_MS: Final = 120_000  # the machine may be busy
# Lines of a log are there later than the page.
_COMPLETE: Final = """
document.fonts.status === 'loaded'
    && [...document.querySelectorAll('.log')].every(place => place.childElementCount > 0)
"""


class Pictures:
    """Takes pictures with one browser, and reports each step with its time.

    Args:
        folder: The folder of the pictures.
        browser: The browser.
    """

    def __init__(self, folder: Path, browser: Browser) -> None:
        self.folder = folder
        self._browser = browser
        self._started = time.monotonic()
        self._taken: set[str] = set()

    def say(self, step: str) -> None:
        """Print a step, with the seconds since the beginning."""
        print(f"{time.monotonic() - self._started:4.0f} s  {step}", flush=True)

    def sign_in(self, url: str, token: str, *, picture: str = "", **context: Any) -> Page:
        """A signed-in page."""
        settings = {"viewport": WIDE, "timezone_id": "Europe/Berlin", **context}
        page = self._browser.new_context(**settings).new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(f"{url}/hosts")
        if picture:
            self._write(page, picture)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/hosts")
        return page

    def take(self, page: Page, url: str, name: str) -> None:
        """Take the picture of a page once it is complete."""
        page.goto(url)
        page.wait_for_load_state("load")
        path = urlsplit(url).path
        if path != "/submit" and "/recoveries/" not in path:
            page.wait_for_selector("#link[data-state=live]")
        if page.locator("#series").count():
            page.wait_for_selector("#rates canvas, #series-none:not([hidden])")
        # Not `wait_for_function`, which evaluates text in the page: the pages' security policy refuses that.
        eventually(lambda: page.evaluate(_COMPLETE), f"{url} is complete")
        self._write(page, name)

    def _write(self, page: Page, name: str) -> None:
        page.screenshot(path=self.folder / f"{name}.png")
        self._taken.add(f"{name}.png")

    def delete_others(self) -> None:
        """Delete the pictures in the folder that this run did not take."""
        for file in self.folder.glob("*.png"):
            if file.name not in self._taken:
                self.say(f"deleting {file}")
                file.unlink()
        self.say(f"{len(self._taken)} pictures are in {self.folder}")


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        pictures = Pictures(folder, browser)
        take_made_up(pictures, Path(home))
        take_real(pictures, Path(home))
        pictures.delete_others()
        browser.close()


def take_real(pictures: Pictures, home: Path) -> None:
    """The pages of a platform with two jobs that were killed."""
    with live_platform(home / "live", pictures.say) as live:
        for kind, context in KINDS.items():
            pictures.say(f"taking the pictures of real jobs: {kind}")
            page = pictures.sign_in(live.url, live.admin, **context)
            paths = {"overview": "/", "hosts": "/hosts", "events": "/events", "submit": "/submit"}
            paths["recoveries"] = "/recoveries"
            paths |= {"recovery": live.recovery, **tabs(page, live.url + live.job)}
            for name, path in paths.items():
                pictures.take(page, live.url + path, f"{name}-{kind}")
        pictures.say("stopping the platform")


def tabs(page: Page, job: str) -> dict[str, str]:
    """Name of the picture → path, for each tab in the navigation of a job's page. The first one is ``job``."""
    page.goto(job)
    links: list[tuple[str, bool]] = page.eval_on_selector_all(
        "nav[aria-label='Job sections'] a",
        "links => links.map(link => [link.pathname + link.search, link.getAttribute('aria-current') === 'page'])",
    )
    assert len(links) > 1, "the page of a job has a navigation"
    return {"job" if open_ else f"job-{parse_qs(urlsplit(path).query)['tab'][0]}": path for path, open_ in links}


def take_made_up(pictures: Pictures, home: Path) -> None:
    """The pages whose rows are made up: empty ones, clusters, a thousand jobs."""

    def sign_in(api: Served, **how: Any) -> Page:
        return pictures.sign_in(api.url, api.admin, **how)

    pictures.say("taking the pictures of empty pages")
    with sample_platform(home / "empty", jobs=0, hosts=0) as api:
        page = sign_in(api, picture="signin")
        for name, path in EMPTY.items():
            pictures.take(page, api.url + path, f"{name}-empty")
    pictures.say("taking the pictures of clusters, with made-up rows")
    with sample_platform(home / "clusters", jobs=8, hosts=4) as api:
        for kind, context in KINDS.items():
            page = sign_in(api, **context)
            pictures.take(page, f"{api.url}/clusters", f"clusters-{kind}")
            # One of these jobs has FAILED, with an epoch in doubt.
            pictures.take(page, f"{api.url}/", f"overview-failing-{kind}")
            pictures.take(page, f"{api.url}/jobs/{failed_job(api)}", f"job-failing-{kind}")
    pictures.say("taking the picture of a thousand jobs, with made-up rows")
    with sample_platform(home / "thousand", jobs=1000, hosts=100) as api:
        pictures.take(sign_in(api), f"{api.url}/", "overview-1000")


def failed_job(api: Served) -> str:
    """The id of a FAILED job."""
    with api.client() as admin:
        jobs = admin.get("/jobs", params={"state": "FAILED"}).raise_for_status().json()["data"]
    return str(jobs[0]["id"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
