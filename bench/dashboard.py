"""The overview with a thousand jobs on a hundred hosts: cost for a browser, and cost of fifty streams for the service.

``python -m bench.dashboard --json``; needs Chromium. A replica (a process of its own, on SQLite) has invented jobs; the
figures of some change each second. Measured: the first paint and the bytes transferred for it (compressed, nothing in
a cache), the script time of one update in the page, and the replica's CPU with N open streams, minus its CPU without
streams.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import select

# The tests of the pages share the invented jobs and the replica.
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow
from component.browser.sample_platform import fill
from support.serving import ApiProcess

_CHANGING: Final = 100
_SETTLE_S: Final = 3.0


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--open", type=int, default=50, help="dashboards at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--loads", type=int, default=5, help="first paints")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        figures = _measure(options, Path(folder))
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=1))
    return 0


def _measure(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    url = f"sqlite+aiosqlite:///{home / 'control-plane.db'}"
    schema.upgrade(url)
    asyncio.run(fill(url, options.jobs, options.hosts, random.Random(1)))
    with ApiProcess(home, log=home / "log.json", host="127.0.0.1") as api:
        process = psutil.Process(api.process.pid)
        cookie = _cookie(api)
        with _changing(url):
            time.sleep(_SETTLE_S)
            idle = _share(process, options.seconds)
            streams = _Streams(api.served.url, cookie, options.open)
            with streams:
                time.sleep(_SETTLE_S)
                before = streams.events
                busy = _share(process, options.seconds)
                events = streams.events - before
            browser = _browser(api, options)
    return {
        "jobs": options.jobs,
        "hosts": options.hosts,
        **browser,
        "open": options.open,
        "events_per_dashboard_s": round(events / options.open / options.seconds, 2),
        "cpu_share_idle": round(idle, 3),
        "cpu_share_open": round(busy, 3),
        "cpu_share_of_dashboards": round(busy - idle, 3),
    }


def _browser(api: ApiProcess, options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    paints, transferred = [], []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for _ in range(options.loads):
            page = _signed_in(chromium.new_context(viewport={"width": 1360, "height": 850}).new_page(), api)
            session = page.context.new_cdp_session(page)
            session.send("Network.enable")
            session.send("Network.setCacheDisabled", {"cacheDisabled": True})
            page.goto(f"{api.served.url}/")
            page.wait_for_selector("#link[data-state=live]")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            sizes = "['navigation', 'resource'].flatMap(k => performance.getEntriesByType(k)).map(e => e.transferSize)"
            transferred.append(sum(page.evaluate(sizes)))
            if len(paints) < options.loads:
                page.context.close()
        session.send("Performance.enable")
        page.evaluate(_COUNT)
        before = _metrics(session)
        time.sleep(options.seconds)
        after, updates = _metrics(session), page.evaluate("window.updates")
        chromium.close()
    spent = {name: (after[name] - before[name]) * 1000 / max(1, updates) for name in ("ScriptDuration", "TaskDuration")}
    return {
        "first_paint_ms": {"p50": round(statistics.median(paints)), "samples": [round(paint) for paint in paints]},
        "transferred_bytes": round(statistics.median(transferred)),
        "updates": updates,
        "script_ms_per_update": round(spent["ScriptDuration"], 2),
        "task_ms_per_update": round(spent["TaskDuration"], 2),
    }


# Each event changes its cells in one task: the number of callbacks of the observer is the number of updates.
_COUNT: Final = """
window.updates = 0;
new MutationObserver(() => { window.updates += 1; })
  .observe(document.getElementById('rows'), {subtree: true, childList: true, characterData: true});
"""


def _metrics(session: Any) -> dict[str, float]:
    return {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}


def _signed_in(page: Page, api: ApiProcess) -> Page:
    page.goto(f"{api.served.url}/hosts")
    page.get_by_label("Token").fill(api.served.admin)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{api.served.url}/hosts")
    return page


def _cookie(api: ApiProcess) -> dict[str, str]:
    return {"Authorization": f"Bearer {api.served.admin}"}


@contextlib.contextmanager
def _changing(url: str) -> Iterator[None]:
    """Change the figures of some jobs each second, as running jobs do."""
    ending = threading.Event()

    async def change() -> None:
        database = Database(url)
        async with database.reading() as session:
            query = select(JobRow.id).where(JobRow.state == "RUNNING").order_by(JobRow.name).limit(_CHANGING)
            jobs = list(await session.scalars(query))
        while not ending.is_set():
            async with database.transaction() as session:
                for row in await session.scalars(select(JobRow).where(JobRow.id.in_(jobs))):
                    figures = row.figures
                    figures.queries["out"].records_out += random.randint(50, 500)
                    figures.queries["out"].lag = {"in": random.randint(0, 5000)}
                    row.metrics = copy.copy(figures)
            await asyncio.sleep(1.0)
        await database.close()

    thread = threading.Thread(target=asyncio.run, args=(change(),))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class _Streams(contextlib.AbstractContextManager["_Streams"]):
    """N clients of the event stream, without a browser: they count the events and discard the data.

    Attributes:
        events: Number of events read by all clients.
    """

    def __init__(self, url: str, headers: dict[str, str], count: int) -> None:
        self.events = 0
        self._url, self._headers, self._count = url, headers, count
        self._ending = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))

    def __enter__(self) -> _Streams:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(headers=self._headers, timeout=30.0, limits=limits, trust_env=False) as client:
            tasks = [asyncio.create_task(self._look(client)) for _ in range(self._count)]
            while not self._ending.is_set():
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", f"{self._url}/live") as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                self.events += piece.count(b"event: ")


def _share(process: psutil.Process, seconds: float) -> float:
    process.cpu_percent()
    time.sleep(seconds)
    return process.cpu_percent() / 100


if __name__ == "__main__":
    sys.exit(main())
