"""The audit log: changes and refused requests, with their subject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, or_, select
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


@dataclass(frozen=True)
class Filter:
    """The requested entries; an entry matches all that are set. An action matches whole, or by its first part."""

    subject: str | None = None
    action: str | None = None  # ``job.create``, or ``job`` for all changes of jobs; for refusals ``DELETE /path``
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions on rows."""
        if self.subject is not None:
            yield AuditRow.subject == self.subject
        if self.action is not None:
            parts = [AuditRow.action.startswith(self.action + end, autoescape=True) for end in ". "]
            yield or_(AuditRow.action == self.action, *parts)
        if self.outcome is not None:
            yield AuditRow.outcome == self.outcome
        if self.since is not None:
            yield AuditRow.at >= self.since
        if self.until is not None:
            yield AuditRow.at < self.until


EVERYTHING: Final = Filter()


async def page(session: AsyncSession, window: Window = FIRST, which: Filter = EVERYTHING) -> Page[AuditRow]:
    """One page of the audit log, newest first."""
    return await by_number(session, select(AuditRow).where(*which.conditions()), AuditRow.seq, window)
