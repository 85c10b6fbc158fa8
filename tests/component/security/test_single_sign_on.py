"""Sign-in through a real OpenID Connect provider: PKCE, state, nonce, and groups that become roles."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.testing.harness import eventually
from clonos_api.auth.identity_provider import Attempt
from clonos_api.auth.rates import Buckets
from clonos_api.settings import ApiSettings, Oidc
from clonos_api.store.tables import SignInCodeRow
from support.oidc_provider import provider, sign_in
from support.serving import Change, Served, served, write

USERS = {
    "ada": {"email": "ada@example.org", "email_verified": True, "groups": ["staff", "platform"]},
    "vic": {"email": "vic@example.org", "email_verified": True, "groups": "staff"},
    "out": {"email": "out@example.org", "email_verified": True, "groups": ["guests"]},
    "new": {"email": "admin@example.org", "email_verified": False, "groups": ["platform"]},
}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider(USERS) as address:
        yield address


@pytest.fixture(scope="module")
def oidc(issuer: str) -> Oidc:
    roles = {"platform": "admin", "staff": "viewer"}
    client = {"client_id": "clonos", "client_secret": "of-the-client"}
    return Oidc.model_validate({"issuer": issuer, "name": "Example <Login>", "roles": roles, **client})


@pytest.fixture(scope="module")
def service(oidc: Oidc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("oidc"), oidc=oidc) as api:
        assert api.app is not None
        api.app.state.replica.sign_ins = Buckets(rate=1_000, burst=1_000)  # all tests have one address
        yield api


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    headers = {"Accept": "text/html", "Origin": service.url}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=20.0) as client:
        yield client


def begin(browser: httpx.Client, page: str = "/hosts?x=1") -> str:
    """Follow the link of the sign-in page; the address of the provider."""
    answer = browser.get("/signin/oidc", params={"next": page})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def test_a_user_signs_in_and_has_the_role_of_the_highest_group(browser: httpx.Client, service: Served) -> None:
    page = browser.get("/signin", params={"next": "/hosts?x=1"}).text
    assert "signin/oidc?next=/hosts%3Fx%3D1" in page
    assert "Example &lt;Login&gt;" in page
    asked = parse_qs(urlsplit(begin(browser)).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{service.url}/signin/oidc/callback"]
    back = browser.get(sign_in(begin(browser), "ada"))
    assert (back.status_code, back.headers["location"]) == (303, "/signin?next=%2Fhosts%3Fx%3D1")
    cookie = next(text for text in back.headers.get_list("set-cookie") if "_signin" not in text.partition("=")[0])
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "Max-Age=28800" in cookie
    assert browser.get("/hosts").status_code == 200
    own = browser.get("/api/v1/tokens/self").json()
    assert (own["subject"], own["role"]) == ("ada@example.org", "admin")
    assert browser.post("/session/renewal").headers.get("set-cookie") is None, "a session is not renewed"
    assert browser.post("/api/v1/tokens/self/rotate").status_code == 409
    with service.client() as admin:
        listed = {row["id"] for row in admin.get("/tokens").json()["data"]}
        assert own["id"] not in listed
        (entry,) = [
            row
            for row in admin.get("/audit", params={"action": "session.open"}).json()["data"]
            if row["target"] == own["id"]
        ]
        assert entry["subject"] == "ada@example.org"
        assert entry["detail"]["by"] == "oidc"
        (session,) = admin.get("/sessions", params={"subject": "ada@example.org"}).json()["data"]
        assert (session["id"], session["session_of"], session["role"]) == (own["id"], "oidc", "admin")
        assert admin.delete(f"/sessions/{own['id']}").status_code == 204
    assert browser.get("/hosts").status_code == 303, "an admin ended the session"


def test_a_user_signs_in_below_the_path_of_a_proxy(oidc: Oidc, tmp_path: Path) -> None:
    """The proxy removes the path from requests: the browser's addresses have it, and the service's routes do not."""
    with (
        served(tmp_path, oidc=oidc, public_url="https://tools.example/clonos") as api,
        httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, trust_env=False, timeout=20.0) as client,
    ):
        begun = client.get("/signin/oidc", params={"next": "/clonos/hosts"})
        assert "; Path=/clonos/" in begun.headers["set-cookie"]
        to_provider = begun.headers["location"]
        assert parse_qs(urlsplit(to_provider).query)["redirect_uri"] == [f"{api.url}/clonos/signin/oidc/callback"]
        back = urlsplit(sign_in(to_provider, "ada"))
        assert back.path == "/clonos/signin/oidc/callback"
        cookie = begun.headers["set-cookie"].partition(";")[0]
        ended = client.get(f"{back.path.removeprefix('/clonos')}?{back.query}", headers={"Cookie": cookie})
        assert (ended.status_code, ended.headers["location"]) == (303, "/clonos/signin?next=%2Fclonos%2Fhosts")


def test_sign_out_ends_the_session(browser: httpx.Client) -> None:
    browser.get(sign_in(begin(browser), "vic"))
    assert browser.get("/api/v1/tokens/self").json()["role"] == "viewer"
    assert browser.post("/signout").status_code == 204
    assert browser.get("/api/v1/jobs").status_code == 401


@pytest.mark.parametrize(("user", "problem"), [("out", "has no role here"), ("new", "no verified email")])
def test_users_without_a_role_or_a_verified_name_are_refused(browser: httpx.Client, user: str, problem: str) -> None:
    answer = browser.get(sign_in(begin(browser), user))
    assert answer.status_code == 403
    assert problem in answer.text
    assert browser.get("/api/v1/jobs").status_code == 401


def test_a_redirect_is_accepted_once_and_in_its_own_browser_only(browser: httpx.Client, service: Served) -> None:
    redirect = sign_in(begin(browser), "ada")
    with httpx.Client(trust_env=False, timeout=20.0, headers={"Accept": "text/html"}) as victim:
        assert victim.get(redirect).status_code == 401, "another site could sign the victim in as another user"
    other_state = f"{redirect.partition('?')[0]}?{urlencode({'code': 'x', 'state': 'y'})}"
    assert browser.get(other_state).status_code == 401
    assert browser.get(redirect).status_code == 303
    assert browser.get(redirect).status_code == 401, "the attempt is over"


def cookie_of_attempt(browser: httpx.Client) -> tuple[str, str]:
    """The name and value of the cookie of the browser's attempt."""
    (cookie,) = (cookie for cookie in browser.cookies.jar if cookie.name.endswith("_signin"))
    assert cookie.value is not None
    return cookie.name, cookie.value.strip('"')


