"""The clients of the control plane verify its certificate in any spelling of https."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import pytest

from clonos.client.agent_api import AgentApi
from clonos.client.transport import Transport

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
    Transport(url, "token")
    assert chosen == [verified]
