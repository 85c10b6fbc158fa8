"""A fresh database for each test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clonos_api.store.db import database as database_module
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from component.reconcile.acting import Placing
from support.postgres import PostgresServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.broad)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with all tables."""
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path}/store.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database(f"r{secrets.token_hex(4)}")
    schema.upgrade(url)
    return url


@pytest.fixture(autouse=True)
def _stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL does not end a transaction because a busy machine stalls this process."""
    monkeypatch.setattr(database_module, "_IDLE_MS", 60_000)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The database, opened."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def placing(tmp_path: Path) -> Placing:
    """Settings of the reconciler; all hosts can read the checkpoints."""
    return Placing(home=tmp_path, shared_checkpoints=str(tmp_path / "shared"))
