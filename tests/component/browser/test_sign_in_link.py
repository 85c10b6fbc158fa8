"""A link of `clonos open` signs a browser in once, after a click. Its code stays neither in the address nor in requests
for pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from support.serving import Served, served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api")) as service:
        yield service


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def link(api: Served, to: str) -> str:
    with api.client() as client:
        code = client.post("/sign-in-codes").raise_for_status().json()["code"]
    return f"{api.url}/signin?next={quote(to, safe='')}#code={code}"


def test_a_link_signs_in_once_after_a_click(api: Served, page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(urlsplit(request.url)._replace(fragment="").geturl()))
    used = link(api, "/hosts")
    page.goto(used)
    button = page.get_by_role("button", name="Sign in by link")
    expect(button).to_be_focused()
    assert page.url == f"{api.url}/signin?next=%2Fhosts", "the code has left the address"
    assert page.context.cookies() == [], "without a click, a link signs nobody in"
    button.click()
    page.wait_for_url(f"{api.url}/hosts")
    assert not [url for url in requested if "code=" in url]
    page.context.clear_cookies()
    page.goto(used)
    button.click()
    expect(page.locator("#by-link-error")).to_contain_text("it works once")
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_a_link_leads_to_no_other_site(api: Served, page: Page, elsewhere: str) -> None:
    page.goto(link(api, elsewhere))
    page.get_by_role("button", name="Sign in by link").click()
    page.wait_for_url(f"{api.url}/")


def test_a_browser_that_is_signed_in_keeps_its_session(api: Served, page: Page) -> None:
    """Another user's link does not replace it."""
    page.goto(link(api, "/"))
    page.get_by_role("button", name="Sign in by link").click()
    page.wait_for_url(f"{api.url}/")
    before = page.context.cookies()
    page.goto(link(api, "/hosts"))
    page.wait_for_url(f"{api.url}/hosts")
    assert page.context.cookies() == before
