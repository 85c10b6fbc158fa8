"""Browser sessions: sign-in, and the rights of the cookie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from clonos.resources.service import Role
from clonos_api.dashboard import assets
from support.serving import Served, served

Browser = Callable[..., httpx.Client]
PAGES = ("/", "/hosts", "/recoveries", "/events", "/submit", "/events/1")


@pytest.fixture
def anonymous(api: Served) -> httpx.Client:
    return httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, timeout=60, trust_env=False, verify=False)


@pytest.mark.parametrize("page", PAGES)
def test_sign_in_redirects_back_to_the_page(anonymous: httpx.Client, page: str) -> None:
    with anonymous:
        answer = anonymous.get(page)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/signin?next={page.replace('/', '%2F')}"
        assert anonymous.get("/signin").status_code == 200
        assert anonymous.get(page, headers={"Accept": "*/*"}).status_code == 401, "a program gets an error"
        assert anonymous.get(f"/api/v1{page}").status_code == 401, "and so does everybody at the API"


def test_the_cookie_is_http_only_and_same_site(api: Served, anonymous: httpx.Client) -> None:
    with anonymous:
        answer = anonymous.post("/session", headers={"Authorization": f"Bearer {api.admin}"})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert anonymous.post("/session", headers={"Authorization": "Bearer clonos_x_y"}).status_code == 401


def test_a_cookie_request_needs_the_own_origin_to_write(browser: Browser, api: Served) -> None:
    with browser() as client:
        assert client.get("/api/v1/jobs").status_code == 200
        drain = "/api/v1/hosts/unknown/drain"
        assert client.post(drain).status_code == 404
        assert client.post(drain, headers={"Origin": "http://elsewhere.example"}).status_code == 403
        del client.headers["Origin"]
        assert client.post(drain).status_code == 401, "a write needs an `Origin`"
        assert client.get("/").status_code == 200


def test_a_session_is_renewed(browser: Browser, anonymous: httpx.Client) -> None:
    with browser() as client, anonymous:
        answer = client.post("/session/renewal")
        assert answer.status_code == 204
        assert "Max-Age=43200" in answer.headers["set-cookie"]
        assert "HttpOnly" in answer.headers["set-cookie"]
        assert client.post("/session/renewal", headers={"Origin": "http://127.0.0.1:1"}).status_code in (401, 403)
        assert anonymous.post("/session/renewal").status_code == 401


def test_the_cookie_is_not_the_api_token_and_ends_with_the_session(browser: Browser, api: Served) -> None:
    with browser() as client, api.client() as admin:
        (cookie,) = client.cookies.jar
        assert cookie.value is not None
        assert cookie.value != api.admin
        as_bearer = {"Authorization": f"Bearer {cookie.value}"}
        with httpx.Client(base_url=api.url, headers=as_bearer, timeout=60, trust_env=False, verify=False) as program:
            assert program.get("/api/v1/jobs").status_code == 200
            assert program.post("/api/v1/tokens/self/rotate").status_code == 409
            assert program.post("/session").status_code == 409
            listed = {token["id"] for token in admin.get("/tokens", params={"limit": 200}).json()["data"]}
            assert cookie.value.split("_")[1] not in listed
            assert client.post("/signout").status_code == 204
            assert program.get("/api/v1/jobs").status_code == 401, "the session has ended"
        assert admin.get("/tokens/self").status_code == 200, "the API token stays valid"


def test_sessions_end_with_their_token(api: Served) -> None:
    with api.client() as admin:
        body = {"name": "short", "role": "viewer", "expires_in_s": 600}
        made = admin.post("/tokens", json=body).json()
        headers = {"Authorization": f"Bearer {made['token']}", "Origin": api.url}
        answer = httpx.post(
            f"{api.url}/session", headers=headers, timeout=60, trust_env=False, verify=False
        ).raise_for_status()
        assert int(answer.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0]) <= 600
        with httpx.Client(
            base_url=api.url, cookies=answer.cookies, timeout=60, trust_env=False, verify=False
        ) as client:
            assert client.get("/api/v1/jobs").status_code == 200
            assert admin.delete(f"/tokens/{made['id']}").status_code == 204
            assert client.get("/api/v1/jobs").status_code == 401


def test_errors_are_pages_for_browsers_and_json_for_programs(browser: Browser) -> None:
    with browser() as client:
        for path in ("/nosuch", "/jobs/nosuch", "/jobs/nosuch/recoveries/1", "/events/nosuch"):
            answer = client.get(path)
            assert answer.status_code in (404, 422), path
            assert answer.headers["content-type"].startswith("text/html"), path
            assert "This page is not available" in answer.text
            plain = client.get(path, headers={"Accept": "application/json"})
            assert plain.headers["content-type"] == "application/problem+json", path
        assert client.get("/api/v1/jobs/nosuch").headers["content-type"] == "application/problem+json"


def test_an_invalid_port_in_host_is_not_a_server_error(anonymous: httpx.Client) -> None:
    with anonymous:
        assert anonymous.get("/hosts", headers={"Host": "localhost:99999"}).status_code < 500


def test_signing_out_forgets_the_cookie(browser: Browser) -> None:
    with browser() as client:
        assert client.get("/").status_code == 200
        assert client.post("/signout").status_code == 204
        assert client.get("/").status_code == 303
        assert client.post("/signout").status_code == 204, "also for who is not signed in"


def test_viewers_have_no_buttons(browser: Browser) -> None:
    with browser(Role.VIEWER) as viewer, browser(Role.OPERATOR) as operator:
        assert "data-call" not in viewer.get("/").text
        assert 'href="submit"' not in viewer.get("/").text
        assert 'href="submit"' in operator.get("/").text
        assert viewer.get("/submit").status_code == 403


def test_every_page_loads_only_from_this_service(browser: Browser) -> None:
    with browser() as client:
        for page in PAGES:
            answer = client.get(page)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
            assert "http:" not in answer.text.replace("http://www.w3.org", "")
            assert "<script>" not in answer.text


def test_assets_are_public_and_immutable(anonymous: httpx.Client) -> None:
    with anonymous:
        for url in assets.URLS:
            answer = anonymous.get(url)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
        name = next(iter(assets.URLS)).rpartition("/")[2]
        older = anonymous.get(f"/assets/0000/{name}")
        assert (older.status_code, older.headers["cache-control"]) == (200, "no-store"), "of another version's page"
        for path in ("/assets/0000/none.js", "/assets/0000/..%2f..%2fapp.py", "/assets/%2e%2e/api/v1/jobs", "/assets"):
            assert anonymous.get(path).status_code in (303, 401, 404)
        assert anonymous.post(next(iter(assets.URLS))).status_code in (401, 405)


def test_a_link_from_another_site_counts_as_no_failure(api: Served, anonymous: httpx.Client) -> None:
    """A browser sends no cookie then (SameSite=Strict); its page asks again by itself."""
    with anonymous:
        assert {anonymous.get("/hosts").status_code for _ in range(100)} == {303}
        refreshed = anonymous.get("/hosts", headers={"HX-Request": "true"})
        assert refreshed.status_code == 401, "a script gets 401"


def test_an_allowed_origin_cannot_use_the_session(tmp_path: Path) -> None:
    other = "http://127.0.0.1:1"
    with served(tmp_path, allowed_origins=[other]) as api:
        headers = {"Authorization": f"Bearer {api.admin}", "Origin": api.url}
        cookies = httpx.post(f"{api.url}/session", headers=headers, timeout=60, trust_env=False, verify=False).cookies
        with httpx.Client(base_url=api.url, cookies=cookies, timeout=60, trust_env=False, verify=False) as client:
            drain = "/api/v1/hosts/unknown/drain"
            assert client.post(drain, headers={"Origin": api.url}).status_code == 404
            assert client.post(drain, headers={"Origin": other}).status_code == 401
