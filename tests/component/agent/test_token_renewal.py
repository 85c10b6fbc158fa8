"""Agents replace their tokens before they expire; what cannot be replaced is reported."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.client.agent_token import AgentToken
from clonos.errors import SpecError
from clonos.testing.harness import eventually
from component.agent.hosts import ThreadAgent, settings
from support.serving import Served, served


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(tmp_path_factory.mktemp("service")) as running:
        yield running


def token_of(admin: httpx.Client, name: str, lifetime_s: int) -> dict[str, Any]:
    body = {"name": name, "role": "agent", "subject": name, "host": name, "expires_in_s": lifetime_s}
    created = admin.post("/tokens", json=body)
    assert created.status_code == 201, created.text
    return dict(created.json())


def listed(admin: httpx.Client, name: str) -> list[dict[str, Any]]:
    return [token for token in admin.get("/tokens").json()["data"] if token["name"] == name]


def test_an_agent_outlives_its_token(service: Served, tmp_path: Path) -> None:
    """Its token file is read-only, as in the documented installations."""
    file = tmp_path / "agent.token"
    with service.client() as admin:
        first = token_of(admin, "h-renews", 6)
        file.write_text(first["token"] + "\n")
        file.chmod(0o400)
        agent = ThreadAgent(settings(tmp_path / "home", service.url, name="h-renews", token_file=file))
        try:
            eventually(lambda: len(listed(admin, "h-renews")) > 1, "the token is replaced")
            expired = datetime.fromisoformat(first["expires_at"])
            eventually(lambda: datetime.now(UTC) > expired, "the first token has expired")
            stored = tmp_path / "home" / "agent" / "h-renews" / "token.json"
            assert stat.S_IMODE(stored.stat().st_mode) == 0o600
            assert json.loads(stored.read_text())["token"] not in file.read_text()
            beat = admin.get("/hosts/h-renews").json()["heartbeat_at"]
            eventually(lambda: admin.get("/hosts/h-renews").json()["heartbeat_at"] > beat, "a later heartbeat")
            old = next(token for token in listed(admin, "h-renews") if token["id"] == first["id"])
            assert old["replaced_by"]
        finally:
            agent.stop()
        # The next agent process continues with the stored token.
        again = ThreadAgent(settings(tmp_path / "home", service.url, name="h-renews", token_file=file))
        try:
            beat = admin.get("/hosts/h-renews").json()["heartbeat_at"]
            eventually(lambda: admin.get("/hosts/h-renews").json()["heartbeat_at"] > beat, "the next agent's heartbeat")
        finally:
            again.stop()


RENEWAL = {"overlap_s": 60, "renewal": True}
ROTATION = {"overlap_s": 60}


@pytest.mark.parametrize(("first", "second"), [(ROTATION, RENEWAL), (RENEWAL, ROTATION), (ROTATION, ROTATION)])
def test_a_token_that_another_made_is_not_revoked(
    service: Served, name: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A person rotates the token of an agent while the agent renews it, in each order; nobody has used the new one."""
    with service.client() as admin, service.client(token_of(admin, name, 3600)["token"]) as agent:
        made = agent.post("/tokens/self/rotate", params=first).json()
        refused = agent.post("/tokens/self/rotate", params=second)
        assert refused.status_code == 409
        assert made["id"] in refused.json()["detail"]
        with service.client(made["token"]) as newest:
            assert newest.get("/tokens/self").status_code == 200


def test_a_new_token_that_was_lost_is_replaced_again(service: Served) -> None:
    """The agent may crash between the response and the write of its file."""
    with service.client() as admin, service.client(token_of(admin, "h-lost", 3600)["token"]) as agent:
        lost = agent.post("/tokens/self/rotate", params=RENEWAL).json()
        kept = agent.post("/tokens/self/rotate", params=RENEWAL)
        assert kept.status_code == 201
        created, expires = (datetime.fromisoformat(kept.json()[name]) for name in ("created_at", "expires_at"))
        assert (expires - created).total_seconds() == pytest.approx(3600, abs=2), "the lifetime of the first token"
        with service.client(lost["token"]) as other:
            assert other.get("/tokens/self").status_code == 401
        with service.client(kept.json()["token"]) as newest:
            assert newest.get("/tokens/self").json()["role"] == "agent"
        assert agent.post("/tokens/self/rotate", params=RENEWAL).status_code == 409  # it is in use: a copy gets none
        assert agent.delete("/tokens/self").status_code == 403


def test_a_token_of_the_user_takes_precedence(tmp_path: Path) -> None:
    file, renewed = tmp_path / "token", tmp_path / "renewed"
    file.write_text("clonos_a_1\n")
    token = AgentToken(file, renewed)
    token.replace("clonos_b_2")
    assert (token.text(), AgentToken(file, renewed).text()) == ("clonos_b_2", "clonos_b_2")
    file.write_text("clonos_c_3")
    assert (token.text(), AgentToken(file, renewed).text()) == ("clonos_c_3", "clonos_c_3")
    renewed.write_text('{"repl')  # the machine crashed
    assert AgentToken(file, renewed).text() == "clonos_c_3"


def test_a_stored_token_whose_file_was_opened_to_the_group_is_used(tmp_path: Path) -> None:
    """As by Kubernetes, for a volume of a pod with a group."""
    file, renewed = tmp_path / "token", tmp_path / "renewed"
    file.write_text("clonos_a_1\n")
    AgentToken(file, renewed).replace("clonos_b_2")
    renewed.chmod(0o660)
    assert AgentToken(file, renewed).text() == "clonos_b_2"
    assert stat.S_IMODE(renewed.stat().st_mode) == 0o600


def test_a_token_that_cannot_be_stored_is_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("clonos_a_1")
    token = AgentToken(tmp_path / "token", tmp_path / "nowhere" / "renewed")
    with pytest.raises(OSError, match="nowhere"):
        token.replace("clonos_b_2")
    assert token.text() == "clonos_b_2"
    (tmp_path / "nowhere").mkdir()
    token.store()
    assert AgentToken(tmp_path / "token", tmp_path / "nowhere" / "renewed").text() == "clonos_b_2"


@pytest.mark.parametrize(
    ("content", "why"), [("", "is empty"), (" \n", "is empty"), ("a b", "not hold a token"), ("\x00", "not hold")]
)
def test_a_token_file_without_a_token_is_a_typed_error(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(SpecError, match=why) as error:
        AgentToken(tmp_path / "token").text()
    assert "clonos token create" in error.value.hint
    with pytest.raises(SpecError, match="cannot be read"):
        AgentToken(tmp_path / "missing").text()
