"""One database: its connections, transactions, and what to say when it is away.

A transaction either commits whole or raises. Waiting is bounded everywhere: for a connection, a lock, a statement, a
dead peer. A database that restarts costs the transactions under way a `StoreAway`; the next one finds it again.
"""

from __future__ import annotations

import asyncio
import select
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from clonos.errors import SpecError, StateConflict, StoreAway
from clonos_api.store import closing
from clonos_api.store.clock import clock, now
from clonos_api.store.notifier import Notifier, wakes_somebody
from clonos_api.store.sqlite import Connections

__all__ = ["Actor", "Database", "clock", "now", "sqlite_connection"]

_CONNECT_S: Final = 2  # psycopg's least
_RETRY_S: Final = 0.1
_STATEMENT_MS: Final = 15_000
_LOCK_MS: Final = 5_000
# A replica that is stopped in the middle of a transaction (SIGSTOP, a sleeping laptop) must not hold its locks for
# longer: through the other replicas agents could not renew their leases, and would lose their hosts.
_IDLE_MS: Final = 2_000
_READ: Final = "clonos_read"
_NO_PARENT: Final = "23503"
# deadlock, lock not available, query cancelled (statement_timeout), too many connections, starting up or shutting down
_TRANSIENT: Final = frozenset(
    {"40P01", "40001", "55P03", "57014", "53300", "57P01", "57P02", "57P03", "25P03", "25P04"}
)


@dataclass(frozen=True)
class Actor:
    """Who asked for a write.

    Attributes:
        subject: Whose token it was.
        token: Id of the token; None for the local operator.
    """

    subject: str
    token: str | None = None