def call_back(service: Served, redirect: str, cookie: tuple[str, str]) -> httpx.Response:
    """Follow the provider's redirect with this cookie only."""
    headers = {"Accept": "text/html", "Cookie": "=".join(cookie)}
    return httpx.get(redirect, headers=headers, trust_env=False, timeout=20.0)


def changed(cookie: str, **changes: str) -> str:
    return urlsafe_b64encode(json.dumps({**json.loads(urlsafe_b64decode(cookie)), **changes}).encode()).decode()


def test_the_cookie_of_an_attempt_stays_in_its_browser(service: Served, oidc: Oidc, tmp_path: Path) -> None:
    answer = httpx.get(f"{service.url}/signin/oidc", trust_env=False, timeout=20.0)
    name, _, attributes = answer.headers["set-cookie"].partition("=")
    assert name.endswith("_signin")
    parts = {part.strip().lower() for part in attributes.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", "max-age=600"} <= parts
    with served(tmp_path, oidc=oidc, trusted_proxies=["127.0.0.1"]) as api:
        headers = {"X-Forwarded-Proto": "https"}
        answer = httpx.get(f"{api.url}/signin/oidc", headers=headers, trust_env=False, timeout=20.0)
    encrypted = answer.headers["set-cookie"]
    assert encrypted.startswith("__Host-")
    assert "; secure" in encrypted.lower()
    assert "domain" not in encrypted.lower()


def test_a_changed_or_invented_cookie_is_refused(browser: httpx.Client, service: Served) -> None:
    redirect = sign_in(begin(browser), "ada")
    name, cookie = cookie_of_attempt(browser)
    answer = call_back(service, redirect, (name, changed(cookie, next="/elsewhere")))
    assert answer.status_code == 401
    assert "not begun in this browser" in answer.text
    invented = Attempt("/", state=parse_qs(urlsplit(redirect).query)["state"][0])
    answer = call_back(service, redirect, (name, invented.encode()))
    assert "not begun in this browser" in answer.text
    assert call_back(service, redirect, (name, cookie)).status_code == 303, "wrong cookies do not use it up"


def test_an_attempt_is_valid_once(browser: httpx.Client, service: Served) -> None:
    address = begin(browser)
    cookie = cookie_of_attempt(browser)
    first, second = sign_in(address, "vic"), sign_in(address, "ada")
    assert call_back(service, first, cookie).status_code == 303
    answer = call_back(service, second, cookie)
    assert answer.status_code == 401
    assert "not begun in this browser" in answer.text


def test_an_attempt_ends_after_ten_minutes(browser: httpx.Client, service: Served) -> None:
    redirect = sign_in(begin(browser), "ada")
    cookie = cookie_of_attempt(browser)
    digest = sha256(cookie[1].encode()).digest()

    def age(by: timedelta) -> Change:
        async def change(session: AsyncSession) -> datetime:
            row = await session.get(SignInCodeRow, digest)
            assert row is not None
            row.expires_at -= by
            return row.expires_at

        return change

    expires_at = write(service, age(timedelta(0)))
    assert timedelta(minutes=9) < expires_at - datetime.now(UTC) <= timedelta(minutes=10)
    write(service, age(timedelta(minutes=10)))
    assert call_back(service, redirect, cookie).status_code == 401


def test_a_refused_sign_in_is_audited(browser: httpx.Client, service: Served) -> None:
    assert browser.get(sign_in(begin(browser), "out")).status_code == 403
    for _ in range(20):
        assert browser.get("/signin/oidc/callback", params={"code": "x", "state": "y"}).status_code == 401
    with service.client() as admin:
        query = {"action": "GET /signin/oidc/callback", "limit": 200}
        entries = admin.get("/audit", params=query).json()["data"]
    assert {entry["outcome"] for entry in entries} == {"denied"}
    by_error = {entry["detail"]["error"]: entry["detail"] for entry in entries}
    assert "out@example.org has no role here" in by_error["forbidden"]["what"]
    assert by_error["unauthenticated"]["address"] == "127.0.0.1"
    assert len(entries) < 10, "equal refusals within a minute are one entry"


def test_a_code_of_another_attempt_is_refused(browser: httpx.Client) -> None:
    """An attacker has a code of their own, or of the victim, and lacks the verifier of the browser's attempt."""
    code = parse_qs(urlsplit(sign_in(begin(browser), "ada")).query)["code"][0]
    own = urlsplit(sign_in(begin(browser), "vic"))
    forged = urlencode({**{name: values[0] for name, values in parse_qs(own.query).items()}, "code": code})
    answer = browser.get(f"{own.path}?{forged}")
    assert answer.status_code == 401
    assert "refused the sign-in" in answer.text


def test_a_user_who_declines_is_not_signed_in(browser: httpx.Client) -> None:
    state = parse_qs(urlsplit(begin(browser)).query)["state"][0]
    back = browser.get("/signin/oidc/callback", params={"error": "access_denied", "state": state})
    assert back.status_code == 401
    assert "did not sign you in" in back.text
    assert browser.get("/api/v1/jobs").status_code == 401


def test_a_token_for_another_client_is_refused(oidc: Oidc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        served(tmp_path, oidc=oidc) as api,
        httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, trust_env=False, timeout=20.0) as browser,
    ):
        redirect = sign_in(begin(browser), "ada")
        settings = api.app.state.replica.identity_provider.settings  # type: ignore[union-attr]
        monkeypatch.setattr(settings, "client_id", "another")
        answer = browser.get(redirect)
        assert answer.status_code == 401


