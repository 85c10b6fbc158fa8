"""An admin lists the browsers that are signed in, and ends their sessions; each beginning and end is audited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from clonos.client import Client
from support.serving import Served

Token = Callable[..., dict[str, Any]]


@contextmanager
def signed_in(service: Served, token: str) -> Iterator[httpx.Client]:
    """A browser with a session of an API token."""
    headers = {"Origin": service.url}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=20.0) as browser:
        browser.post("/session", headers={"Authorization": f"Bearer {token}"}).raise_for_status()
        yield browser


def id_of(browser: httpx.Client) -> str:
    return str(browser.get("/api/v1/tokens/self").raise_for_status().json()["id"])


def audited(service: Served, action: str, target: str) -> list[dict[str, Any]]:
    with service.client() as admin:
        rows = admin.get("/audit", params={"action": action, "limit": 200}).json()["data"]
    return [row for row in rows if row["target"] == target]


def test_an_admin_ends_one_session(service: Served, token: Token, name: str) -> None:
    made = token("viewer", subject=name)
    with (
        signed_in(service, made["token"]) as first,
        signed_in(service, made["token"]) as second,
        service.client() as admin,
    ):
        listed = admin.get("/sessions", params={"subject": name}).json()["data"]
        assert {row["id"] for row in listed} == {id_of(first), id_of(second)}
        assert {row["session_of"] for row in listed} == {made["id"]}
        assert "token" not in listed[0]
        ended = id_of(first)
        assert admin.delete(f"/sessions/{ended}").status_code == 204
        assert first.get("/api/v1/jobs").status_code == 401
        assert second.get("/api/v1/jobs").status_code == 200
        assert [row["id"] for row in admin.get("/sessions", params={"subject": name}).json()["data"]] == [id_of(second)]
        assert admin.delete(f"/sessions/{ended}").status_code == 204, "it has ended"
    (opened,), (closed,) = audited(service, "session.open", ended), audited(service, "session.end", ended)
    assert (opened["subject"], opened["token"], opened["detail"]["by"]) == (name, made["id"], "token")
    assert (closed["subject"], closed["detail"]["subject"]) == ("admin", name)


def test_an_admin_ends_all_sessions_of_a_subject(service: Served, token: Token, name: str) -> None:
    mine, other = token("viewer", subject=name), token("viewer", subject=f"{name}-other")
    with (
        signed_in(service, mine["token"]) as first,
        signed_in(service, mine["token"]) as second,
        signed_in(service, other["token"]) as third,
        Client(service.url, service.admin) as admin,
    ):
        assert admin.sessions.revoke_all(name) == 2
        assert [browser.get("/api/v1/jobs").status_code for browser in (first, second, third)] == [401, 401, 200]
        assert admin.sessions.revoke_all(name) == 0
        assert admin.sessions.list(subject=name).data == []
        (session,) = admin.sessions.list(subject=f"{name}-other").data
        assert session.id in {row.id for row in admin.sessions.list().data}
    with service.client(mine["token"]) as program:
        assert program.get("/jobs").status_code == 200, "the API token remains valid"


def test_an_api_token_is_not_a_session(service: Served, token: Token) -> None:
    made = token("viewer")
    with service.client() as admin, service.client(made["token"]) as viewer:
        for id in (made["id"], "ffffffffffffffff"):
            assert admin.delete(f"/sessions/{id}").status_code == 404
        assert admin.delete("/sessions").status_code == 422, "a request without a subject ends no session"
        assert viewer.get("/jobs").status_code == 200
        assert viewer.get("/sessions").status_code == 403


def test_a_sign_out_is_audited(service: Served, token: Token, name: str) -> None:
    with signed_in(service, token("viewer", subject=name)["token"]) as browser:
        session = id_of(browser)
        assert browser.post("/signout").status_code == 204
    (entry,) = audited(service, "session.end", session)
    assert (entry["subject"], entry["token"]) == (name, session)


@pytest.mark.parametrize("overlap_s", [0, 60])
def test_a_rotation_is_audited(service: Served, token: Token, name: str, overlap_s: int) -> None:
    made = token("viewer", subject=name)
    with service.client(made["token"]) as caller:
        created = caller.post("/tokens/self/rotate", params={"overlap_s": overlap_s}).json()
    (entry,) = audited(service, "token.rotate", made["id"])
    assert entry["subject"] == name
    assert (entry["detail"]["replaced_by"], entry["detail"]["overlap_s"]) == (created["id"], overlap_s)
