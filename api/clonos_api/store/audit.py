"""The audit log: who did what, or was refused."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.clock import now
from clonos_api.store.closing import ACTOR
from clonos_api.store.paging import DEFAULT, Page, by_number
from clonos_api.store.tables import AuditRow


class Asker(Protocol):
    """Who asked; `clonos_api.store.database.Actor` is one."""

    @property
    def subject(self) -> str:
        """Whose token it was."""

    @property
    def token(self) -> str | None:
        """Its id."""


async def record(
    session: AsyncSession,
    actor: Asker,
    action: str,
    target: str | None = None,
    *,
    outcome: Literal["allowed", "denied"] = "allowed",
    detail: dict[str, Any] | None = None,
) -> None:
    """Write an entry; what a transaction with ``by=`` changes through the store is recorded by itself."""
    session.add(
        AuditRow(
            at=await now(session),
            subject=actor.subject[:100],
            token=actor.token,
            action=action,
            target=target[:255] if target else target,
            outcome=outcome,
            detail=detail or {},
        )
    )


async def asked(session: AsyncSession, action: str, target: str, **detail: Any) -> None:
    """For the store's own modules: record a change, if somebody asked for it."""
    actor: Asker | None = session.info.get(ACTOR)
    if actor is not None:
        await record(session, actor, action, target, detail=detail)


async def page(session: AsyncSession, *, limit: int = DEFAULT, starting_after: str | None = None) -> Page[AuditRow]:
    """Entries, newest first."""
    return await by_number(session, select(AuditRow), AuditRow.seq, limit=limit, starting_after=starting_after)
