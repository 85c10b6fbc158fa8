"""The databases that the sink knows: how to connect, and their statements."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pyarrow as pa
from sqlalchemy import Connection as Session
from sqlalchemy import Engine, Inspector, create_engine, event, make_url, text

from clonos.jobs.spec import Connection
from clonos_sinks.sql.rows import array_literal, natives

_BUSY_S: Final = 2
_ROWS: Final = 10_000  # of one statement
# A dead server or a cut network shows within half a minute, and no transaction waits or idles longer than this.
_POSTGRES: Final[dict[str, object]] = {
    "application_name": "clonos",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": "-c lock_timeout=10s -c idle_in_transaction_session_timeout=60s",
}


class Statements:
    """The statements for one table.

    Args:
        engine: The database.
        table: The table's name, quoted.
        types: Name of each column of the table → its type in casts.
        key: The key; empty: rows are inserted.
        version: The column with the version of a row.
    """

    def __init__(
        self, engine: Engine, table: str, types: dict[str, str], key: Sequence[str], version: str | None
    ) -> None:
        self.quote = engine.dialect.identifier_preparer.quote
        self.table = table
        self.types = types
        self.key = key
        self.version = version

    def names(self, columns: Sequence[str]) -> str:
        """Return the quoted names of columns."""
        return ", ".join(map(self.quote, columns))

    def on_conflict(self, columns: Sequence[str]) -> str:
        """Return the clause that replaces a row with an equal key."""
        if not self.key:
            return ""
        changed = [column for column in columns if column not in self.key]
        clause = f" ON CONFLICT ({self.names(self.key)}) DO "
        if not changed:
            return f"{clause}NOTHING"
        values = ", ".join(f"{self.quote(column)} = excluded.{self.quote(column)}" for column in changed)
        return f"{clause}UPDATE SET {values}{self.newer(' WHERE', 'excluded')}"

    def newer(self, word: str, source: str) -> str:
        """Return the condition that a row of `source` is newer than the table's."""
        if self.version is None:
            return ""
        present = f"{self.table}.{self.quote(self.version)}"
        newest = self.cast(f"{source}.{self.quote(self.version)}", self.version) if source != "excluded" else ""
        return f"{word} ({present} IS NULL OR {present} < {newest or f'excluded.{self.quote(self.version)}'})"

    def cast(self, value: str, column: str) -> str:
        """Return a value with the type of a column."""
        return f"CAST({value} AS {self.types[column]})" if self.types[column] else value


