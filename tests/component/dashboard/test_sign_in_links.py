"""Links that sign a browser in once: who gets a code, and what it is good for."""

from __future__ import annotations

import secrets
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos_api.settings import Limits
from clonos_api.store.sign_in_codes import LIFETIME_S
from clonos_api.store.tables import SignInCodeRow
from support.serving import Served, served, write

LINK = "/session/link"
FAILURES = 200


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Each use of a link counts as a failure of the address, and all tests have one address."""
    limits = Limits(requests_per_s=10_000, burst=100_000, failures_burst=FAILURES)
    with served(tmp_path_factory.mktemp("api"), limits=limits) as service:
        yield service


@pytest.fixture
def page(api: Served) -> httpx.Client:
    """A browser without a session, on the sign-in page."""
    headers = {"Accept": "text/html", "Origin": api.url}
    return httpx.Client(base_url=api.url, headers=headers, timeout=60, trust_env=False, verify=False)


def code(api: Served, token: str | None = None) -> str:
    with api.client(token) as client:
        made = client.post("/sign-in-codes").raise_for_status()
        assert made.headers["cache-control"] == "no-store"
        left = datetime.fromisoformat(made.json()["expires_at"]) - datetime.now(UTC)
        assert timedelta(0) < left <= timedelta(seconds=LIFETIME_S)
        return str(made.json()["code"])


def short_token(api: Served, role: Role = Role.OPERATOR) -> dict[str, Any]:
    with api.client() as admin:
        body = {"name": f"link-{secrets.token_hex(4)}", "role": role, "subject": "ada", "expires_in_s": 600}
        made: dict[str, Any] = admin.post("/tokens", json=body).raise_for_status().json()
        return made


def audited(api: Served, action: str, token: str) -> list[dict[str, Any]]:
    with api.client() as admin:
        rows = admin.get("/audit", params={"action": action, "limit": 200}).json()["data"]
        return [row for row in rows if row["target"] == token]


def test_a_code_opens_a_session_with_the_rights_of_the_token(api: Served, page: httpx.Client) -> None:
    token = short_token(api)
    with page:
        assert page.get("/").status_code == 303
        answer = page.post(LINK, json={"code": code(api, token["token"])})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert int(cookie.partition("max-age=")[2].partition(";")[0]) <= 600, "it ends with its token"
        overview = page.get("/").text
        assert "ada" in overview
        assert "operator" in overview
        (cookie_value,) = (each.value for each in page.cookies.jar)
        session = page.get("/api/v1/tokens/self").json()["id"]
        assert cookie_value is not None
        as_bearer = {"Authorization": f"Bearer {cookie_value}"}
        assert page.post("/api/v1/sign-in-codes", headers=as_bearer).status_code == 409, "a session makes no codes"
        with api.client() as admin:
            admin.delete(f"/tokens/{token['id']}").raise_for_status()
        assert page.get("/api/v1/jobs").status_code == 401, "it ends with its token"
    (made,) = audited(api, "session.link", token["id"])
    (opened,) = audited(api, "session.open", session)
    assert opened["token"] == token["id"]
    assert (made["subject"], opened["subject"]) == ("ada", "ada")
    assert opened["detail"]["by"] == "link"


def test_a_code_works_once(api: Served, page: httpx.Client) -> None:
    with page:
        used = code(api)
        assert page.post(LINK, json={"code": used}).status_code == 204
        page.cookies.clear()
        again = page.post(LINK, json={"code": used}, headers={"Accept": "application/json"})
        assert again.status_code == 401
        assert "clonos open" in again.json()["hint"]
        assert "set-cookie" not in again.headers
        with api.client() as admin:
            newest = admin.get("/audit", params={"action": "POST /session/link", "limit": 1}).json()["data"]
        assert newest[0]["outcome"] == "denied"
        assert used not in str(newest)


def test_of_two_requests_with_one_code_one_gets_a_session(api: Served) -> None:
    shared = code(api)
    statuses: list[int] = []

    def redeem() -> None:
        headers = {"Origin": api.url}
        answer = httpx.post(
            f"{api.url}{LINK}", json={"code": shared}, headers=headers, timeout=60, trust_env=False, verify=False
        )
        statuses.append(answer.status_code)

    threads = [Thread(target=redeem) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [204, *[401] * 7]


def test_an_expired_code_and_one_of_a_revoked_token_are_refused(api: Served, page: httpx.Client) -> None:
    token = short_token(api)
    late, revoked = code(api), code(api, token["token"])

    async def expire(session: AsyncSession) -> None:
        await session.execute(
            update(SignInCodeRow)
            .where(SignInCodeRow.token != token["id"])
            .values(expires_at=datetime.now(UTC) - timedelta(seconds=1))
        )

    async def count(session: AsyncSession) -> int:
        expired = select(func.count()).where(SignInCodeRow.expires_at < datetime.now(UTC))
        return int((await session.scalars(expired)).one())

    write(api, expire)
    with page, api.client() as admin:
        assert page.post(LINK, json={"code": late}).status_code == 401
        admin.delete(f"/tokens/{token['id']}").raise_for_status()
        assert page.post(LINK, json={"code": revoked}).status_code == 401
    code(api)
    assert write(api, count) == 0, "the next code removes expired ones"


def test_only_the_hash_of_a_code_is_stored(api: Served) -> None:
    made = code(api)

    async def stored(session: AsyncSession) -> list[bytes]:
        return list(await session.scalars(select(SignInCodeRow.digest)))

    digests = write(api, stored)
    assert digests
    assert all(len(digest) == 32 and made.encode() not in digest for digest in digests)


@pytest.mark.parametrize("origin", [None, "http://elsewhere.example", "null", "http://127.0.0.1:1"])
def test_only_the_sign_in_page_uses_a_code(api: Served, origin: str | None) -> None:
    """No page of another origin signs a browser in, neither with the user's code nor with its own."""
    unused = code(api)
    headers = {"Origin": origin} if origin is not None else {}
    with httpx.Client(base_url=api.url, headers=headers, timeout=60, trust_env=False, verify=False) as other:
        assert other.post(LINK, json={"code": unused}).status_code == 403
        form = other.post(LINK, data={"code": unused})
        assert form.status_code in (403, 422), "a form of another site sends no JSON"
    with httpx.Client(base_url=api.url, headers={"Origin": api.url}, timeout=60, trust_env=False, verify=False) as own:
        assert own.post(LINK, json={"code": unused}).status_code == 204, "the refusals did not use it up"


