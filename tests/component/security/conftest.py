"""A control plane over real HTTP, and a caller of each kind."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from clonos_api.settings import Limits
from support.serving import Served, served

MANY = Limits(requests_per_s=100_000, burst=1_000_000, failures_burst=1_000_000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api"), limits=MANY) as created:
        yield created


@pytest.fixture
def token(service: Served) -> Callable[..., dict[str, Any]]:
    """Makes tokens: ``token("operator", subject="ada")``."""

    def make(role: str, **more: Any) -> dict[str, Any]:
        with service.client() as admin:
            created = admin.post("/tokens", json={"name": "t", "role": role, **more})
        assert created.status_code == 201, created.text
        answer: dict[str, Any] = created.json()
        return answer

    return make


@pytest.fixture
def caller(service: Served, token: Callable[..., dict[str, Any]]) -> Iterator[Callable[..., httpx.Client]]:
    """Clients with a token of their own."""
    with ExitStack() as stack:
        yield lambda role, **more: stack.enter_context(service.client(token(role, **more)["token"]))


@pytest.fixture
def ada(caller: Callable[..., httpx.Client]) -> httpx.Client:
    return caller("operator", subject="ada")


@pytest.fixture
def bob(caller: Callable[..., httpx.Client]) -> httpx.Client:
    return caller("operator", subject="bob")


@pytest.fixture
def name() -> str:
    """A name for a job."""
    return f"j{secrets.token_hex(4)}"


@pytest.fixture
def nobody(service: Served) -> Iterator[httpx.Client]:
    """A client without a token."""
    with httpx.Client(base_url=service.url, timeout=20.0, trust_env=False, verify=False) as client:
        yield client
