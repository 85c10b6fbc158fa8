"""The dashboard below the path of a proxy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from pydantic import ValidationError

from clonos_api.settings import ApiSettings
from support.serving import Served, served, write
from support.stored import job_row

DASHBOARD = Path(__file__).parents[3] / "api/clonos_api/dashboard"
PREFIXED = {"X-Forwarded-Prefix": "/clonos", "X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.7"}
LINK = re.compile(r'(?:href|src|action)="([^"#]*)')


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica behind a trusted proxy, which sends the prefix with each request."""
    with served(tmp_path_factory.mktemp("api"), trusted_proxies=[ip_network("127.0.0.1")]) as service:
        yield service


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica with the setting."""
    with served(tmp_path_factory.mktemp("api"), public_url="https://tools.example/clonos/") as service:
        yield service


def signed_in(api: Served, at: str, sent: dict[str, str]) -> httpx.Client:
    """A browser with a session, whose requests have the headers `sent`; `at` is the part of the path that is kept."""
    own = {"Origin": ("https" if sent else "http") + "://" + api.url.partition("://")[2], **sent}
    answer = httpx.post(
        f"{api.url}{at}/session", headers={"Authorization": f"Bearer {api.admin}", **own}, trust_env=False, timeout=60
    ).raise_for_status()
    cookie = answer.headers["set-cookie"]
    assert "; Path=/clonos/" in cookie
    assert cookie.startswith("__Secure-clonos_session" if sent else "clonos_session"), "no name with __Host-"
    headers = {"Accept": "text/html", "Cookie": cookie.partition(";")[0], **own}
    return httpx.Client(base_url=f"{api.url}{at}", headers=headers, trust_env=False, timeout=60)


def links(page: httpx.Response) -> set[str]:
    """The addresses of a page's links and files in the browser."""
    base = re.search(r'<base href="([^"]*)">', page.text)
    if base is None:  # a page of the documentation's site, whose links are relative to the page
        path = "/clonos/" + page.url.path.removeprefix("/clonos").lstrip("/")
        assert path.startswith("/clonos/docs/"), page.text
        return {urljoin(path, link.replace("&amp;", "&")) for link in LINK.findall(page.text)}
    return {urljoin(base[1], link.replace("&amp;", "&")) for link in LINK.findall(page.text.replace(base[0], ""))}


@pytest.mark.parametrize("way", ["header", "setting, the proxy removes the path", "setting, the proxy keeps it"])
def test_all_links_of_all_pages_lead_below_the_path(proxied: Served, published: Served, way: str) -> None:
    api, sent = (proxied, PREFIXED) if way == "header" else (published, {})
    at = "/clonos" if way.endswith("keeps it") else ""
    job = write(api, lambda session: job_row(session)).id
    pages = [
        "/",
        "/hosts",
        "/clusters",
        "/recoveries",
        "/events",
        "/submit",
        "/signin",
        "/nosuch",
        "/docs/errors/not-found",
    ]
    pages += [f"/jobs/{job}?tab={tab}" for tab in ("overview", "recoveries", "checkpoints", "logs", "configuration")]
    tried: set[str] = set()
    with signed_in(api, at, sent) as client:
        for path in pages:
            for link in links(client.get(path)) - tried:
                tried.add(link)
                if link.startswith("http"):
                    continue
                assert link.startswith("/clonos/"), f"{path} leads to {link}"
                found = client.get(link.removeprefix("/clonos")).status_code
                built = link.startswith("/clonos/docs/")  # the site may not be
                assert found in (200, 307, 308) or built, f"{path} leads to {link}: {found}"
        assert len(tried) > 20
        with client.stream("GET", "/live") as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("event:")) == "event: board"


def test_redirects_and_locations_have_the_path(proxied: Served) -> None:
    visit = {"Accept": "text/html", **PREFIXED}
    with httpx.Client(base_url=proxied.url, trust_env=False, timeout=60) as client:
        assert (
            client.get("/hosts?x=1", headers=visit).headers["location"]
            == "/clonos/signin?next=%2Fclonos%2Fhosts%3Fx%3D1"
        )
        assert client.get("/docs", headers=visit).headers["location"] == "/clonos/docs/"
        made = client.post(
            "/api/v1/tokens",
            json={"name": "eyes", "role": "viewer"},
            headers={"Authorization": f"Bearer {proxied.admin}", **PREFIXED},
        )
        assert made.headers["location"].startswith("/clonos/api/v1/tokens/")


@pytest.mark.parametrize("value", ["//evil.example", "/a b", '/a"onload=x', "/<b>", "javascript:x", "", "/../x/%2e"])
def test_a_prefix_with_other_characters_is_ignored(proxied: Served, value: str) -> None:
    page = httpx.get(f"{proxied.url}/signin", headers={**PREFIXED, "X-Forwarded-Prefix": value}, trust_env=False)
    assert re.findall(r'<base href="([^"]*)">', page.text) in (["/"], ["/evil.example/"])


def test_other_callers_cannot_set_the_prefix(published: Served) -> None:
    page = httpx.get(f"{published.url}/signin", headers={"X-Forwarded-Prefix": "/other"}, trust_env=False)
    assert '<base href="/clonos/">' in page.text
    bare = httpx.get(f"{published.url}/clonos", trust_env=False)
    assert (bare.status_code, bare.headers["location"]) == (308, "/clonos/")


@pytest.mark.parametrize(
    ("value", "prefix"),
    [
        ("https://tools.example/clonos/", "/clonos"),
        ("https://clonos.example", ""),
        ("", ""),
        ("https://tools.example/a/b", "/a/b"),
    ],
)
def test_the_setting_has_the_path(value: str, prefix: str, tmp_path: Path) -> None:
    assert ApiSettings(home=tmp_path, public_url=value).prefix == prefix


@pytest.mark.parametrize(
    "value", ["tools", "ftp://h/x", "https://h/a?b", "https://h/a#b", "https://h/jobs", "https://u@h/"]
)
def test_other_addresses_are_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(home=tmp_path, public_url=value)


def test_no_page_or_script_has_a_link_to_the_root() -> None:
    files: list[Any] = [*DASHBOARD.glob("templates/*.html"), *DASHBOARD.glob("static/*.js")]
    absolute = re.compile(
        r"""(?:href|src|action)=["']/|["'`]/(?:api|jobs|hosts|live|sign|session|docs|events|recoveries|clusters|assets)\b"""
    )
    wrong = [
        f"{file.name}:{number}: {line.strip()[:100]}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        # The navigation compares paths, and derives its links from them.
        if absolute.search(line)
        and not line.strip().startswith(("{% for to, title", '{% if may.operate %}<a href="submit"'))
    ]
    assert not wrong


def test_the_command_line_takes_the_address_with_its_path(published: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clonos", "open", "--print", "--api", f"{published.url}/clonos"]
    environment = {**os.environ, "CLONOS_TOKEN": published.admin, "CLONOS_HOME": str(tmp_path)}
    link = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert link.startswith(f"{published.url}/clonos/signin?next=%2Fclonos%2F#code=")
