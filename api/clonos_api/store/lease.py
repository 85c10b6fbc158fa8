"""The leader's lease: one row, the database's clock, and a fencing token that grows with each holder.

Three mechanisms keep a stale leader from writing:

1. The holder stops `MARGIN_S` before its lease expires. It measures the lease from before it sent the request, by a
   clock that also runs while the machine sleeps.
2. Each of its transactions checks the fencing token at the beginning and again right before the commit.
3. The second check locks the lease's row: no other replica can take the lease until the transaction has ended.

States of a replica: following -> leading (lease acquired) -> following (lease expired, lost or released).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import Row, and_, bindparam, case, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, DatabaseUnavailable
from clonos_api.store.db.clock import clock
from clonos_api.store.db.commit_hooks import before_commit
from clonos_api.store.db.database import Database, Origin
from clonos_api.store.db.rows import upsert
from clonos_api.store.tables import LeaseRow, table_of

NAME: Final = "leader"
TTL_S: Final = 2.0
RENEW_S: Final = 0.5
MARGIN_S: Final = 0.5
AHEAD_S: Final = 1.0  # a lease that ends this much later than it can is from before the clock was set back
_LEASE: Final = table_of(LeaseRow)
_RENEWAL: Final = (
    update(_LEASE)
    .where(
        _LEASE.c.name == NAME,
        _LEASE.c.holder == bindparam("of_holder"),
        _LEASE.c.fencing_token == bindparam("of_token"),
        _LEASE.c.expires_at > clock(),
    )
    .values(expires_at=clock(bindparam("ttl_s")))
    .returning(_LEASE.c.fencing_token)
)
_CHECK_POSITION: Final = 10
# Maximum time for which a leader that is stopped between its last check and its commit delays its successor.
_IDLE_MS: Final = 1000


async def acquire(database: Database, holder: str, *, ttl_s: float = TTL_S) -> int | None:
    """Acquire the leader's lease if it is free or expired, or extend it if `holder` has it; return the fencing
    token, None if another holder has the lease.

    No lease lasts longer than `ttl_s`. One that ends later was written before the database's clock was set back, and is
    shortened: if its holder does not renew it, it is free after `ttl_s`.
    """
    statement = upsert(database.dialect, LeaseRow).values(
        name=NAME, holder=holder, fencing_token=1, expires_at=clock(ttl_s)
    )
    valid = LeaseRow.expires_at > clock()
    own = LeaseRow.holder == holder
    ahead = and_(LeaseRow.expires_at > clock(ttl_s + AHEAD_S), ~own)
    statement = statement.on_conflict_do_update(
        index_elements=["name"],
        set_={
            "holder": case((ahead, LeaseRow.holder), else_=holder),
            # An expired lease gets a new token even for its own holder: transactions under the old one must fail.
            "fencing_token": case(((own & valid) | ahead, LeaseRow.fencing_token), else_=LeaseRow.fencing_token + 1),
            "expires_at": clock(ttl_s),
        },
        where=or_(own, ~valid, ahead),
    ).returning(LeaseRow.holder, LeaseRow.fencing_token)
    rows = await database.execute(statement, origin=Origin.LEASE)
    return next((token for owner, token in rows if owner == holder), None)


async def renew(database: Database, holder: str, fencing_token: int, *, ttl_s: float = TTL_S) -> bool:
    """Extend the leader's lease by `ttl_s` seconds; False if it has expired or another holder has it."""
    values = {"of_holder": holder, "of_token": fencing_token, "ttl_s": ttl_s}
    return bool(await database.execute(_RENEWAL, values, origin=Origin.LEASE))


async def release(session: AsyncSession, holder: str, fencing_token: int) -> None:
    """Give up the leader's lease, so that another replica can acquire it immediately."""
    statement = (
        update(LeaseRow)
        .where(LeaseRow.name == NAME, LeaseRow.holder == holder, LeaseRow.fencing_token == fencing_token)
        .values(expires_at=clock(-1.0))
        .execution_options(synchronize_session=False)
    )
    await session.execute(statement)


async def check(session: AsyncSession, holder: str, fencing_token: int) -> None:
    """Fence this transaction: it raises `ConcurrentUpdate` unless `holder` still has the lease with this fencing token.

    The check runs now, to save work, and right before the commit, which is the check that counts. The token alone does
    not identify a lease: a failover to a database that lacks the newest transactions can give it out again.
    """
    query = select(LeaseRow.holder, LeaseRow.fencing_token).where(LeaseRow.name == NAME)
    expected = (holder, fencing_token)

    async def again(session: AsyncSession) -> None:
        # A replica that takes the lease waits for this row lock until this transaction has committed.
        _require_same((await session.execute(query.with_for_update(read=True))).one_or_none(), expected)

    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}"))
    _require_same((await session.execute(query)).one_or_none(), expected)
    before_commit(session, _CHECK_POSITION, again)


def _require_same(current: Row[str, int] | None, expected: tuple[str, int]) -> None:
    if current is None or tuple(current) != expected:
        token = current.fencing_token if current is not None else None
        raise ConcurrentUpdate(f"Another replica leads: its fencing token is {token}, this replica has {expected[1]}.")


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # also runs while the machine sleeps


class Leader:
    """Keeps this replica the leader, if possible: `run` acquires the leader's lease when it is free, and renews it.

    `holder` identifies this process uniquely. The lease lasts `ttl_s` seconds; it is renewed every `renew_s` seconds.
    `clock` returns seconds that never decrease.
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
        self._fencing_token: int | None = None
        self._until = 0.0
        self._changed = asyncio.Event()

    @property
    def holder(self) -> str:
        """Identifies this process."""
        return self._holder

    @property
    def fencing_token(self) -> int | None:
        """The fencing token while this replica is the leader by its own clock; else None."""
        return self._fencing_token if self._clock() < self._until else None

    async def changed(self) -> None:
        """Wait until this replica begins or stops leading.

        An expired lease does not wake waiters: check `fencing_token` before each write.
        """
        await self._changed.wait()

    async def run(self) -> None:
        """Acquire the leader's lease when it is free and renew it, until cancelled; then release it."""
        try:
            while True:
                await self._once()
                await asyncio.sleep(self._renew_s)
        finally:
            await asyncio.shield(self.resign())

    async def resign(self) -> None:
        """Release the leader's lease, if held, so that another replica takes over immediately."""
        fencing_token = self._fencing_token
        self._set_token(None)
        if fencing_token is not None:
            with contextlib.suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(1.0), self._database.transaction(origin=Origin.LEASE) as session:
                    await release(session, self._holder, fencing_token)

    async def _once(self) -> None:
        before = self._clock()
        fencing_token: int | None = None
        # The timeout ends before the lease does: a request without a response must not outlast it.
        with contextlib.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(self._ttl_s - MARGIN_S):
                if self._fencing_token is None:
                    fencing_token = await acquire(self._database, self._holder, ttl_s=self._ttl_s)
                elif await renew(self._database, self._holder, self._fencing_token, ttl_s=self._ttl_s):
                    fencing_token = self._fencing_token
            if fencing_token is not None:
                self._until = before + self._ttl_s - MARGIN_S
            self._set_token(fencing_token)
            return
        if self._clock() >= self._until:
            self._set_token(None)

    def _set_token(self, fencing_token: int | None) -> None:
        if fencing_token != self._fencing_token:
            self._fencing_token = fencing_token
            waiting, self._changed = self._changed, asyncio.Event()
            waiting.set()
        if fencing_token is None:
            self._until = 0.0
