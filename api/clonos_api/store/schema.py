"""The schema's version, by the migrations in `migrations/`.

Synchronous: call it before the service starts, or in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from clonos.errors import StoreAway
from clonos_api.store.database import sqlite_connection

# In the wheel, and in a checkout.
_PLACES: Final = (Path(__file__).parents[1] / "migrations", Path(__file__).parents[3] / "migrations")
_LOCK: Final = 0x6D69677261  # "migra"
_WAIT_S: Final = 30.0


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to the newest revision, or to the one that is named. Two at once wait for each other.

    Raises:
        StoreAway: The database does not answer.
    """
    with _connected(url) as (connection, config):
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(url: str, revision: str = "base") -> None:
    """Bring the database back to an older revision; ``base``: before the first. What newer tables held is lost.

    Raises:
        StoreAway: The database does not answer.
    """
    with _connected(url) as (connection, config):
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def current(url: str) -> str | None:
    """The revision that the database has; None before the first.

    Raises:
        StoreAway: The database does not answer.
    """
    with _connected(url) as (connection, _):
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str:
    """The newest revision that this version of Clonos knows, and needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "there are migrations"
    return head


def _config() -> Config:
    config = Config()
    place = next(place for place in _PLACES if (place / "env.py").exists())
    config.set_main_option("script_location", str(place).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _connected(url: str) -> Iterator[tuple[Connection, Config]]:
    """One transaction for everything, also on SQLite: a migration that fails leaves nothing behind."""
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    options: dict[str, Any] = {} if sqlite else {"connect_args": {"connect_timeout": 5}}
    engine = create_engine(parsed.set(drivername="sqlite") if sqlite else parsed, poolclass=NullPool, **options)
    if sqlite:
        sqlite_connection(engine, _WAIT_S)
    try:
        with engine.begin() as connection:
            if not sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield connection, _config()
    except OperationalError as error:
        raise StoreAway(f"The database does not answer: {str(error.orig).splitlines()[0]}") from error
    finally:
        engine.dispose()
