"""The schema's revision, managed by the Alembic migrations in `migrations/`.

All functions are synchronous: call them before the service starts, or in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from clonos.errors import DatabaseNewer, DatabaseUnavailable, StateConflict
from clonos_api.store.db.database import sqlite_connection

# In the wheel, and in a checkout.
_DIRECTORIES: Final = (Path(__file__).parents[2] / "migrations", Path(__file__).parents[4] / "migrations")
_LOCK: Final = 0x6D69677261  # "migra"
_WAIT_S: Final = 30.0
_OTHER_TABLES: Final = ("no such column", "no such table", "already exists", "duplicate column", "does not exist")


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate the database's tables to `revision`. Concurrent upgrades wait for each other.

    Raises:
        DatabaseNewer: A newer version of Clonos has upgraded the tables.
        DatabaseUnavailable: The database does not answer, or is damaged.
        StateConflict: The tables are not those of their revision, such as those of a version before the first release.
    """
    with _connected(url) as (connection, config):
        before = MigrationContext.configure(connection).get_current_revision()
        _require_known(before)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, revision)
        except (OperationalError, ProgrammingError) as error:
            if not any(text in str(error.orig) for text in _OTHER_TABLES):
                raise
            raise StateConflict(
                f"The database's tables are not those of their revision {before}: {str(error.orig).splitlines()[0]}.",
                kept="the database is unchanged.",
                hint="use the version of Clonos that wrote it, or start with an empty database.",
            ) from error


def downgrade(url: str, revision: str = "base") -> None:
    """Migrate the database's tables back to `revision`; ``base`` is before the first. Rows of newer tables are lost."""
    with _connected(url) as (connection, config):
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def current(url: str) -> str | None:
    """Return the current revision of the database's tables; None if they have not been created."""
    with _connected(url) as (connection, _):
        return MigrationContext.configure(connection).get_current_revision()


def engine_of(url: str) -> Engine:
    """Return a synchronous engine for the database, without a pool. The caller disposes of it."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, poolclass=NullPool, connect_args={"connect_timeout": 5})
    engine = create_engine(parsed.set(drivername="sqlite"), poolclass=NullPool)
    sqlite_connection(engine, _WAIT_S, waits_for_disk=True)
    return engine


def _require_known(revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseNewer(f"The database's tables have the revision {revision}, which this version does not know.")


def newest() -> str:
    """Return the newest revision of the tables, which this version of Clonos requires."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "no migrations"
    return head


def _config() -> Config:
    config = Config()
    directory = next(directory for directory in _DIRECTORIES if (directory / "env.py").exists())
    config.set_main_option("script_location", str(directory).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _connected(url: str) -> Iterator[tuple[Connection, Config]]:
    """Run all migrations in one transaction, also on SQLite: a failed migration changes nothing."""
    engine = engine_of(url)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield connection, _config()
    except OperationalError as error:
        raise DatabaseUnavailable(f"The database does not answer: {str(error.orig).splitlines()[0]}") from error
    except DatabaseError as error:
        raise DatabaseUnavailable(
            f"The database cannot be read: {str(error.orig).splitlines()[0]}.",
            kept="the database is unchanged.",
            hint="restore a backup: clonos db restore.",
        ) from error
    finally:
        engine.dispose()