class Database(ABC):
    """One kind of database."""

    is_file: ClassVar[bool]
    """Whether a transaction locks the whole database, and columns take values of any type."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def single(self, session: Session) -> Iterator[Session]:
        """Return another session than `session`, each of whose statements is a transaction of its own.

        With a database in a file, `session` itself: its transaction has the lock of the file.
        """
        if self.is_file:
            yield session
            return
        with self.engine.connect() as single:
            yield single.execution_options(isolation_level="AUTOCOMMIT")

    @abstractmethod
    def write(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Insert rows, or replace those with an equal key."""

    @abstractmethod
    def delete(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Delete the rows of the table that have a key of `rows`."""

    def cast_types(self, session: Session, inspector: Inspector, name: str, schema: str | None) -> dict[str, str]:
        """Return the types of the table's columns in casts; empty text: no cast."""
        return {column["name"]: "" for column in inspector.get_columns(name, schema)}

    def missing_privileges(self, session: Session, table: str, needed: Sequence[str]) -> list[str]:
        """Return those of the privileges that the user lacks."""
        return []

    def end_holders(self, lanes: str, lane: dict[str, Any]) -> None:  # noqa: B027  # nobody can end those of a file
        """End the sessions whose transactions hold a lane's row: they are of an owner that was superseded."""


class Postgres(Database):
    """PostgreSQL: a statement has an array of texts for each column, and not an execution for each row."""

    is_file = False

    def write(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Insert the rows."""
        columns = rows.column_names
        values = ", ".join(statements.cast(f"r.{statements.quote(column)}", column) for column in columns)
        target = f"{statements.table} ({statements.names(columns)})"
        conflict = statements.on_conflict(columns)
        _run(session, f"INSERT INTO {target} SELECT {values} FROM ", conflict, statements, rows)  # noqa: S608

    def delete(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Delete the keys."""
        table, quote = statements.table, statements.quote
        same = " AND ".join(
            f"{table}.{quote(column)} = {statements.cast(f'r.{quote(column)}', column)}" for column in statements.key
        )
        where = f" WHERE {same}{statements.newer(' AND', 'r')}"
        _run(session, f"DELETE FROM {table} USING ", where, statements, rows)  # noqa: S608

    def cast_types(self, session: Session, inspector: Inspector, name: str, schema: str | None) -> dict[str, str]:
        """Return the types without lengths: a cast to ``varchar(5)`` would cut a value that the column refuses."""
        quote = self.engine.dialect.identifier_preparer.quote
        table = f"{quote(schema)}.{quote(name)}" if schema else quote(name)
        types = text(
            "SELECT a.attname, quote_ident(n.nspname) || '.' || quote_ident(t.typname) FROM pg_attribute a"
            " JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace"
            " WHERE a.attrelid = CAST(:table AS regclass) AND a.attnum > 0 AND NOT a.attisdropped"
        )
        return {str(column): str(kind) for column, kind in session.execute(types, {"table": table})}

    def missing_privileges(self, session: Session, table: str, needed: Sequence[str]) -> list[str]:
        """Ask the server for each privilege."""
        asked = text("SELECT has_table_privilege(:table, :privilege)")
        return [name for name in needed if not session.scalar(asked, {"table": table, "privilege": name})]

    def end_holders(self, lanes: str, lane: dict[str, Any]) -> None:
        """Terminate the backends; the user may do so to its own."""
        same = " AND ".join(f"l.{column} = :{column}" for column in lane)
        ended = (
            f"SELECT pg_terminate_backend(k.pid) FROM {lanes} l JOIN pg_locks k ON k.transactionid = l.xmax"  # noqa: S608
            f" WHERE k.locktype = 'transactionid' AND k.granted AND k.pid <> pg_backend_pid() AND {same}"
        )
        with self.engine.begin() as session:
            session.execute(text(ended), lane)


class Sqlite(Database):
    """SQLite: one writer at a time. A transaction takes the lock of the whole file when it begins."""

    is_file = True

    def write(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Insert the rows."""
        columns = rows.column_names
        marks = ", ".join("?" * len(columns))
        target = f"{statements.table} ({statements.names(columns)})"
        conflict = statements.on_conflict(columns)
        session.exec_driver_sql(f"INSERT INTO {target} VALUES ({marks}){conflict}", _tuples(rows))  # noqa: S608

    def delete(self, session: Session, statements: Statements, rows: pa.Table) -> None:
        """Delete the keys."""
        table = statements.table
        same = " AND ".join(f"{statements.quote(column)} = ?" for column in statements.key)
        if (version := statements.version) is not None:
            name = statements.quote(version)
            same += f" AND ({name} IS NULL OR {name} < ?)"
        used = [*statements.key, *([version] if version is not None else [])]
        session.exec_driver_sql(f"DELETE FROM {table} WHERE {same}", _tuples(rows.select(used)))  # noqa: S608


def _run(session: Session, before: str, after: str, statements: Statements, rows: pa.Table) -> None:
    """Execute a statement on chunks of the rows, which it has between `before` and `after` as ``r``."""
    arrays = ", ".join("%s::text[]" for _ in rows.column_names)
    source = f"unnest({arrays}) AS r ({statements.names(rows.column_names)})"
    for start in range(0, rows.num_rows, _ROWS):
        values = tuple(array_literal(column) for column in rows.slice(start, _ROWS).columns)
        session.exec_driver_sql(f"{before}{source}{after}", values)


def _tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*map(natives, rows.columns), strict=True))


@functools.cache
def _engine(url: str, password: str) -> Engine:
    address = make_url(url)
    if address.drivername == "sqlite":
        engine = create_engine(address, connect_args={"timeout": _BUSY_S})
        event.listen(engine, "connect", _begin_by_hand)
        event.listen(engine, "begin", lambda session: session.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    arguments = {name: value for name, value in _POSTGRES.items() if name not in address.query}
    if password:
        arguments["password"] = password
    return create_engine(address.set(drivername="postgresql+psycopg"), connect_args=arguments)


def _begin_by_hand(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def database_of(connection: Connection) -> Database:
    """Return the database of a connection; a process has one pool of sessions for each database."""
    engine = _engine(connection.url, connection.password)
    return Sqlite(engine) if engine.dialect.name == "sqlite" else Postgres(engine)
