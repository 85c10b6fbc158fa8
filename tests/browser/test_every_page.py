"""Every page with something on it: readable by everybody, as wide as the screen, without a complaint of the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser.looking import Looker
from browser.made_up import made_up
from clonos_api.dashboard.job import TABS
from serving import Served

pytestmark = pytest.mark.timeout(120)

SCREENS: dict[str, dict[str, Any]] = {
    "wide and light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "narrow and dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with made_up(tmp_path_factory.mktemp("pages"), jobs=8, hosts=3) as served:
        yield served


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page(api: Served, look: Callable[..., Looker], screen: str) -> None:
    with api.client() as admin:
        jobs = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
        # Those that have most to tell.
        paths = ["/", "/hosts", "/events", "/submit", "/jobs/nosuch"]
        with_epochs = next(one for one in jobs if admin.get(f"/jobs/{one['id']}/checkpoints").json()["history"])
        paths += [f"/jobs/{with_epochs['id']}?tab={tab}" for tab in TABS]
        recovered = [(one, admin.get(f"/jobs/{one['id']}/recoveries").json()["data"]) for one in jobs]
        paths += [f"/jobs/{one['id']}/recoveries/{found[0]['id']}" for one, found in recovered if found][:1]
    somebody = look(api.url, api.admin, **SCREENS[screen])
    somebody.refused["/jobs/nosuch"] = 404
    wrong: dict[str, Any] = {}
    for path in paths:
        page = somebody.go(path)
        page.wait_for_load_state("load")
        faults = somebody.faults()
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if faults or wider > 0:
            wrong[path] = (faults, wider)
    assert wrong == {}
