"""A fresh database for each test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from component.reconcile.acting import Placing
from support.postgres import PostgresServer


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with all tables, to copy: a copy takes a hundredth of the time of the migrations."""
    file = tmp_path_factory.mktemp("migrated") / "store.db"
    schema.upgrade(f"sqlite+aiosqlite:///{file}")
    assert [entry.name for entry in file.parent.iterdir()] == [file.name], "all is in one file"
    return file


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path, migrated: Path) -> str:
    """A database with all tables."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{shutil.copy(migrated, tmp_path)}"
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create_database(f"r{secrets.token_hex(4)}")
    schema.upgrade(url)
    return url


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