def test_a_nonce_of_another_attempt_is_refused(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    redirect = sign_in(begin(browser), "ada")
    decode = Attempt.decode

    def replayed(cookie: str, state: str) -> Attempt:
        attempt = decode(cookie, state)
        return Attempt(attempt.next, attempt.state, "another", attempt.verifier)

    monkeypatch.setattr(Attempt, "decode", replayed)
    answer = browser.get(redirect)
    assert answer.status_code == 401
    assert "token is not valid" in answer.text


def test_sign_ins_of_one_address_are_limited(oidc: Oidc, tmp_path: Path) -> None:
    with (
        served(tmp_path, oidc=oidc) as api,
        httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, trust_env=False, timeout=20.0) as browser,
    ):
        eventually(lambda: browser.get("/signin/oidc").status_code == 429, "the address has no sign-in left")


def test_an_unavailable_provider_leaves_the_sign_in_with_a_token(tmp_path: Path) -> None:
    settings = Oidc(issuer="http://127.0.0.1:1", client_id="clonos", roles={"staff": "viewer"})
    with (
        served(tmp_path, oidc=settings) as api,
        httpx.Client(base_url=api.url, headers={"Accept": "text/html"}, trust_env=False, timeout=20.0) as browser,
    ):
        answer = browser.get("/signin/oidc")
        assert answer.status_code == 503
        assert "identity provider does not answer" in answer.text
        assert browser.post("/session", headers={"Authorization": f"Bearer {api.admin}"}).status_code == 204


def test_without_the_settings_there_is_no_sign_in_by_a_provider(tmp_path: Path) -> None:
    with served(tmp_path) as api, httpx.Client(base_url=api.url, trust_env=False, timeout=20.0) as browser:
        assert browser.get("/signin/oidc").status_code == 404
        assert browser.get("/signin/oidc/callback").status_code == 404
        assert "/signin/oidc" not in browser.get("/signin").text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": "http://login.example.org"}, "https address"),
        ({"roles": {}}, "roles"),
        ({"roles": {"x": "agent"}}, "viewer"),
        ({"scopes": "email"}, "scopes"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    settings = {"issuer": "https://login.example.org", "client_id": "clonos", "roles": {"a": "viewer"}, **changes}
    with pytest.raises(ValidationError, match=problem):
        ApiSettings(home=tmp_path, oidc=settings)  # type: ignore[arg-type]
