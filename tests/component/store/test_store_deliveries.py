"""Messages to webhooks: their order, their retries, and the bounds of the queue."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from clonos_api.store import deliveries
from clonos_api.store.db.clock import now
from clonos_api.store.db.database import Database
from clonos_api.store.tables import DeliveryRow
from support.stored import unique

pytestmark = pytest.mark.anyio


async def test_a_message_waits_for_the_older_ones_of_its_webhook(database: Database) -> None:
    first, other = unique("w-"), unique("w-")
    async with database.transaction() as session:
        await deliveries.add(session, [first, other], {"number": 1})
        await deliveries.add(session, [first], {"number": 2})
    async with database.transaction() as session:
        row = await deliveries.next_due(session, first)
        assert row is not None
        assert row.body == {"number": 1}
        await deliveries.retry(session, row)
    async with database.transaction() as session:
        assert await deliveries.next_due(session, first) is None, "the second message must not overtake the first"
        assert (await deliveries.next_due(session, other)) is not None
        await session.execute(update(DeliveryRow).where(DeliveryRow.id == row.id).values(due_at=await now(session)))
        again = await deliveries.next_due(session, first)
        assert again is not None
        assert (again.id, again.attempts) == (row.id, 1)
        await deliveries.delivered(session, again)
    async with database.reading() as session:
        last = await deliveries.next_due(session, first)
        assert last is not None
        assert last.body == {"number": 2}
        assert (await deliveries.depths(session))[first] == 1


async def test_pauses_double_up_to_five_minutes(database: Database) -> None:
    webhook, pauses = unique("w-"), []
    async with database.transaction() as session:
        await deliveries.add(session, [webhook], {})
        row = (await session.scalars(select(DeliveryRow).where(DeliveryRow.webhook == webhook))).one()
        for _ in range(11):
            before = await now(session)
            await deliveries.retry(session, row)
            pauses.append(round((row.due_at - before).total_seconds()))
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


async def test_the_queue_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LIMIT", 3)
    webhook = unique("w-")
    async with database.transaction() as session:
        for number in range(5):
            await deliveries.add(session, [webhook], {"number": number})
        assert await deliveries.trim(session, webhook) == 2
        query = select(DeliveryRow).where(DeliveryRow.webhook == webhook).order_by(DeliveryRow.seq)
        rows = (await session.scalars(query)).all()
        assert [row.body["number"] for row in rows] == [2, 3, 4], "the newest stay"
        rows[0].created_at = await now(session) - timedelta(seconds=deliveries.GIVE_UP_S + 1)
        await session.flush()
        assert await deliveries.trim(session, webhook) == 1
        await deliveries.forget_others(session, ["another"])
        assert webhook not in await deliveries.depths(session)
