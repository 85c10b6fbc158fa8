"""The store's contract on SQLite and on PostgreSQL, on a database that each module has for itself.

On PostgreSQL, CI runs the modules about its transactions and locks, and the other modules by turns. `make test` runs
SQLite alone.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from support.postgres import PostgresServer

_ABOUT_TRANSACTIONS = {"events", "hosts", "ingest", "jobs", "lease", "schema", "unavailable"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests on PostgreSQL that CI runs, all of them or by turns."""
    if item.path.parent == Path(__file__).parent and "[postgresql" in item.name:
        module = item.path.stem.removeprefix("test_store_")
        item.add_marker(pytest.mark.ci if module in _ABOUT_TRANSACTIONS else pytest.mark.turn)


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
