"""The documentation site: public, with a policy of its own; without a site, a page that says how to build it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clonos.errors import CLASSES
from clonos_api.http.problems import problem_of
from support.serving import Served, served


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica with a site of two pages; a secret file is beside the site."""
    home = tmp_path_factory.mktemp("api")
    (home / "secret").write_text("secret")
    for name in ("index.html", "errors/name-taken.html"):
        (home / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "site" / name).write_text(f"<p>{name}</p>")
    (home / "site/link.html").symlink_to(home / "secret")
    with served(home, docs=home / "site") as api:
        yield api


@pytest.fixture
def reader(service: Served) -> Iterator[httpx.Client]:
    """A browser without a session."""
    with httpx.Client(
        base_url=service.url, headers={"Accept": "text/html"}, timeout=60, trust_env=False, follow_redirects=True
    ) as client:
        yield client


def test_pages_need_no_session_and_have_a_strict_policy(reader: httpx.Client) -> None:
    for path, text in (("/docs", "index.html"), ("/docs/", "index.html"), ("/docs/index.html", "index.html")):
        page = reader.get(path)
        assert (page.status_code, page.text) == (200, f"<p>{text}</p>")
        assert "'unsafe" not in page.headers["content-security-policy"]
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert "text/html" in page.headers["content-type"]


def test_a_browser_keeps_its_copy(reader: httpx.Client) -> None:
    page = reader.get("/docs/")
    again = reader.get("/docs/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert reader.get("/docs/", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_type_of_a_problem_is_the_address_of_its_page(service: Served, reader: httpx.Client) -> None:
    error = next(cls for cls in CLASSES if cls.slug == "name-taken")
    assert reader.get(problem_of(error("x")).type).text == "<p>errors/name-taken.html</p>"
    with service.client() as client:
        page = reader.get(client.get("/jobs/none").json()["type"])
        assert page.status_code == 200
        assert "<h1>not-found</h1>" in page.text, "this site has no such page: the error describes itself"
    assert reader.get("/docs/errors/no-such-error").status_code == 404


def test_other_files_are_not_served(reader: httpx.Client) -> None:
    for path in ("/docs/../secret", "/docs/..%2fsecret", "/docs/%2fetc/passwd", "/docs/link.html", "/docs/%00"):
        page = reader.get(path)
        assert "secret" not in page.text
        assert page.status_code in (303, 401, 404) or str(page.url).endswith("/signin?next=%2Fsecret"), path
    assert reader.post("/docs/").status_code in (401, 405)


def test_without_a_site_a_page_says_how_to_build_it(tmp_path: Path) -> None:
    with (
        served(tmp_path, docs=tmp_path / "none") as api,
        httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, timeout=60, trust_env=False) as reader,
    ):
        page = reader.get("/docs/")
        assert page.status_code == 404
        assert "make docs" in page.text
        for cls in CLASSES:
            page = reader.get(f"/docs/errors/{cls.slug}")
            assert page.status_code == 200
            assert f"<h1>{cls.slug}</h1>" in page.text
            assert "make docs" in page.text
