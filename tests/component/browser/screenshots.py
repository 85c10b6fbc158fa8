"""Writes pictures of each page: light, dark, narrow, empty, and with a thousand jobs (`make screenshots`)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from component.browser.sample_platform import sample_platform
from support.serving import Served

WIDE = {"width": 1360, "height": 850}
NARROW = {"width": 390, "height": 850}
TABS = ("recoveries", "checkpoints", "logs", "configuration")


def main(folder: Path) -> None:
    """Takes the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        with sample_platform(Path(home) / "empty", jobs=0, hosts=0) as api:
            page = signed_in(browser, api, picture=folder / "signin.png")
            for name, path in (
                ("overview", "/"),
                ("hosts", "/hosts"),
                ("clusters", "/clusters"),
                ("events", "/events"),
            ):
                take(page, api, path, folder / f"{name}-empty.png")
        with sample_platform(Path(home) / "busy", jobs=20, hosts=4) as api:
            for kind, size in (("light", WIDE), ("dark", WIDE), ("narrow", NARROW)):
                scheme = "dark" if kind == "dark" else "light"
                page = signed_in(browser, api, viewport=size, color_scheme=scheme)
                for name, path in pages(page, api).items():
                    take(page, api, path, folder / f"{name}-{kind}.png")
        with sample_platform(Path(home) / "thousand", jobs=1000, hosts=100) as api:
            take(signed_in(browser, api), api, "/", folder / "overview-1000.png")
        browser.close()


def signed_in(browser: Browser, api: Served, *, picture: Path | None = None, **how: object) -> Page:
    """A signed-in page."""
    context = browser.new_context(**{"viewport": WIDE, "timezone_id": "Europe/Berlin", **how})  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{api.url}/hosts")
    if picture is not None:
        page.screenshot(path=picture)
    page.get_by_label("Token").fill(api.admin)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{api.url}/hosts")
    return page


def pages(page: Page, api: Served) -> dict[str, str]:
    """Name → path, of a job that has everything and of one of its recoveries."""
    page.goto(f"{api.url}/")
    links = page.eval_on_selector_all(
        "#rows tr", "rows => rows.map(r => [...r.querySelectorAll('a')].map(a => a.pathname))"
    )
    epochs = page.eval_on_selector_all(
        "#rows tr", "rows => rows.map(r => /-[123]$/.test(r.querySelector('a').textContent))"
    )
    job = next(row for row, whole in zip(links, epochs, strict=True) if whole and len(row) > 1)
    paths = {
        "overview": "/",
        "job": job[0],
        "recovery": job[1],
        "hosts": "/hosts",
        "clusters": "/clusters",
        "events": "/events",
    }
    return {**paths, "submit": "/submit", **{f"job-{tab}": f"{job[0]}?tab={tab}" for tab in TABS}}


def take(page: Page, api: Served, path: str, file: Path) -> None:
    """Takes a picture once the page is complete."""
    page.goto(api.url + path)
    page.wait_for_load_state("load")
    if path != "/submit" and "/recoveries/" not in path:
        page.wait_for_selector("#link[data-state=live]")
    if page.locator("#series").count():
        page.wait_for_selector("#rates canvas")
    page.wait_for_function("document.fonts.status === 'loaded'")
    page.screenshot(path=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
