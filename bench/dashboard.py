"""The overview with a thousand jobs on a hundred hosts: its cost for a browser, and that of fifty for the service.

``python -m bench.dashboard --json``; needs Chromium. A replica (a process of its own, on SQLite) has made-up jobs, some
of whose figures change each second. Measured: the first paint and what was transferred for it (compressed, nothing in a
cache), the script time of one update in the page, and the replica's CPU with so many open streams, less what it takes
without any.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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

# What makes jobs up and starts a replica is what the tests of the pages use.
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from browser.made_up import fill
from clonos_api.store import schema
from clonos_api.store.database import Database
from clonos_api.store.tables import JobRow
from serving import ApiProcess

_CHANGING: Final = 100
_SETTLE_S: Final = 3.0


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--open", type=int, default=50, help="dashboards at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="for so long each is measured")
    parser.add_argument("--loads", type=int, default=5, help="first paints")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        found = _measure(given, Path(folder))
    print(json.dumps(found) if given.json else json.dumps(found, indent=1))
    return 0


def _measure(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    url = f"sqlite+aiosqlite:///{home / 'control-plane.db'}"
    schema.upgrade(url)
    asyncio.run(fill(url, given.jobs, given.hosts, random.Random(1)))
    with ApiProcess(home, log=home / "log.json", host="127.0.0.1") as api:
        process = psutil.Process(api.process.pid)
        cookie = _cookie(api)
        with _changing(url):
            time.sleep(_SETTLE_S)
            idle = _share(process, given.seconds)
            streams = _Streams(api.served.url, cookie, given.open)
            with streams:
                time.sleep(_SETTLE_S)
                told = streams.events
                busy = _share(process, given.seconds)
                told = streams.events - told
            browser = _browser(api, given)
    return {
        "jobs": given.jobs,
        "hosts": given.hosts,
        **browser,
        "open": given.open,
        "events_per_dashboard_s": round(told / given.open / given.seconds, 2),
        "cpu_share_idle": round(idle, 3),
        "cpu_share_open": round(busy, 3),
        "cpu_share_of_dashboards": round(busy - idle, 3),
    }


def _browser(api: ApiProcess, given: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    paints, transferred = [], []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for _ in range(given.loads):
            page = _signed_in(chromium.new_context(viewport={"width": 1360, "height": 850}).new_page(), api)
            session = page.context.new_cdp_session(page)
            session.send("Network.enable")
            session.send("Network.setCacheDisabled", {"cacheDisabled": True})
            page.goto(f"{api.served.url}/")
            page.wait_for_selector("#link[data-state=live]")
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            sizes = "['navigation', 'resource'].flatMap(k => performance.getEntriesByType(k)).map(e => e.transferSize)"
            transferred.append(sum(page.evaluate(sizes)))
            if len(paints) < given.loads:
                page.context.close()
        session.send("Performance.enable")
        page.evaluate(_COUNT)
        before = _metrics(session)
        time.sleep(given.seconds)
        after, updates = _metrics(session), page.evaluate("window.updates")
        chromium.close()
    spent = {name: (after[name] - before[name]) * 1000 / max(1, updates) for name in ("ScriptDuration", "TaskDuration")}
    return {
        "first_paint_ms": {"p50": round(statistics.median(paints)), "samples": [round(one) for one in paints]},
        "transferred_bytes": round(statistics.median(transferred)),
        "updates": updates,
        "script_ms_per_update": round(spent["ScriptDuration"], 2),
        "task_ms_per_update": round(spent["TaskDuration"], 2),
    }


# Each event changes some cells in one go: callbacks of the observer are as many as there were updates.
_COUNT: Final = """
window.updates = 0;
new MutationObserver(() => { window.updates += 1; })
  .observe(document.getElementById('rows'), {subtree: true, childList: true, characterData: true});
"""


def _metrics(session: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


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
    """Some jobs' figures change each second, as if they worked."""
    ending = threading.Event()

    async def change() -> None:
        database = Database(url)
        async with database.reading() as session:
            query = select(JobRow.id).where(JobRow.state == "RUNNING").order_by(JobRow.name).limit(_CHANGING)
            jobs = list(await session.scalars(query))
        while not ending.is_set():
            async with database.transaction() as session:
                for row in await session.scalars(select(JobRow).where(JobRow.id.in_(jobs))):
                    told = json.loads(json.dumps(row.metrics))
                    told["queries"]["out"]["records_out"] += random.randint(50, 500)
                    told["queries"]["out"]["lag"] = {"in": random.randint(0, 5000)}
                    row.metrics = told
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
    """So many who look, without a browser: what their streams tell is read and thrown away.

    Attributes:
        events: Read by all of them.
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
