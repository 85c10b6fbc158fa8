"""The leader's lease: one row, the database's clock, and a token that goes up with each holder.

Three things keep a stale leader from writing. The holder times itself, by a clock that also runs while the machine
sleeps, from before its request, and stops `MARGIN_S` early. Each of its transactions checks the token, when it begins
and again right before the commit. And from that last check on nobody can take the lease until the transaction is
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import case, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, StoreAway
from clonos_api.store.clock import clock
from clonos_api.store.closing import at_the_end
from clonos_api.store.database import Database
from clonos_api.store.rows import upsert
from clonos_api.store.tables import LeaseRow

NAME: Final = "leader"
TTL_S: Final = 2.0
RENEW_S: Final = 0.5
MARGIN_S: Final = 0.5
_FIRST_OF_THE_LAST: Final = 10
# A leader that is stopped between its last check and the commit holds up its successor for so long.
_IDLE_MS: Final = 1000


async def acquire(session: AsyncSession, holder: str, *, ttl_s: float = TTL_S, name: str = NAME) -> int | None:
    """Take the lease if nobody has it, or keep it; the token, or None if somebody else has it."""
    statement = upsert(session, LeaseRow).values(name=name, holder=holder, token=1, expires_at=clock(ttl_s))
    lives = LeaseRow.expires_at > clock()
    mine = LeaseRow.holder == holder
    statement = statement.on_conflict_do_update(
        index_elements=["name"],
        set_={
            "holder": holder,
            # Also for oneself, once it was over: what was begun under it must not go on.
            "token": case((mine & lives, LeaseRow.token), else_=LeaseRow.token + 1),
            "expires_at": clock(ttl_s),
        },
        where=or_(mine, ~lives),
    ).returning(LeaseRow.token)
    return (await session.execute(statement)).scalar_one_or_none()


async def renew(session: AsyncSession, holder: str, token: int, *, ttl_s: float = TTL_S, name: str = NAME) -> bool:
    """Extend the lease; False: it is over, or somebody else has it."""
    statement = (
        update(LeaseRow)
        .where(
            LeaseRow.name == name,
            LeaseRow.holder == holder,
            LeaseRow.token == token,
            LeaseRow.expires_at > clock(),
        )
        .values(expires_at=clock(ttl_s))
        .returning(LeaseRow.token)
        .execution_options(synchronize_session=False)
    )
    return (await session.execute(statement)).scalar_one_or_none() is not None


async def release(session: AsyncSession, holder: str, token: int, *, name: str = NAME) -> None:
    """Give the lease up at once."""
    statement = (
        update(LeaseRow)
        .where(LeaseRow.name == name, LeaseRow.holder == holder, LeaseRow.token == token)
        .values(expires_at=clock(-1.0))
        .execution_options(synchronize_session=False)
    )
    await session.execute(statement)


async def check(session: AsyncSession, token: int, *, name: str = NAME) -> None:
    """This transaction is the leader's: have it write nothing if the lease is not `token`'s any more.

    It is checked now, to save the work, and right before the commit, which is what counts.

    Raises:
        Fenced: Somebody else leads; also raised by the end of the transaction.
    """
    query = select(LeaseRow.token).where(LeaseRow.name == name)

    async def again(session: AsyncSession) -> None:
        # Whoever takes the lease waits for this row until we have committed.
        _same((await session.execute(query.with_for_update(read=True))).scalar_one_or_none(), token)

    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}"))
    _same((await session.execute(query)).scalar_one_or_none(), token)
    at_the_end(session, _FIRST_OF_THE_LAST, again)


def _same(found: int | None, token: int) -> None:
    if found != token:
        raise Fenced(f"Another replica leads: the lease's token is {found}, ours was {token}.")


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps


class Leader:
    """Tries to hold the lease, for as long as `run` runs.

    Args:
        database: The store.
        holder: Who we are; unique to this process.
        ttl_s: How long the lease lasts without a renewal.
        renew_s: Between renewals, and between tries.
        clock: For tests.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        *,
        ttl_s: float = TTL_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = _boot_clock,
    ) -> None:
        self._database = database
        self._holder = holder
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._clock = clock
        self._token: int | None = None
        self._until = 0.0
        self._changed = asyncio.Event()

    @property
    def token(self) -> int | None:
        """The token if we lead and may still write by our own clock; else None."""
        return self._token if self._clock() < self._until else None

    async def changed(self) -> None:
        """Wait until we begin or cease to lead.

        Leading also ends without a word, by time: look at `token` before each write.
        """
        await self._changed.wait()

    async def run(self) -> None:
        """Take the lease when it is free and renew it, until cancelled; then give it up."""
        try:
            while True:
                await self._once()
                await asyncio.sleep(self._renew_s)
        finally:
            await asyncio.shield(self.resign())

    async def resign(self) -> None:
        """Give the lease up, if we have it, so that another takes over at once."""
        token = self._token
        self._tell(None)
        if token is not None:
            with contextlib.suppress(StoreAway, TimeoutError):
                async with asyncio.timeout(1.0), self._database.transaction(reserved=True) as session:
                    await release(session, self._holder, token)

    async def _once(self) -> None:
        before = self._clock()
        token: int | None = None
        # No longer than we may lead: a request without an answer must not be waited for.
        with contextlib.suppress(StoreAway, TimeoutError):
            async with asyncio.timeout(self._ttl_s - MARGIN_S), self._database.transaction(reserved=True) as session:
                if self._token is None:
                    token = await acquire(session, self._holder, ttl_s=self._ttl_s)
                elif await renew(session, self._holder, self._token, ttl_s=self._ttl_s):
                    token = self._token
            if token is not None:
                self._until = before + self._ttl_s - MARGIN_S
            self._tell(token)
            return
        if self._clock() >= self._until:
            self._tell(None)

    def _tell(self, token: int | None) -> None:
        if token != self._token:
            self._token = token
            waiting, self._changed = self._changed, asyncio.Event()
            waiting.set()
        if token is None:
            self._until = 0.0