class Database:
    """The control plane's database.

    Args:
        url: ``sqlite+aiosqlite:///file`` or ``postgresql+psycopg://…``.
        pool_size: Connections that are kept and used at once; as many more for what agents tell, and one for the lease.
        wait_s: How long a transaction waits for a connection, and for a database that is away.

    Attributes:
        notifier: Told of each commit that wakes somebody.

    Raises:
        SpecError: Another kind of database.
    """

    def __init__(self, url: str, *, pool_size: int = 10, wait_s: float = 5.0) -> None:
        self.url = make_url(url)
        self.notifier = Notifier()
        self._wait_s = wait_s
        self._connections = Connections()
        if self.url.drivername == "sqlite+aiosqlite":
            self._engine = self._told = self._reserved = _sqlite_engine(self.url, pool_size, wait_s, self._connections)
        elif self.url.drivername == "postgresql+psycopg":
            self._engine = _postgresql_engine(self.url, pool_size, wait_s)
            self._told = _postgresql_engine(self.url, pool_size, wait_s, synchronous_commit="off")
            self._reserved = _postgresql_engine(self.url, 1, wait_s)
        else:
            raise SpecError(
                f"{self.url.drivername} is no database that the control plane can use.",
                hint="use sqlite+aiosqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.",
            )
        # SQLite has one writer: those of this process queue here, in turn, and not in its busy loop.
        self._writer = asyncio.Lock() if self.dialect == "sqlite" else None

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @asynccontextmanager
    async def transaction(
        self, *, by: Actor | None = None, reserved: bool = False, told: bool = False
    ) -> AsyncIterator[AsyncSession]:
        """A transaction that may write; it commits at the end, and rolls back if the body raises.

        Args:
            by: Who asks; writes that somebody asks for are then in the audit log.
            reserved: Use the connection that is kept for the leader's lease.
            told: It takes in what an agent tells, and will tell again if it is not known: do not wait for the disk, and
                use connections of their own, so that agents never keep users and the leader waiting. What is decided
                on it later is on the disk after it; events and new work, which others see at once, are waited for.

        Raises:
            StoreAway: The database does not answer; if that is at the commit, it may have been taken.
        """
        async with AsyncExitStack() as stack:
            if self._writer is not None:
                await _within(self._writer.acquire(), self._wait_s)
                stack.callback(self._writer.release)
            engine = self._reserved if reserved else self._told if told else self._engine
            session = await self._begin(engine, read=False)
            stack.push_async_callback(_quietly_closed, session)
            session.info[closing.ACTOR] = by
            with _translated():
                yield session
                await session.flush()
                await closing.close(session)
                if told and self.dialect == "postgresql" and wakes_somebody(session):
                    # Others would see a number that the server gives out again if it crashed now.
                    await session.execute(text("SET LOCAL synchronous_commit = on"))
                await session.commit()
        self.notifier.told(session.info)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A transaction that only reads.

        Raises:
            StoreAway: The database does not answer.
        """
        async with self._reading(self._engine) as session:
            yield session

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[AsyncSession]:
        """For what agents tell (`transaction`), on PostgreSQL: each statement commits by itself, and wakes nobody.

        Raises:
            StoreAway: The database does not answer.
        """
        async with self._reading(self._told) as session:
            yield session

    @asynccontextmanager
    async def _reading(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        session = await self._begin(engine, read=True)
        try:
            with _translated():
                yield session
        finally:
            await _quietly_closed(session)

    async def _begin(self, engine: AsyncEngine, *, read: bool) -> AsyncSession:
        """A session with a connection that answers; waits for one for so long as is allowed."""
        deadline = time.monotonic() + self._wait_s
        while True:
            session = AsyncSession(engine, expire_on_commit=False, autoflush=False)
            try:
                with _translated():
                    await session.connection(execution_options=self._options(read))
                return session
            except StoreAway:
                await _quietly_closed(session)
                if time.monotonic() + _RETRY_S >= deadline:
                    raise
            except BaseException:
                await _quietly_closed(session)
                raise
            await asyncio.sleep(_RETRY_S)

    def _options(self, read: bool) -> dict[str, Any]:
        # Statements of one transaction see what was committed before each of them, as those of none do: a BEGIN and a
        # ROLLBACK around what only reads would be two more round trips.
        alone = read and self.dialect == "postgresql"
        return {_READ: read, **({"isolation_level": "AUTOCOMMIT"} if alone else {})}

    async def close(self) -> None:
        """Close all connections."""
        for engine in (self._engine, self._told, self._reserved):
            await engine.dispose()
        await self._connections.over(self._wait_s)


async def _within(awaitable: Any, seconds: float) -> None:
    # Not `asyncio.wait_for`, which in Python 3.11 forgets that it was cancelled if that comes in the same moment.
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError as error:
        raise StoreAway(f"The database was busy for {seconds:g} s.") from error


async def _quietly_closed(session: AsyncSession) -> None:
    try:
        # To its end also if the request is cancelled meanwhile: the connection goes back whole.
        await asyncio.shield(session.close())
    except (DBAPIError, OSError, sqlite3.Error):
        await session.invalidate()  # the connection is gone: there is nothing to roll back


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DataError, OverflowError, UnicodeEncodeError) as error:
        why = str(getattr(error, "orig", error)).splitlines()[0]
        raise SpecError(f"A value cannot be kept: {why}.", kept="nothing was changed.", hint="mend it.") from error
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_PARENT and "FOREIGN KEY" not in str(error.orig):
            raise
        raise StateConflict("Something that this needs was deleted meanwhile.") from error
    except DBAPIError as error:
        if not _is_away(error):
            raise
        raise StoreAway(f"The database does not answer: {str(error.orig).splitlines()[0]}") from error
    except PoolTimeout as error:
        raise StoreAway("All connections to the database are in use.") from error


def _is_away(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state in _TRANSIENT:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return isinstance(error.orig, sqlite3.OperationalError) and _sqlite_away(error.orig)
    return isinstance(error, OperationalError | InterfaceError | InternalError) and state is None


def _sqlite_away(error: sqlite3.OperationalError) -> bool:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def _postgresql_engine(url: URL, pool_size: int, wait_s: float, **more: str) -> AsyncEngine:
    options = {
        **more,
        "statement_timeout": _STATEMENT_MS,
        "lock_timeout": _LOCK_MS,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "timezone": "UTC",
    }
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=wait_s,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": _CONNECT_S,
            "tcp_user_timeout": _STATEMENT_MS,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
            "application_name": "clonos",
        },
    )
    event.listen(engine.sync_engine, "checkout", _checked_out)
    return engine


def _checked_out(connection: Any, _record: Any, _proxy: Any) -> None:
    """Have the pool connect anew if the server has closed a connection meanwhile.

    Nothing is to be read from one that waits, unless the server ended it or said that it will; so that is looked at,
    and the server is not asked each time.
    """
    waiting = connection.driver_connection
    readable = select.poll()
    if not waiting.closed:
        readable.register(waiting.fileno(), select.POLLIN)
    if waiting.closed or readable.poll(0):
        raise DisconnectionError("The server has ended the connection.")


def _sqlite_engine(url: URL, pool_size: int, wait_s: float, connections: Connections) -> AsyncEngine:
    if not url.database or url.database == ":memory:":
        raise SpecError("SQLite needs a file.", hint="use sqlite+aiosqlite:///FILE.")
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=wait_s,
        connect_args={"async_creator_fn": connections},
    )
    sqlite_connection(engine.sync_engine, wait_s)
    return engine


def sqlite_connection(engine: Any, wait_s: float) -> None:
    """Have each connection of a (synchronous) engine as the store needs it."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: the driver says it too late
        cursor = connection.cursor()
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"busy_timeout = {int(wait_s * 1000)}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        # A read that turns into a write fails at once if somebody wrote in between, whatever busy_timeout says.
        read = connection.get_execution_options().get(_READ, False)
        connection.exec_driver_sql("BEGIN" if read else "BEGIN IMMEDIATE")
