"""A fake control plane, and the command line as its client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from clonos.cli.app import app
from clonos.client import Client
from component.cli.service import TOKEN, FakeService

Clonos = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _one_command() -> Iterator[None]:
    """The commands and their options are made once, and not for each command that runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="session")
def shared_service() -> Iterator[FakeService]:
    """One server for all tests: to create its routes takes longer than most commands."""
    fake = FakeService()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def service(shared_service: FakeService) -> FakeService:
    shared_service.clear()
    return shared_service


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(service.url, TOKEN, patience_s=60.0) as client:
        yield client


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `CLONOS_HOME`, and no stored contexts."""
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CLONOS_API", "CLONOS_TOKEN", "CLONOS_CONTEXT", "CLONOS_API_CA", "CLONOS_KAFKA__BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def clonos(service: FakeService, home: Path, monkeypatch: pytest.MonkeyPatch) -> Clonos:
    """Runs `clonos` with arguments against the fake control plane; raises the command's error."""
    monkeypatch.setenv("CLONOS_API", service.url)
    monkeypatch.setenv("CLONOS_TOKEN", TOKEN)

    def run(*arguments: str, ok: bool = True) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        if ok and result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
