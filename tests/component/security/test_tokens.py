"""The life of a token, over real HTTP and in the database's own file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.private_folders import write_private
from clonos.resources.service import Role
from clonos.testing.harness import eventually
from clonos_api.auth import declared, require, require_agent
from clonos_api.auth.bootstrap import bootstrap
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobNameRow, JobRow, OwnerRow
from support.serving import Served, served, write
from support.stored import job_row, unique

Token = Callable[..., dict[str, Any]]


def self_with(service: Served, authorization: str | None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=20.0) as client:
        return client.get("/api/v1/tokens/self", headers=headers).status_code


def test_a_token_is_shown_once_and_only_its_digest_is_stored(service: Served, token: Token) -> None:
    created = token("viewer", subject="eve")
    prefix, id, secret = created["token"].split("_")
    assert (prefix, id, len(bytes.fromhex(secret))) == ("clonos", created["id"], 32)
    with service.client() as admin:
        shown = admin.get("/tokens", params={"limit": 200}).text + admin.get("/audit").text
    stored = b"".join(path.read_bytes() for path in service.settings.home.glob("control-plane.db*"))
    assert id.encode() in stored
    for text_ in (secret, bytes.fromhex(secret)):
        assert (text_.encode() if isinstance(text_, str) else text_) not in stored
    assert secret not in shown
    assert hashlib.sha256(bytes.fromhex(secret)).digest() in stored


def test_a_revoked_token_is_refused_at_once(service: Served, token: Token) -> None:
    created = token("viewer")
    with service.client(created["token"]) as viewer, service.client() as admin:
        assert viewer.get("/jobs").status_code == 200
        assert admin.delete(f"/tokens/{created['id']}").status_code == 204
        answer = viewer.get("/jobs")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"].endswith("/unauthenticated")


def test_a_caller_rotates_and_revokes_its_own_token(service: Served, token: Token) -> None:
    old = token("operator", subject="eve", expires_in_s=1000)
    with service.client(old["token"]) as eve:
        rotated = eve.post("/tokens/self/rotate")
        assert rotated.status_code == 201
        assert eve.get("/tokens/self").status_code == 401, "the old token is revoked"
    new = rotated.json()
    assert {name: new[name] for name in ("name", "role", "subject")} == {
        "name": "t",
        "role": "operator",
        "subject": "eve",
    }
    with service.client(new["token"]) as eve:
        assert eve.get("/tokens/self").json()["id"] == new["id"]
        assert eve.delete("/tokens/self").status_code == 204
        assert eve.get("/tokens/self").status_code == 401


def test_a_rotated_token_can_remain_valid_for_an_overlap(service: Served, token: Token) -> None:
    old = token("operator", subject="eve")
    with service.client(old["token"]) as eve:
        new = eve.post("/tokens/self/rotate", params={"overlap_s": 3600}).json()
        shown = eve.get("/tokens/self").json()
        left = datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)
        assert timedelta(minutes=50) < left <= timedelta(hours=1)
        assert eve.post("/tokens/self/rotate", params={"overlap_s": -1}).status_code == 422
    with service.client(new["token"]) as eve:
        assert eve.get("/tokens/self").json()["expires_at"] == new["expires_at"]
        assert eve.post("/tokens/self/rotate", params={"overlap_s": 1}).status_code == 201
        eventually(lambda: eve.get("/tokens/self").status_code == 401, "the replaced token has expired")


@pytest.mark.parametrize("overlap_s", [0, 60, 86_400])
def test_a_rotated_token_is_not_rotated_again(service: Served, token: Token, overlap_s: int) -> None:
    """A copy of the old token ends with the overlap, instead of replacing itself."""
    with service.client(token("operator", subject="eve")["token"]) as copy:
        new = copy.post("/tokens/self/rotate", params={"overlap_s": 3600}).raise_for_status().json()
        ends = copy.get("/tokens/self").json()["expires_at"]
        refused = copy.post("/tokens/self/rotate", params={"overlap_s": overlap_s})
        assert refused.status_code == 409
        assert new["id"] in refused.json()["detail"]
        assert copy.get("/tokens/self").json()["expires_at"] == ends
        assert copy.delete("/tokens/self").status_code == 204, "its user can end the overlap"


def test_equal_names_are_not_equal_subjects(service: Served) -> None:
    """A second token named ``ci-bot`` would change the jobs of the first one, without a word about it."""
    with service.client() as admin:
        body = {"name": f"ci-{secrets.token_hex(4)}", "role": "operator"}
        first = admin.post("/tokens", json=body).json()
        assert first["subject"] == body["name"]
        refused = admin.post("/tokens", json=body)
        assert refused.status_code == 409
        assert refused.json()["kept"] == "no token was created."
        assert admin.delete(f"/tokens/{first['id']}").status_code == 204
        assert admin.post("/tokens", json=body).status_code == 409, "the jobs are still there"
        assert admin.post("/tokens", json={**body, "subject": body["name"]}).status_code == 201
        assert admin.post("/tokens", json={**body, "role": "viewer"}).status_code == 201


def test_a_name_is_not_the_owner_of_older_jobs(service: Served) -> None:
    """Retention deletes old tokens, but neither jobs nor the names of deleted ones."""
    owners = {table: f"{table.__tablename__}-{secrets.token_hex(4)}" for table in (JobRow, JobNameRow, OwnerRow)}

    async def store(session: AsyncSession) -> None:
        job = await job_row(session)
        job.created_by = owners[JobRow]
        session.add(JobNameRow(name=unique("job-"), subject=owners[JobNameRow]))
        session.add(OwnerRow(number=1_000, subject=owners[OwnerRow]))

    write(service, store)
    with service.client() as admin:
        for name in owners.values():
            refused = admin.post("/tokens", json={"name": name, "role": "operator"})
            assert refused.status_code == 409, name
            body = {"name": name, "role": "operator", "subject": name}
            assert admin.post("/tokens", json=body).status_code == 201


def test_the_last_admin_keeps_a_token(tmp_path: Path) -> None:
    with served(tmp_path) as service, service.client() as admin:
        own = admin.get("/tokens/self").json()["id"]
        expired = admin.post("/tokens", json={"name": "other", "role": "admin", "expires_in_s": 1}).json()
        revoked = admin.post("/tokens", json={"name": "third", "role": "admin"}).json()
        assert admin.delete(f"/tokens/{revoked['id']}").status_code == 204
        eventually(lambda: self_with(service, f"Bearer {expired['token']}") == 401, "it expires")
        for path in (f"/tokens/{own}", "/tokens/self"):
            refused = admin.delete(path)
            assert refused.status_code == 409
            assert "last valid token of an admin" in refused.json()["detail"]
        rotated = admin.post("/tokens/self/rotate").json()
        with service.client(rotated["token"]) as again:
            assert again.get("/tokens/self").json()["role"] == "admin"


@pytest.mark.parametrize("subject", ["(nobody)", "a\r\nb", "a\u200fb", " a", "a\0"])
def test_a_subject_is_a_printable_name(service: Served, subject: str) -> None:
    with service.client() as admin:
        refused = admin.post("/tokens", json={"name": "t", "role": "viewer", "subject": subject})
    assert refused.status_code == 422


def test_a_token_expires_by_the_clock_of_the_database(service: Served, token: Token) -> None:
    created = token("viewer", expires_in_s=3600)
    assert self_with(service, f"Bearer {created['token']}") == 200
    with sqlite3.connect(service.settings.home / "control-plane.db") as database:
        database.execute("UPDATE tokens SET expires_at = '2001-01-01 00:00:00.000000' WHERE id = ?", (created["id"],))
    database.close()
    assert self_with(service, f"Bearer {created['token']}") == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda good: None,
        lambda good: "",
        lambda good: "Bearer",
        lambda good: good,
        lambda good: f"Basic {good}",
        lambda good: f"Bearer {good}x",
        lambda good: f"Bearer {good[:-1]}",
        lambda good: f"Bearer {good[:-2]}",
        lambda good: f"Bearer {good[:-1]}{'0' if good[-1] != '0' else '1'}",
        lambda good: f"Bearer {good.upper()}",
        lambda good: f"Bearer {good[:-64]}{good[-64:].upper()}",  # Python reads hexadecimal texts in any case
        lambda good: f"Bearer {good[:-62]} {good[-62:]}",  # and with spaces
        lambda good: f"Bearer {good}, Bearer {good}",
        lambda good: "Bearer clonos__" + good.split("_")[2],
        lambda good: "Bearer clonos_%_" + good.split("_")[2],
        lambda good: "Bearer clonos_' OR 1=1 --_" + good.split("_")[2],
        lambda good: f"Bearer clonos_{good.split('_')[1]}_" + "0" * 64,
        lambda good: f"Bearer clonos_{good.split('_')[1]}_",
        lambda good: f"Bearer {good.replace('clonos', 'other')}",
        lambda good: "Bearer " + "a" * 6000,
        lambda good: "Bearer \u00e9",
    ],
)
def test_invalid_tokens_are_refused(change: Callable[[str], str | None], service: Served, token: Token) -> None:
    good = token("viewer")["token"]
    original = change(good)
    headers = [] if original is None else [(b"authorization", original.encode("latin-1"))]
    with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=20.0) as client:
        assert client.get("/api/v1/tokens/self", headers=headers).status_code == 401
        assert client.get("/api/v1/tokens/self", headers={"Authorization": f"bearer {good}"}).status_code == 200


def test_two_authorization_headers_are_refused(service: Served, token: Token) -> None:
    good = f"Bearer {token('viewer')['token']}"
    with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=20.0) as client:
        answer = client.get("/api/v1/jobs", headers=[("Authorization", good), ("Authorization", good)])
    assert answer.status_code == 401


def test_a_token_is_not_taken_from_the_address_or_a_cookie(service: Served, token: Token) -> None:
    good = token("viewer")["token"]
    with httpx.Client(base_url=service.url, trust_env=False, verify=False, timeout=20.0) as client:
        for name in ("token", "access_token", "authorization"):
            assert client.get("/api/v1/jobs", params={name: good}).status_code == 401
            assert client.get("/api/v1/jobs", headers={"Cookie": f"{name}={good}"}).status_code == 401


def in_database(path: Path, work: Callable[[Database], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        database = Database(f"sqlite+aiosqlite:///{path}")
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    schema.upgrade(f"sqlite+aiosqlite:///{path}")
    return path


def test_the_first_token_is_in_a_file_of_its_own(empty: Path, tmp_path: Path) -> None:
    file = tmp_path / "private" / "admin.token"
    assert in_database(empty, lambda database: bootstrap(database, file)) is True
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    actual = file.read_text()
    assert in_database(empty, lambda database: bootstrap(database, file)) is False
    assert file.read_text() == actual


def test_a_restart_replaces_no_revoked_token(empty: Path, tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    in_database(empty, lambda database: bootstrap(database, file))

    async def revoke(database: Database) -> None:
        async with database.transaction() as session:
            await session.execute(text("UPDATE tokens SET revoked_at = CURRENT_TIMESTAMP"))

    in_database(empty, revoke)
    assert in_database(empty, lambda database: bootstrap(database, file)) is False


def test_a_file_that_cannot_be_written_leaves_no_token(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    with pytest.raises(OSError, match="taken"):
        in_database(empty, lambda database: bootstrap(database, tmp_path / "taken" / "admin.token"))
    assert in_database(empty, lambda database: bootstrap(database, tmp_path / "admin.token")) is True


def test_a_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not while it is incomplete; a link is replaced and not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    link = tmp_path / "admin.token"
    link.symlink_to(elsewhere)
    seen: list[int] = []
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (seen.append(stat.S_IMODE(os.fstat(fd).st_mode)), real(fd)),
    )
    write_private(link, "secret")
    assert seen[0] == 0o600
    assert not link.is_symlink()
    assert elsewhere.read_text() == "kept"


def test_without_authentication_only_the_local_user_is_accepted(tmp_path: Path) -> None:
    """`CLONOS_API__AUTH=false`, for a machine with one user: a token in a request must still be valid."""
    (tmp_path / "admin.token").write_text("unused")
    with (
        served(tmp_path, auth=False) as service,
        httpx.Client(base_url=service.url, timeout=60, trust_env=False, verify=False) as client,
    ):
        assert client.get("/api/v1/jobs").status_code == 200
        assert client.get("/api/v1/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/v1/jobs", headers={"Host": "evil.example"}).status_code == 403
        assert client.post("/api/v1/jobs", headers={"Origin": "https://evil.example"}).status_code == 403


def app_with(add: Callable[[FastAPI], object]) -> FastAPI:
    app = FastAPI(openapi_url=None)
    add(app)
    return app


async def bare() -> None:
    pass


def with_router(app: FastAPI) -> None:
    router = APIRouter(prefix="/x")
    router.get("/y")(bare)
    app.include_router(router)


def as_agent_without_id(app: FastAPI) -> None:
    app.get("/hosts/{other}", dependencies=[require_agent()])(bare)


@pytest.mark.parametrize(
    "add",
    [
        lambda app: app.get("/x")(bare),
        with_router,
        lambda app: app.get("/xhealth/live")(bare),
        lambda app: app.add_route("/x", lambda request: None),  # no dependencies at all
        lambda app: app.mount("/x", FastAPI()),
        lambda app: app.websocket("/x")(bare),
        as_agent_without_id,
        lambda app: app.post("/health/live/x")(bare),
    ],
)
def test_a_route_without_a_role_does_not_start(add: Callable[[FastAPI], object]) -> None:
    with pytest.raises(declared.Undeclared):
        declared.check_declared(app_with(add))


def test_routes_with_a_role_start() -> None:
    app = app_with(lambda app: app.get("/x", dependencies=[require(Role.VIEWER)])(bare))
    inside = APIRouter(prefix="/in", dependencies=[require(Role.ADMIN)])
    inside.get("/x")(bare)
    app.include_router(inside)
    app.get("/health/live")(bare)
    app.get("/hosts/{host}", dependencies=[require_agent()])(bare)
    declared.check_declared(app)
