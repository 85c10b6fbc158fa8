"""The control plane's database: connections, transactions and errors.

A transaction either commits completely or raises. Every wait has a timeout: for a connection, a lock, a statement and a
dead peer. If the database restarts, open transactions raise `DatabaseUnavailable`; the next transaction reconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import select
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Executable, event, func, literal, text, union_all
from sqlalchemy import select as select_rows
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

from clonos.errors import DatabaseUnavailable, SpecError, StateConflict
from clonos_api.store.db import commit_hooks
from clonos_api.store.db.notifier import EVENTS, Notifier, has_notifications
from clonos_api.store.db.sqlite import Connections, Disk, Statements
from clonos_api.store.tables import EventRow, HostRow, table_of

_CONNECT_S: Final = 2  # the smallest value that psycopg accepts
_RETRY_S: Final = 0.1
_STATEMENT_MS: Final = 15_000
_LOCK_MS: Final = 5_000
# Maximum time that a stopped replica (SIGSTOP, a sleeping laptop) holds its locks. Longer locks would keep agents from
# renewing their leases through the other replicas, and their hosts would be marked lost.
_IDLE_MS: Final = 2_000
_WATCH_S: Final = 0.25  # between two looks for commits of other replicas
_LISTEN_S: Final = 1.0  # the same on PostgreSQL, which reports them at once; lost commits are not reported
_CHANNEL: Final = "clonos_commits"
_EVENTS, _HOSTS = table_of(EventRow).c, table_of(HostRow).c
_REVISIONS: Final = union_all(
    select_rows(literal(EVENTS), func.coalesce(func.max(_EVENTS.seq), 0)), select_rows(_HOSTS.id, _HOSTS.revision)
)
# A commit of an agent that waited for no disk could lose an event number that readers have seen.
_NOTIFY: Final = text("SELECT set_config('synchronous_commit', 'on', true), pg_notify(:channel, :by)")
_FLUSH_S: Final = 1.0
_FAULT_PAUSE_S: Final = 10.0
_REFUSAL_S: Final = 10.0
_READ: Final = "clonos_read"
_NO_PARENT: Final = "23503"
# deadlock, lock not available, query cancelled (statement_timeout), too many connections, starting up or shutting down
_TRANSIENT: Final = frozenset(
    {"40P01", "40001", "55P03", "57014", "53300", "57P01", "57P02", "57P03", "25P03", "25P04"}
)
_DISK_FULL: Final = "53100"
_LEAST_FREE_BYTES: Final = 50_000_000  # SQLite's log can grow by this in one transaction
_BACKGROUND: Final = 100


@dataclass(frozen=True)
class Actor:
    """The user or agent that requested a write, for the audit log."""

    subject: str
    token: str | None = None  # id of the token; None for the local operator


class Origin(Enum):
    """The origin of a transaction. It selects the connection, and what a commit waits for."""

    USER = "user"  # users, and all that is not below
    AGENT = "agent"  # reports of agents, which they send again if they are lost, and reads of their work
    LEADER = "leader"  # decisions, which the leader takes again if they are lost
    LEASE = "lease"  # the leader's lease


class Database:
    """The control plane's database.

    PostgreSQL ends the transaction of a stopped client after 2 s (`_IDLE_MS`). SQLite does not: while a process is
    stopped in the midst of a write, other writers get `DatabaseUnavailable`. Several replicas on SQLite are for tests.

    On SQLite a takeover changes threads and waits for the disk as little as possible, because both take long on a busy
    machine:

    - Only commits of users (`Origin.USER`), and those after `commit_hooks.wait_for_disk`, wait until they are on the
      disk. Others survive the end of this process, and `write_to_disk` writes them soon. If the machine fails, the
      newest of them may be lost; the service then skips their numbers (`skip_lost_numbers`).
    - Statements of other origins run in the event loop, if they are short (`Connection`).

    Args:
        url: ``sqlite+aiosqlite:///file`` or ``postgresql+psycopg://…``.
        pool_size: Connections for requests. On PostgreSQL agents have a second pool of this size, and the lease has a
            connection of its own.
        wait_s: Timeout in seconds for a connection, and for an unavailable database.

    Raises:
        SpecError: The URL names another kind of database.
    """

    def __init__(self, url: str, *, pool_size: int = 10, wait_s: float = 5.0) -> None:
        self.url = make_url(url)
        self.notifier = Notifier()  # wakes the waiters of this process after each commit
        self._wait_s = wait_s
        self._connections = Connections()
        self._disk: Disk | None = None  # of SQLite
        self._statements = Statements(Path(self.url.database or ""))  # of SQLite
        if self.url.drivername == "sqlite+aiosqlite":
            self._engine = _sqlite_engine(self.url, pool_size, wait_s, self._connections)
            self._disk = Disk(Path(self.url.database or ""))
            prompt = _sqlite_engine(self.url, pool_size, wait_s, self._connections, prompt=True)
            self._engines = dict.fromkeys(Origin, prompt) | {Origin.USER: self._engine}
        elif self.url.drivername == "postgresql+psycopg":
            self._engine = _postgresql_engine(self.url, pool_size, wait_s)
            self._engines = {
                Origin.USER: self._engine,
                Origin.AGENT: _postgresql_engine(self.url, pool_size, wait_s, synchronous_commit="off"),
                Origin.LEADER: self._engine,
                Origin.LEASE: _postgresql_engine(self.url, 1, wait_s),
            }
        else:
            raise SpecError(
                f"{self.url.drivername} is not a supported database.",
                hint="use sqlite+aiosqlite:///FILE or postgresql+psycopg://USER@HOST/NAME.",
            )
        # SQLite has one writer. The writers of this process queue here, in order, instead of in SQLite's busy loop.
        self._writer = asyncio.Lock() if self.dialect == "sqlite" else None
        self._name = secrets.token_hex(8)  # of this replica, in notifications
        self._closing: set[asyncio.Task[None]] = set()
        self._background: dict[str, asyncio.Task[None]] = {}
        self._refusal: tuple[float, str] | None = None  # when the disk was full, and the reason

    @property
    def dialect(self) -> str:
        """The kind of the database: ``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @asynccontextmanager
    async def transaction(
        self, *, by: Actor | None = None, origin: Origin = Origin.USER
    ) -> AsyncIterator[AsyncSession]:
        """Provide a transaction that may write; it commits at the end of the body, and rolls back if the body raises.

        Args:
            by: The requester; the store then adds an audit entry for each change.
            origin: Where the write is from. On PostgreSQL agents have a pool of their own, so that they never delay
                users or the leader, and their writes commit asynchronously (`synchronous_commit=off`). A transaction
                that adds events or changes work commits synchronously, because others see both at once. The lease has a
                connection of its own.

        Raises:
            DatabaseUnavailable: The database is unavailable. If that happens at the commit, the outcome is unknown.
        """
        async with AsyncExitStack() as stack:
            if self._writer is not None:
                await _within(self._writer.acquire(), self._wait_s)
                stack.callback(self._writer.release)
            session = await self._begin(self._engines[origin], read=False)
            stack.push_async_callback(self._close_session, session)
            session.info[commit_hooks.ACTOR] = by
            with self._watching_disk(), _translated():
                yield session
                await session.flush()
                await commit_hooks.run_hooks(session)
                if self.dialect == "postgresql" and has_notifications(session):
                    await session.execute(_NOTIFY, {"channel": _CHANNEL, "by": self._name})
                try:
                    await session.commit()
                finally:
                    if self._disk is not None:
                        self._disk.committed()  # perhaps, if it was cancelled
        try:
            # The next writer does not wait for this.
            if self._disk is not None and (
                origin is Origin.USER or session.info.get(commit_hooks.WAITS_FOR_DISK, False)
            ):
                await self._flush(self._disk)
        finally:
            self.notifier.committed(session.info)

    def soon(self, name: str, work: Callable[[AsyncSession], Awaitable[object]]) -> None:
        """Run `work` in a transaction of its own, in the background. Nothing waits for it, and it may be lost.

        For notes that no request may fail for. A `name` that is still in progress is not started again.
        """
        if name in self._background or len(self._background) >= _BACKGROUND:
            return

        async def run() -> None:
            with contextlib.suppress(DatabaseUnavailable):
                async with self.transaction() as session:
                    await work(session)

        task = self._background[name] = asyncio.create_task(run(), name=f"clonos-{name}")
        task.add_done_callback(lambda _: self._background.pop(name, None))

    def free_bytes(self) -> int | None:
        """Free bytes of the disk with an SQLite file; None: the database is a server."""
        if self._disk is None:
            return None
        return shutil.disk_usage(Path(self.url.database or "").resolve().parent).free

    def disk_trouble(self) -> str:
        """Return the reason why the database's disk accepts no or few writes; empty: it accepts them.

        A refused write counts for `_REFUSAL_S` seconds: a replica that is not ready gets no requests, so it may write
        nothing more, and would never be ready again.
        """
        if self._refusal is not None and time.monotonic() - self._refusal[0] < _REFUSAL_S:
            return self._refusal[1]
        free = self.free_bytes()
        return "" if free is None or free >= _LEAST_FREE_BYTES else f"The database's disk has {free} free bytes."

    @contextmanager
    def _watching_disk(self) -> Iterator[None]:
        """Notice in a write transaction whether the disk is full."""
        try:
            yield
        except DatabaseUnavailable as error:
            if isinstance(error.__cause__, DBAPIError) and _is_full(error.__cause__):
                self._refusal = time.monotonic(), error.what
            raise
        self._refusal = None

    async def _flush(self, disk: Disk) -> None:
        try:
            await _within(disk.flush(), _STATEMENT_MS / 1000)
        except (OSError, sqlite3.Error) as error:
            raise DatabaseUnavailable(f"The disk of the database does not accept data: {error}.") from error

    async def write_to_disk(self) -> None:
        """On SQLite: write commits that did not wait to the disk every `_FLUSH_S` seconds, until cancelled."""
        while self._disk is not None:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self._flush(self._disk)
            except DatabaseUnavailable:
                await asyncio.sleep(_FAULT_PAUSE_S)  # this task is logged, and started again
                raise

    @asynccontextmanager
    async def reading(self, *, origin: Origin = Origin.USER) -> AsyncIterator[AsyncSession]:
        """Provide a transaction that only reads, inside the context. `origin` selects its connection."""
        async with self._reading(self._engines[origin]) as session:
            yield session

    async def execute(
        self, statement: Executable, values: Mapping[str, Any] | None = None, *, origin: Origin
    ) -> Sequence[Any]:
        """Execute a frequent statement by itself, and return its rows. It commits at once, and wakes no waiter.

        Its `values` and results are numbers and texts.
        """
        if self._disk is None:
            async with self._reading(self._engines[origin]) as session:
                return (await session.execute(statement, values)).all()
        try:
            return await self._statements.execute(statement, values or {})
        except sqlite3.Error:  # a transaction waits for another writer, or reports what is wrong
            async with self.transaction(origin=origin) as session:
                return (await session.execute(statement, values)).all()
        finally:
            self._disk.committed()

    @asynccontextmanager
    async def _reading(self, engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
        session = await self._begin(engine, read=True)
        try:
            with _translated():
                yield session
        finally:
            await self._close_session(session)

    async def _begin(self, engine: AsyncEngine, *, read: bool) -> AsyncSession:
        """Open a session with a working connection; retries until the timeout."""
        deadline = time.monotonic() + self._wait_s
        while True:
            session = AsyncSession(engine, expire_on_commit=False, autoflush=False)
            try:
                with _translated():
                    await session.connection(execution_options=self._options(read))
                return session
            except DatabaseUnavailable:
                await self._close_session(session)
                if time.monotonic() + _RETRY_S >= deadline:
                    raise
            except BaseException:
                await self._close_session(session)
                raise
            await asyncio.sleep(_RETRY_S)

    def _options(self, read: bool) -> dict[str, Any]:
        # With READ COMMITTED each statement sees the newest commits, with or without a transaction. Autocommit saves
        # the round trips for BEGIN and ROLLBACK.
        autocommit = read and self.dialect == "postgresql"
        return {_READ: read, **({"isolation_level": "AUTOCOMMIT"} if autocommit else {})}

    async def watch_commits(self) -> None:
        """Wake the waiters of this process after the commits of other replicas, until cancelled."""
        while True:
            with contextlib.suppress(DatabaseUnavailable):
                if self.dialect == "postgresql":
                    await self._listen()
                await self._read_revisions()
            await asyncio.sleep(_WATCH_S)

    async def _listen(self) -> None:
        """Read the revisions at each commit of another replica, on a connection of its own, until it is lost."""
        _, address = self._engine.dialect.create_connect_args(self.url)
        try:
            connecting = psycopg.AsyncConnection.connect(**address, **_connect_args(), autocommit=True)
            async with await connecting as connection:
                await connection.execute(f"LISTEN {_CHANNEL}")
                while True:
                    await self._read_revisions()
                    async for notification in connection.notifies(timeout=_LISTEN_S):
                        if notification.payload != self._name:
                            break
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"The database does not answer: {error}") from error

    async def _read_revisions(self) -> None:
        before = self.notifier.seen()
        current: dict[str, int] = dict(await self.execute(_REVISIONS, origin=Origin.LEADER))
        self.notifier.correct(before, current)

    async def _close_session(self, session: AsyncSession) -> None:
        """Close a session completely even if the caller is cancelled, so that its connection returns to the pool."""
        closing = asyncio.create_task(_closed(session))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def close(self) -> None:
        """Close all connections, after the sessions of cancelled transactions."""
        for task in self._background.values():
            task.cancel()
        await asyncio.gather(*self._background.values(), return_exceptions=True)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._wait_s)
        for engine in set(self._engines.values()):
            await engine.dispose()
        await self._connections.wait_closed(self._wait_s)
        await self._statements.close()
        if self._disk is not None:
            with contextlib.suppress(DatabaseUnavailable):
                await self._flush(self._disk)
            self._disk.close()


