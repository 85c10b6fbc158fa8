"""The store's contract: every test runs on SQLite and on PostgreSQL, on a database that its module has for itself."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from support.postgres import PostgresServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('sqlite')}/store.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_database(f"t{secrets.token_hex(4)}")


@pytest.fixture(scope="module")
def url(empty_url: str) -> str:
    """A database with all tables, made by the migrations."""
    schema.upgrade(empty_url)
    return empty_url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """The database, opened."""
    database = Database(url)
    yield database
    await database.close()
