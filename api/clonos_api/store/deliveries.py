"""Rows of open alerts, and of the messages about them that webhooks have not received.

A message stays until its webhook has answered, so each arrives at least once, and has the same id in each attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.rows import insert_new, new_id
from clonos_api.store.tables import AlertRow, DeliveryRow

LIMIT: Final = 1_000  # messages of one webhook
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 300.0
GIVE_UP_S: Final = 86_400.0


async def open_alerts(session: AsyncSession) -> dict[str, AlertRow]:
    """Return the alerts that have not ended, by key."""
    return {row.key: row for row in await session.scalars(select(AlertRow))}


async def begin(session: AsyncSession, key: str, body: dict[str, Any], started_at: datetime) -> bool:
    """Insert an alert; False if another replica has inserted it."""
    return await insert_new(session, AlertRow, key=key, body=body, started_at=started_at) is not None


async def end(session: AsyncSession, row: AlertRow) -> None:
    """Delete an alert that has ended."""
    await session.delete(row)
    await session.flush()


async def add(session: AsyncSession, webhooks: Collection[str], body: Mapping[str, Any]) -> None:
    """Add a message to each of the webhooks."""
    moment = await now(session)
    for webhook in webhooks:
        session.add(
            DeliveryRow(id=new_id(), webhook=webhook, body=dict(body), created_at=moment, due_at=moment, attempts=0)
        )
    await session.flush()


async def trim(session: AsyncSession, webhook: str) -> int:
    """Delete the oldest messages of a webhook beyond the limit, and those that are too old; return their number."""
    newest = select(DeliveryRow.seq).where(DeliveryRow.webhook == webhook)
    oldest_kept = (await session.scalars(newest.order_by(DeliveryRow.seq.desc()).offset(LIMIT - 1).limit(1))).first()
    surplus = DeliveryRow.seq < (oldest_kept or 0)
    result = await session.execute(
        delete(DeliveryRow)
        .where(DeliveryRow.webhook == webhook, surplus | (DeliveryRow.created_at < clock(-GIVE_UP_S)))
        .returning(DeliveryRow.seq)
    )
    return len(result.all())


async def forget_others(session: AsyncSession, webhooks: Collection[str]) -> None:
    """Delete the messages of webhooks that the settings no longer name."""
    await session.execute(delete(DeliveryRow).where(DeliveryRow.webhook.not_in(webhooks)))


async def depths(session: AsyncSession) -> dict[str, int]:
    """Return the number of undelivered messages by webhook."""
    query = select(DeliveryRow.webhook, func.count()).group_by(DeliveryRow.webhook)
    return dict((await session.execute(query)).all())


async def next_due(session: AsyncSession, webhook: str) -> DeliveryRow | None:
    """Return the oldest message of a webhook, if it is due. Later ones wait for it: an alert must not end before it
    begins.
    """
    query = select(DeliveryRow, DeliveryRow.due_at <= clock()).where(DeliveryRow.webhook == webhook)
    first = (await session.execute(query.order_by(DeliveryRow.seq).limit(1))).one_or_none()
    return None if first is None or not first[1] else first[0]


async def delivered(session: AsyncSession, row: DeliveryRow) -> None:
    """Delete a message that its webhook has received."""
    await session.execute(delete(DeliveryRow).where(DeliveryRow.seq == row.seq))


async def retry(session: AsyncSession, row: DeliveryRow) -> None:
    """Set the time of the next attempt: 1, 2, 4, … seconds later, at most five minutes."""
    current = await session.get(DeliveryRow, row.seq)
    if current is not None:
        pause_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(current.attempts, 20))
        current.attempts += 1
        current.due_at = await now(session) + timedelta(seconds=pause_s)
        await session.flush()