async def _within(awaitable: Any, seconds: float) -> None:
    # Not `asyncio.wait_for`: in Python 3.11 it loses a cancellation that arrives when the awaitable completes.
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError as error:
        raise DatabaseUnavailable(f"The database was busy for {seconds:g} s.") from error


async def _closed(session: AsyncSession) -> None:
    try:
        await session.close()
    except (DBAPIError, OSError, sqlite3.Error):
        await session.invalidate()  # the connection is lost: there is nothing to roll back


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DataError, OverflowError, UnicodeEncodeError) as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise SpecError(f"A value cannot be stored: {reason}.", kept="nothing was changed.", hint="fix it.") from error
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_PARENT and "FOREIGN KEY" not in str(error.orig):
            raise
        raise StateConflict("A resource that this request needs was deleted.") from error
    except DBAPIError as error:
        if _is_full(error):
            raise DatabaseUnavailable(
                "The disk of the database is full.", hint="free space on it; requests succeed again at once."
            ) from error
        if not _is_unavailable(error):
            raise
        raise DatabaseUnavailable(f"The database does not answer: {str(error.orig).splitlines()[0]}") from error
    except PoolTimeout as error:
        raise DatabaseUnavailable("All connections to the database are in use.") from error


def _is_unavailable(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state in _TRANSIENT:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return isinstance(error.orig, sqlite3.OperationalError) and _sqlite_unavailable(error.orig)
    return isinstance(error, OperationalError | InterfaceError | InternalError) and state is None


def _is_full(error: DBAPIError) -> bool:
    code = (getattr(error.orig, "sqlite_errorcode", None) or 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or getattr(error.orig, "sqlstate", None) == _DISK_FULL


def _sqlite_unavailable(error: sqlite3.OperationalError) -> bool:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def _connect_args(**more: str) -> dict[str, Any]:
    options = {
        **more,
        "statement_timeout": _STATEMENT_MS,
        "lock_timeout": _LOCK_MS,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "timezone": "UTC",
    }
    return {
        "connect_timeout": _CONNECT_S,
        "tcp_user_timeout": _STATEMENT_MS,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        "application_name": "clonos",
    }


def _postgresql_engine(url: URL, pool_size: int, wait_s: float, **more: str) -> AsyncEngine:
    engine = create_async_engine(
        url,
        json_deserializer=_json_text,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=wait_s,
        pool_recycle=1800,
        connect_args=_connect_args(**more),
    )
    event.listen(engine.sync_engine, "checkout", _checked_out)
    return engine


def _json_text(text: str | bytes) -> str | bytes:
    """JSON as it is stored: `columns.Json` parses it."""
    return text


def _checked_out(connection: Any, _record: Any, _proxy: Any) -> None:
    """Let the pool reconnect if the server has closed an idle connection.

    An idle connection is readable only after the server closed it or announced its shutdown. This check needs no round
    trip.
    """
    idle = connection.driver_connection
    readable = select.poll()
    if not idle.closed:
        readable.register(idle.fileno(), select.POLLIN)
    if idle.closed or readable.poll(0):
        raise DisconnectionError("The server has closed the connection.")


def _sqlite_engine(
    url: URL, pool_size: int, wait_s: float, connections: Connections, *, prompt: bool = False
) -> AsyncEngine:
    if not url.database or url.database == ":memory:":
        raise SpecError("SQLite needs a file.", hint="use sqlite+aiosqlite:///FILE.")
    engine = create_async_engine(
        url,
        json_deserializer=_json_text,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=wait_s,
        connect_args={"async_creator_fn": connections.prompt if prompt else connections},
    )
    sqlite_connection(engine.sync_engine, wait_s)
    return engine


def sqlite_connection(engine: Any, wait_s: float, *, waits_for_disk: bool = False) -> None:
    """Configure each new connection of a synchronous SQLite engine for the store.

    Args:
        engine: The engine.
        wait_s: Limit of waits for locks, in seconds.
        waits_for_disk: Whether SQLite's commits wait until they are on the disk. `Disk` does that otherwise.
    """

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver sends BEGIN too late: `_begun` sends it
        cursor = connection.cursor()
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {'FULL' if waits_for_disk else 'NORMAL'}",
            "foreign_keys = ON",
            f"busy_timeout = {int(wait_s * 1000)}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        # SQLite rejects a read transaction that begins to write after another writer, regardless of busy_timeout.
        read = connection.get_execution_options().get(_READ, False)
        connection.exec_driver_sql("BEGIN" if read else "BEGIN IMMEDIATE")
