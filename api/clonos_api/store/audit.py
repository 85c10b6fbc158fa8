"""The audit log: changes and refused requests, with their subject."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.clock import now
from clonos_api.store.db.commit_hooks import ACTOR
from clonos_api.store.db.database import Actor
from clonos_api.store.db.paging import FIRST, Page, Window, by_number
from clonos_api.store.tables import AuditRow


async def record(
    session: AsyncSession,
    actor: Actor,
    action: str,
    target: str | None = None,
    *,
    outcome: Literal["allowed", "denied"] = "allowed",
    detail: dict[str, Any] | None = None,
) -> AuditRow:
    """Append an entry to the audit log, in this transaction: `actor` requested `action` for `target` (id or path).

    Changes through the store's functions are recorded without this call if the transaction has a requester
    (``Database.transaction(by=…)``).
    """
    row = AuditRow(
        at=await now(session),
        subject=actor.subject[:100],
        token=actor.token,
        action=action,
        target=target[:255] if target else target,
        outcome=outcome,
        detail=detail or {},
    )
    session.add(row)
    return row


async def count(session: AsyncSession, seq: int, requests: int) -> None:
    """Note in the entry `seq` that it stands for this number of equal requests."""
    row = await session.get(AuditRow, seq)
    if row is not None:
        row.detail = {**row.detail, "requests": requests}


async def asked(session: AsyncSession, action: str, target: str, **detail: Any) -> None:
    """Record a change in the audit log, if this transaction has a requester. Only modules of the store call this."""
    actor: Actor | None = session.info.get(ACTOR)
    if actor is not None:
        await record(session, actor, action, target, detail=detail)


async def page(session: AsyncSession, window: Window = FIRST) -> Page[AuditRow]:
    """One page of the audit log, newest first."""
    return await by_number(session, select(AuditRow), AuditRow.seq, window)
