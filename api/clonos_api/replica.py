"""The state that the routes and background tasks of one replica share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final

import structlog
from fastapi import Depends, HTTPException
from prometheus_client import CollectorRegistry
from starlette.requests import HTTPConnection

from clonos.errors import DatabaseUnavailable, TooManyRequests, Unauthenticated
from clonos.private_folders import create_private
from clonos.resources.service import Event, Role
from clonos_api.admission.inspection import Inspector
from clonos_api.auth import Principal
from clonos_api.auth.bootstrap import bootstrap
from clonos_api.auth.identity_provider import IdentityProvider
from clonos_api.auth.known_agents import KnownAgents
from clonos_api.auth.rates import Buckets
from clonos_api.fleet import Boards
from clonos_api.reconcile import loop
from clonos_api.settings import ApiSettings
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.store.db.numbers import skip_lost_numbers
from clonos_api.store.hosts import Liveness
from clonos_api.streams.feed import EventFeed, LogWatch, retry_until_available
from clonos_api.streams.open_requests import OpenRequest, OpenRequests
from clonos_api.streams.push_interval import PushInterval

_log = structlog.get_logger("clonos.api")
_CHECK_EVERY_S: Final = 5.0
_RESTART_AFTER_S: Final = 1.0
_RECENT_S: Final = 60.0
_SIGN_INS_PER_S: Final = 0.5
_SIGN_INS_BURST: Final = 30

# Concurrent pushes of agents; heartbeats need the other connections (`Database.transaction`).
_PUSHES: Final = 2


@dataclass(frozen=True, slots=True)
class AcceptedHeartbeat:
    """The newest heartbeat of a host, if it reported nothing new."""

    identity: tuple[object, ...]  # an equal request is accepted too
    instance: str  # of the agent
    lives: Liveness
    working: int  # number of drivers
    runs: int | None  # `Beaten.runs`


@dataclass
class Replica:
    """The shared state of one replica: its database, event streams and background tasks."""

    settings: ApiSettings
    database: Database
    feed: EventFeed  # new events, for event streams
    log_watch: LogWatch  # wakes streams of logs when their job's log grows
    open_requests: OpenRequests  # streams and long polls, which end when their token is revoked
    known_agents: KnownAgents  # cache of agents' tokens
    push_interval: PushInterval  # interval of agents' pushes
    boards: Boards  # the state of all jobs
    identity_provider: IdentityProvider | None = None  # of the dashboard's sign-in; None: it is not configured
    # requests of an address that make this service connect to the identity provider
    sign_ins: Buckets = field(default_factory=lambda: Buckets(rate=_SIGN_INS_PER_S, burst=_SIGN_INS_BURST))
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)  # metrics of this process
    inspector: Inspector = field(default_factory=Inspector)  # analyses uploaded code
    streams: Counter[str | None] = field(default_factory=Counter)  # token → number of its open event streams
    heartbeats: dict[str, AcceptedHeartbeat] = field(default_factory=dict)  # by host
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # name → background task
    schema_trouble: str = ""  # reason why the database's tables cannot be used; empty if they can
    health_check: asyncio.Task[tuple[str, bool, bool]] | None = None  # of the database, for all requests of one moment
    waits: set[asyncio.Task[int]] = field(default_factory=set)  # the long polls in progress
    ending: bool = False  # whether the service is stopping
    at_end: list[Callable[[], object]] = field(default_factory=list)  # called when the service stops
    # limits concurrent pushes, which leaves connections for heartbeats
    pushing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PUSHES))
    _later: set[asyncio.Task[None]] = field(default_factory=set)
    _failures: dict[str, tuple[float, str]] = field(default_factory=dict)
    _created_at: float = field(default_factory=time.monotonic)
    _prepared: bool = False

    @classmethod
    def of(cls, settings: ApiSettings) -> Replica:
        """Create a replica; start nothing."""
        database = Database(settings.database)
        open_requests, known = OpenRequests(), KnownAgents()

        def on_event(event: Event) -> None:
            open_requests.on_event(event)
            known.on_event(event)

        return cls(
            settings=settings,
            database=database,
            feed=EventFeed(database, on_event=on_event),
            log_watch=LogWatch(database),
            open_requests=open_requests,
            known_agents=known,
            push_interval=PushInterval(settings.host_lease_s),
            boards=Boards(database),
            identity_provider=IdentityProvider(settings.oidc) if settings.oidc is not None else None,
        )

    async def prepare(self) -> None:
        """Upgrades the tables of an embedded (SQLite) database, and checks that the tables have the version of
        this service. Once: a second call returns at once.

        Raises:
            ClonosError: An embedded database has other tables, is damaged or cannot be opened.
        """
        if self._prepared:
            return
        if self.database.dialect == "sqlite":
            create_private(self.settings.home)
            await asyncio.to_thread(schema.upgrade, self.settings.database)
            async with self.database.transaction() as session:
                await (await session.connection()).run_sync(skip_lost_numbers)
        await self._check_schema()
        self._prepared = True

    async def watch_schema(self) -> None:
        """Check the version of the database's tables repeatedly, until it is the version of this service."""
        while self.schema_trouble:
            await asyncio.sleep(_CHECK_EVERY_S)
            await self._check_schema()

    async def _check_schema(self) -> None:
        try:
            has, needs = await asyncio.to_thread(schema.current, self.settings.database), schema.newest()
            if has != needs:
                raise DatabaseUnavailable(
                    f"The tables are of version {has or 'none'}, not {needs}: run clonos db upgrade."
                )
            if self.settings.auth and await bootstrap(self.database, self.settings.admin_token_file):
                _log.info("Created the first token", file=str(self.settings.admin_token_file))
        except DatabaseUnavailable as error:
            if error.what != self.schema_trouble:
                _log.error("The database cannot be used", why=error.what)
            self.schema_trouble = error.what
        else:
            self.schema_trouble = ""

    async def reconcile(self) -> None:
        """Run the reconciler while this replica is the leader, until cancelled."""
        await loop.run(self.database, self.settings)

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` as the background task `name`; restart it after an unexpected failure."""

        async def run() -> None:
            while True:
                try:
                    return await work()
                except Exception as error:
                    _log.exception("A background task failed and restarts", part=name)
                    self._failures[name] = (time.monotonic(), f"{type(error).__name__} (see the log)")
                    await asyncio.sleep(_RESTART_AFTER_S)

        self.tasks[name] = asyncio.create_task(run(), name=f"clonos-{name}")

    def later(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in the background as soon as the database is available."""
        task = asyncio.create_task(retry_until_available(work))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    @property
    def age_s(self) -> float:
        """Seconds since the replica was created."""
        return time.monotonic() - self._created_at

    def failing(self) -> dict[str, str]:
        """Return the background tasks that failed within the last minute, with the reason."""
        since = time.monotonic() - _RECENT_S
        return {name: why for name, (at, why) in self._failures.items() if at > since}

    def end_waits(self) -> None:
        """Stop the service: end streams, answer long polls and cancel background tasks."""
        self.ending = True
        self.feed.close()
        self.log_watch.close()
        for callback in self.at_end:
            callback()
        for wait in self.waits:
            wait.cancel()
        # The leader releases its lease while connections end.
        for task in (*self.tasks.values(), *self._later):
            task.cancel()

    async def wait_for_work(self, caller: Principal, host: str, after: int, timeout_s: float) -> None:
        """Wait until the work of `host` (id) has another revision than `after`, at most `timeout_s` seconds.

        It ends earlier when the service stops, or with `Unauthenticated` when the token of `caller` is revoked.
        """
        if self.ending or timeout_s <= 0:
            return
        wait = asyncio.create_task(self.database.notifier.wait_work(host, after, timeout_s))
        self.waits.add(wait)
        with self.open_requests.opened(caller.token, caller.expires_at, timeout_s, wait.cancel) as request:
            try:
                await asyncio.wait((wait,))
            finally:
                self.waits.discard(wait)
                wait.cancel()
        if request.revoked:
            raise Unauthenticated("The token is not valid.")

    @contextmanager
    def stream(self, caller: Principal, wake: Callable[[], object]) -> Iterator[OpenRequest]:
        """Register an open event stream of `caller` inside the context.

        `wake` is called when the stream has to check whether it must end, for example because its token is revoked.
        """
        self.streams[caller.token] += 1
        try:
            with self.open_requests.opened(
                caller.token, caller.expires_at, self.settings.limits.stream_s, wake
            ) as request:
                yield request
        finally:
            self.streams[caller.token] -= 1
            if not self.streams[caller.token]:
                del self.streams[caller.token]

    def check_streams(self, caller: Principal) -> None:
        """Refuses a new event stream if too many are open: of the caller's token (429), or of all callers (503)."""
        limits, opened = self.settings.limits, self.streams.total()
        if caller.token is not None and self.streams[caller.token] >= limits.streams_per_token:
            raise TooManyRequests(
                f"This token has {self.streams[caller.token]} open streams.", hint="close one of them."
            )
        reserved = 0 if caller.may(Role.ADMIN) else limits.streams // 20
        if opened >= limits.streams - reserved:
            raise HTTPException(503, f"Too many open streams ({opened}).", {"Retry-After": "5"})


def replica_of(connection: HTTPConnection) -> Replica:
    """Return the replica that received a request, from the state of the application."""
    replica: Replica = connection.app.state.replica
    return replica


# Async on purpose: FastAPI runs sync dependencies in a thread pool, and the thread hop costs more than the request
# under load.
async def _replica(connection: HTTPConnection) -> Replica:
    return replica_of(connection)


async def _store(connection: HTTPConnection) -> Database:
    return replica_of(connection).database


async def _settings(connection: HTTPConnection) -> ApiSettings:
    return replica_of(connection).settings


ReplicaDep = Annotated[Replica, Depends(_replica)]
DatabaseDep = Annotated[Database, Depends(_store)]
SettingsDep = Annotated[ApiSettings, Depends(_settings)]
