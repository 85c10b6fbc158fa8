"""The clients of the control plane verify its certificate in any spelling of https."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.client import Client
from clonos.client.agent_api import AgentApi
from clonos.client.agent_token import AgentToken
from clonos.client.transport import Transport
from clonos.errors import SpecError

ADDRESSES = [("https://host", True), ("HTTPS://host", True), ("http://host", False)]


@pytest.mark.parametrize(("url", "verified"), ADDRESSES)
def test_agents(monkeypatch: pytest.MonkeyPatch, url: str, verified: bool) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: chosen.append(options["verify"]))
    AgentApi(url)
    assert [isinstance(verify, ssl.SSLContext) for verify in chosen] == [verified]


@pytest.mark.parametrize(("url", "verified"), ADDRESSES)
def test_callers(monkeypatch: pytest.MonkeyPatch, url: str, verified: bool) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(httpx, "Client", lambda **options: chosen.append(options["verify"]))
    Transport(url, "token" if verified else None)
    assert chosen == [verified]


@pytest.mark.parametrize(
    "url", ["http://control:8484", "HTTP://10.1.2.3", "http://[fd00::1]:1", "http://127.0.0.1.nip.io"]
)
def test_a_token_is_not_sent_unencrypted_to_another_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    (tmp_path / "token").write_text("clonos_a_1")
    token = AgentToken(tmp_path / "token")
    for connect in (lambda: Client(url, "clonos_a_1"), lambda: AgentApi(url, token)):
        with pytest.raises(SpecError, match="would send the token unencrypted") as error:
            connect()
        assert "CLONOS_API_ALLOW_HTTP" in error.value.hint
    Client(url, None)
    AgentApi(url)
    monkeypatch.setenv("CLONOS_API_ALLOW_HTTP", "true")
    Client(url, "clonos_a_1")
    AgentApi(url, token)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8484", "http://127.8.0.1", "http://[::1]:1", "http://localhost", "https://control"]
)
def test_a_token_is_sent_to_this_machine_or_encrypted(tmp_path: Path, url: str) -> None:
    (tmp_path / "token").write_text("clonos_a_1")
    Client(url, "clonos_a_1")
    AgentApi(url, AgentToken(tmp_path / "token"))
