"""What one replica is made of, for its routes to use."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import structlog
from fastapi import Depends, HTTPException
from starlette.requests import HTTPConnection

from clonos.errors import StoreAway, Unauthenticated
from clonos.resources.service import Event
from clonos_api.auth import Principal
from clonos_api.auth.bootstrap import bootstrap
from clonos_api.auth.known_agents import KnownAgents
from clonos_api.feed import EventFeed, LogWatch, while_away
from clonos_api.holders import Held, Holders
from clonos_api.pace import Pace
from clonos_api.settings import ApiSettings
from clonos_api.store import schema
from clonos_api.store.database import Database
from clonos_api.store.notifier import Notifier

_log = structlog.get_logger("clonos.api")
_LOOK_S: Final = 5.0
_AGAIN_S: Final = 1.0
_RECENT_S: Final = 60.0

# Of the connections for what agents tell (`Database.transaction`).
_PUSHES: Final = 2


class Reconcile(Protocol):
    """Does the leader's work whenever this replica leads, until cancelled; then gives the lease up."""

    def __call__(self, database: Database, settings: ApiSettings, notifier: Notifier) -> Awaitable[None]:
        """Run."""


@dataclass
class Services:
    """One replica.

    Attributes:
        feed: The newest events.
        log_watch: Who follows which log.
        holders: Who holds a request open, under which token.
        known_agents: Agents whose tokens were looked up a moment ago.
        pace: How often agents push.
        streams: Server-sent event streams that are open.
        tasks: What runs besides the requests.
        schema_trouble: Why the database's tables cannot be used; empty: they can.
        waits: Long-polls that are open.
        ending: The service is about to end.
        at_end: Told so.
        pushing: As many pushes at once as leave connections and time for heartbeats.
    """

    settings: ApiSettings
    database: Database
    feed: EventFeed
    log_watch: LogWatch
    holders: Holders
    known_agents: KnownAgents
    pace: Pace
    streams: int = 0
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    schema_trouble: str = ""
    waits: set[asyncio.Task[int]] = field(default_factory=set)
    ending: bool = False
    at_end: list[Callable[[], object]] = field(default_factory=list)
    pushing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PUSHES))
    _later: set[asyncio.Task[None]] = field(default_factory=set)
    _failures: dict[str, tuple[float, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ApiSettings) -> Services:
        """The services that `settings` ask for; nothing runs yet."""
        database = Database(settings.database)
        holders, known = Holders(), KnownAgents()

        def hear(event: Event) -> None:
            holders.hear(event)
            known.hear(event)

        feed = EventFeed(database, hear=hear)
        return cls(settings, database, feed, LogWatch(database), holders, known, Pace(settings.agent_lease_s))

    async def prepare(self) -> None:
        """Bring an embedded database up to date, and see whether the tables can be used."""
        if self.database.dialect == "sqlite":
            self.settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            await asyncio.to_thread(schema.upgrade, self.settings.database)
        await self._look_at_schema()

    async def watch_schema(self) -> None:
        """Look whether the tables are those of this version, until they are."""
        while self.schema_trouble:
            await asyncio.sleep(_LOOK_S)
            await self._look_at_schema()

    async def _look_at_schema(self) -> None:
        try:
            has, needs = await asyncio.to_thread(schema.current, self.settings.database), schema.newest()
            if has != needs:
                raise StoreAway(f"The tables are of version {has or 'none'}, not {needs}: run clonos db upgrade.")
            if self.settings.auth and await bootstrap(self.database, self.settings.admin_token_file):
                _log.info("The first token is made", file=str(self.settings.admin_token_file))
        except StoreAway as error:
            if error.what != self.schema_trouble:
                _log.error("The database cannot be used", why=error.what)
            self.schema_trouble = error.what
        else:
            self.schema_trouble = ""

    async def reconcile(self) -> None:
        """Do the leader's work whenever this replica leads."""
        run: Reconcile = importlib.import_module("clonos_api.reconcile.service").run
        await run(self.database, self.settings, self.database.notifier)

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` besides the requests; again if it fails in a way that nobody expected."""

        async def run() -> None:
            while True:
                try:
                    return await work()
                except Exception as error:
                    _log.exception("A part of the service failed and is started again", part=name)
                    self._failures[name] = (time.monotonic(), f"{type(error).__name__} (see the log)")
                    await asyncio.sleep(_AGAIN_S)

        self.tasks[name] = asyncio.create_task(run(), name=f"clonos-{name}")

    def later(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` as soon as the database answers; nobody waits for it."""
        task = asyncio.create_task(while_away(work))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def failing(self) -> dict[str, str]:
        """What failed within the last minute, and how."""
        since = time.monotonic() - _RECENT_S
        return {name: why for name, (at, why) in self._failures.items() if at > since}

    def end_waits(self) -> None:
        """The service is about to end: streams end, long-polls answer at once, and so does what runs besides them."""
        self.ending = True
        self.feed.close()
        self.log_watch.close()
        for tell in self.at_end:
            tell()
        for wait in self.waits:
            wait.cancel()
        # While connections end, whoever leads gives the lease up.
        for task in (*self.tasks.values(), *self._later):
            task.cancel()

    async def wait_for_work(self, caller: Principal, agent: str, after: int, timeout_s: float) -> None:
        """Wait until an agent's work is at another revision than `after`, or the time is over, or we end.

        Raises:
            Unauthenticated: The caller's token was revoked meanwhile.
        """
        if self.ending or timeout_s <= 0:
            return
        wait = asyncio.create_task(self.database.notifier.wait_work(agent, after, timeout_s))
        self.waits.add(wait)
        with self.holders.holding(caller, timeout_s, wait.cancel) as held:
            try:
                await asyncio.wait((wait,))
            finally:
                self.waits.discard(wait)
                wait.cancel()
        if held.revoked:
            raise Unauthenticated("The token is not valid.")

    @contextmanager
    def stream(self, caller: Principal, wake: Callable[[], object]) -> Iterator[Held]:
        """Count an open stream, and know when it is to end: it is to look after `wake`."""
        self.streams += 1
        try:
            with self.holders.holding(caller, self.settings.limits.stream_s, wake) as held:
                yield held
        finally:
            self.streams -= 1

    def check_streams(self) -> None:
        """Refuse a further stream if there are too many.

        Raises:
            HTTPException: 503.
        """
        if self.streams >= self.settings.limits.streams:
            raise HTTPException(503, f"{self.streams} streams are open, as many as we keep.", {"Retry-After": "5"})


def services_of(connection: HTTPConnection) -> Services:
    """The replica that a request came to."""
    found: Services = connection.app.state.services
    return found


# Coroutines, although nothing is awaited: FastAPI has a thread of its own do what is none, and on a busy service that
# thread waits for its turn of the interpreter longer than all else takes.
async def _replica(connection: HTTPConnection) -> Services:
    return services_of(connection)


async def _store(connection: HTTPConnection) -> Database:
    return services_of(connection).database


async def _settings(connection: HTTPConnection) -> ApiSettings:
    return services_of(connection).settings


Replica = Annotated[Services, Depends(_replica)]
Store = Annotated[Database, Depends(_store)]
Settings = Annotated[ApiSettings, Depends(_settings)]