def test_a_get_uses_no_code_up_and_redirects_nowhere(api: Served, page: httpx.Client) -> None:
    """Scanners of links and browsers that fetch pages ahead send GET."""
    unused = code(api)
    with page:
        for query in ({"code": unused}, {"next": "https://evil.example/"}, {"next": "//evil.example"}):
            answer = page.get("/signin", params=query)
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers
            assert "evil.example" not in answer.text
            assert answer.headers["referrer-policy"] == "no-referrer"
        assert page.get(LINK, params={"code": unused}).status_code in (404, 405)
        assert page.post(LINK, json={"code": unused}).status_code == 204


@pytest.mark.parametrize("body", [{}, {"code": ""}, {"code": 1}, {"code": "x" * 201}, [], {"code": None}])
def test_bodies_without_a_code_are_refused(page: httpx.Client, body: object) -> None:
    with page:
        assert page.post(LINK, json=body).status_code == 422
        assert page.post(LINK, json={"code": "ab" * 20}).status_code == 401


def test_an_agent_gets_no_code(api: Served) -> None:
    with api.client() as admin:
        body = {"name": f"agent-{secrets.token_hex(4)}", "role": "agent", "host": "host-9"}
        agent = admin.post("/tokens", json=body).raise_for_status().json()["token"]
        with_key = admin.post("/sign-in-codes", headers={"Idempotency-Key": "k"})
        assert with_key.status_code == 422, "the response is not stored"
    with api.client(agent) as client:
        assert client.post("/sign-in-codes").status_code == 403


def head_only(api: Served, *lines: str) -> int:
    """The status of the response to a request whose body never arrives."""
    url = urlsplit(api.url)
    head = "\r\n".join((f"POST {LINK} HTTP/1.1", f"Host: {url.netloc}", *lines, "", ""))
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=60) as connection:
        connection.sendall(head.encode())
        return int(connection.recv(100).split()[1])


def test_the_body_of_another_origin_is_not_read(api: Served) -> None:
    """Anybody can send this request: it must cost little before it is refused."""
    for length in ("Content-Length: 900", "Transfer-Encoding: chunked"):
        assert head_only(api, "Content-Type: application/json", length) == 403


def test_a_long_body_is_refused(page: httpx.Client) -> None:
    with page:
        assert page.post(LINK, content=b" " * 1_001, headers={"Content-Type": "application/json"}).status_code == 413
        assert page.post(LINK, content=iter([b" " * 600] * 2)).status_code == 413, "without a length"


def test_the_attempts_of_an_address_are_limited(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(failures_per_s=0.001, failures_burst=3)) as api:
        with httpx.Client(
            base_url=api.url, headers={"Origin": api.url}, timeout=60, trust_env=False, verify=False
        ) as client:
            for _ in range(3):
                assert client.post(LINK, json={"code": "ab" * 20}).status_code == 401
            refused = client.post(LINK, json={"code": "ab" * 20})
            assert refused.status_code == 429
            assert "retry-after" in refused.headers
        assert head_only(api, f"Origin: {api.url}", "Content-Length: 900") == 429, "the body is not read"


def test_an_unknown_code_needs_no_writer(tmp_path: Path) -> None:
    """Otherwise guesses from outside would take the only writer of SQLite from the users."""
    with (
        served(tmp_path) as api,
        closing(sqlite3.connect(api.settings.home / "control-plane.db")) as other,
        httpx.Client(
            base_url=api.url, headers={"Origin": api.url}, timeout=60, trust_env=False, verify=False
        ) as client,
    ):
        # The audit log has one entry of equal refusals, which the third one does not change.
        for number in range(3):
            if number == 2:
                other.execute("BEGIN IMMEDIATE")
            assert client.post(LINK, json={"code": "cd" * 20}, timeout=30).status_code == 401
