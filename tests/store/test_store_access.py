"""Tokens, audit, idempotency keys, operations, savepoints, standbys."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from clonos.errors import Fenced, KeyMisused, NameTaken, NotFound, RequestUnderWay, StateConflict
from clonos.resources.jobs import Failure
from clonos.resources.service import Role, TokenCreate
from clonos.standby.states import StandbyState
from clonos_api.reconcile.states.failures import untaken
from clonos_api.store import audit, events, idempotency, operations, savepoints, standbys, tokens
from clonos_api.store.clock import clock, now
from clonos_api.store.database import Actor, Database
from clonos_api.store.idempotency import Answer, Reservation
from clonos_api.store.tables import AuditRow, Base, IdempotencyRow, StandbyRow, TokenRow
from stored import a_job, an_agent, unique

pytestmark = pytest.mark.anyio
REQUEST, OTHER = "a" * 64, "b" * 64


async def a_token(database: Database, **fields: Any) -> tuple[TokenRow, str]:
    async with database.transaction(by=Actor("root")) as session:
        return await tokens.create(session, TokenCreate(name="ci", role=Role.OPERATOR, **fields))


async def test_a_token_is_known_by_its_text_alone(database: Database) -> None:
    row, secret = await a_token(database, subject="ada")
    other, _ = await a_token(database)
    known = await tokens.authenticate(database, secret)
    assert known is not None
    assert (known.id, known.subject, known.role) == (row.id, "ada", "operator")
    assert other.subject == "ci"
    prefix, token, digits = secret.split("_")
    for wrong in (
        "",
        "_",
        "__",
        secret[:-1],
        secret + "0",
        secret.upper(),
        f"x_{token}_{digits}",
        f"{prefix}_{other.id}_{digits}",
        f"{prefix}_{token}_{'0' * 64}",
        f"{prefix}_{token}_",
        f"{prefix}_nobody_{digits}",
        f"{prefix}_{token}\0_{digits}",
        f"{prefix}_{token}_é",
    ):
        assert await tokens.authenticate(database, wrong) is None, wrong


async def test_no_table_holds_a_secret(database: Database) -> None:
    _, secret = await a_token(database)
    digits = secret.split("_")[2]
    async with database.reading() as session:
        for table in Base.metadata.sorted_tables:
            for row in await session.execute(select(table)):
                assert digits not in repr(tuple(row))
                assert bytes.fromhex(digits) not in [one for one in row if isinstance(one, bytes)]


async def test_a_token_ends(database: Database) -> None:
    row, secret = await a_token(database, expires_in_s=60)
    assert await tokens.authenticate(database, secret)
    async with database.transaction() as session:
        await session.execute(update(TokenRow).where(TokenRow.id == row.id).values(expires_at=clock(-0.01)))
    assert await tokens.authenticate(database, secret) is None
    row, secret = await a_token(database, expires_in_s=None)
    assert await tokens.authenticate(database, secret)
    async with database.transaction(by=Actor("root")) as session:
        first = (await tokens.revoke(session, row.id)).revoked_at
    async with database.transaction() as session:
        assert (await tokens.revoke(session, row.id)).revoked_at == first
        with pytest.raises(NotFound):
            await tokens.revoke(session, "nobody")
        assert row.id in [one.id for one in (await tokens.page(session)).rows]
    assert await tokens.authenticate(database, secret) is None


async def test_use_is_noted_once_a_minute(database: Database) -> None:
    row, secret = await a_token(database)

    async def used() -> Any:
        await tokens.authenticate(database, secret)
        async with database.reading() as session:
            return (await tokens.get(session, row.id)).last_used_at

    first = await used()
    assert first is not None
    assert await used() == first
    async with database.transaction() as session:
        earlier = update(TokenRow).where(TokenRow.id == row.id).values(last_used_at=clock(-61))
        await session.execute(earlier)
    assert await used() > first


async def test_audit(database: Database) -> None:
    who = Actor("ada", "t7")
    async with database.transaction() as session:
        await audit.record(session, who, "job.delete", "j1", outcome="denied", detail={"why": "role"})
    async with database.transaction(by=who) as session:
        job = await a_job(session)
    async with database.transaction() as session:
        await a_job(session)  # nobody asked

    async def fail() -> None:
        async with database.transaction(by=who) as session:
            await a_job(session)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.reading() as session:
        rows = (await session.scalars(select(AuditRow).where(AuditRow.token == "t7").order_by(AuditRow.seq))).all()
        told = [(one.action, one.target, one.outcome) for one in rows if one.action.startswith("job")]
        assert told == [("job.delete", "j1", "denied"), ("job.create", job.id, "allowed")]
        page = await audit.page(session, limit=2)
        rest = await audit.page(session, limit=200, starting_after=page.next)
        assert [one.seq for one in page.rows] > [one.seq for one in rest.rows][:2]


async def reserve(database: Database, key: str, request: str = REQUEST) -> Answer | Reservation:
    async with database.transaction() as session:
        return await idempotency.reserve(session, "ada", key, request)


async def test_the_same_request_gets_the_same_answer(database: Database) -> None:
    key = unique()
    mine = await reserve(database, key)
    assert isinstance(mine, Reservation)
    with pytest.raises(RequestUnderWay):
        await reserve(database, key)
    with pytest.raises(KeyMisused):
        await reserve(database, key, OTHER)
    async with database.transaction() as session:
        assert isinstance(await idempotency.reserve(session, "bob", key, OTHER), Reservation), (
            "keys are a subject's own"
        )
    async with database.transaction() as session:
        job = await a_job(session)
        await idempotency.answer(session, mine, 201, {"etag": "1"}, job.id)
    assert await reserve(database, key) == Answer(201, {"etag": "1"}, job.id)
    with pytest.raises(KeyMisused):
        await reserve(database, key, OTHER)


async def test_of_many_same_requests_one_is_worked_on(database: Database) -> None:
    key = unique()
    results = await asyncio.gather(*(reserve(database, key) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(one, Reservation) for one in results) == 1
    assert sum(isinstance(one, RequestUnderWay) for one in results) == 9


async def test_a_refused_request_frees_its_key(database: Database) -> None:
    key = unique()
    mine = await reserve(database, key)
    assert isinstance(mine, Reservation)
    async with database.transaction() as session:
        await idempotency.forget(session, mine)
    assert isinstance(await reserve(database, key, OTHER), Reservation)


async def test_a_request_whose_process_died_is_taken_over(database: Database) -> None:
    key = unique()
    mine = await reserve(database, key)
    assert isinstance(mine, Reservation)
    moved = mine.made_at - timedelta(seconds=120)
    async with database.transaction() as session:
        await session.execute(update(IdempotencyRow).where(IdempotencyRow.key == key).values(created_at=moved))
    theirs = await reserve(database, key)
    assert isinstance(theirs, Reservation)
    with pytest.raises(Fenced):  # it had only been slow
        async with database.transaction() as session:
            await idempotency.answer(session, Reservation("ada", key, moved), 201, {}, None)
    async with database.transaction() as session:
        await idempotency.answer(session, theirs, 201, {}, None)
    day = mine.made_at - timedelta(days=2)
    async with database.transaction() as session:
        await session.execute(update(IdempotencyRow).where(IdempotencyRow.key == key).values(created_at=day))
    assert isinstance(await reserve(database, key, OTHER), Reservation), "answers are kept for a day"


async def test_an_operation_ends_once(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        made = await operations.begin(session, "stop", job=job.id, arguments={"a": 1}, timeout_s=60, by="ada")
        assert 59 < (made.deadline - made.created_at).total_seconds() < 61
    async with database.transaction() as session:
        done = await operations.complete(session, made, {"savepoint": "s"})
        assert (done.state, done.result, done.ended_at is not None) == ("COMPLETED", {"savepoint": "s"}, True)
    made.token, made.state = 1, "IN_PROGRESS"
    for again in (done, made):
        with pytest.raises(Fenced):
            async with database.transaction() as session:
                await operations.fail(session, again, Failure(error="x", what="y"))
    async with database.reading() as session:
        assert (await operations.get(session, made.id)).state == "COMPLETED"
        assert await operations.in_progress(session, job=job.id) == []
        assert [one.id for one in (await operations.page(session, job=job.id, state="COMPLETED")).rows] == [made.id]
        assert (await operations.page(session, job=job.id, state="FAILED")).rows == []
        told = [one.type for one in await events.after(session, 0, job=job.id)]
        assert told == ["job.created", "operation.began", "operation.ended"]


async def test_no_operation_is_in_progress_for_ever(database: Database) -> None:
    async with database.transaction() as session:
        late = await operations.begin(session, "stop", timeout_s=-1, by="ada")
        early = await operations.begin(session, "stop", timeout_s=60, by="ada")

    async def expire() -> list[str]:
        async with database.transaction() as session:
            return [one.id for one in await operations.expire(session)]

    given_up = [one for some in await asyncio.gather(*(expire() for _ in range(4))) for one in some]
    assert given_up.count(late.id) == 1
    assert early.id not in given_up
    async with database.reading() as session:
        found = await operations.get(session, late.id)
        assert found.failure is not None
        assert (found.state, found.failure["error"]) == ("FAILED", "operation-timed-out")


async def test_savepoints(database: Database) -> None:
    async with database.transaction() as session:
        job = await a_job(session)
        made = await savepoints.create(session, job, name="one", location="file:///x")
    with pytest.raises(NameTaken):
        async with database.transaction() as session:
            await savepoints.create(session, job, name="one", location="file:///y")
    async with database.transaction() as session:
        with pytest.raises(StateConflict):
            await savepoints.begin_delete(session, made)
        made = await savepoints.complete(session, made, epochs={"out": 7}, size_bytes=2**40)
        assert (made.state, made.epochs, made.size_bytes) == ("COMPLETED", {"out": 7}, 2**40)
        with pytest.raises(Fenced):
            await savepoints.complete(session, made, epochs={}, size_bytes=None)
        failed = await savepoints.fail(
            session, await savepoints.create(session, job, name="two", location="x"), untaken()
        )
        assert failed.state == "FAILED"
    async with database.transaction() as session:
        assert [one.name for one in (await savepoints.page(session, job=job.id)).rows] == ["two", "one"]
        made = await savepoints.begin_delete(session, made)
        await savepoints.remove(session, made)
        with pytest.raises(NotFound):
            await savepoints.get(session, made.id)
        assert [one.name for one in (await savepoints.page(session, job=job.id, limit=1)).rows] == ["two"]


async def test_standbys(database: Database) -> None:
    async with database.transaction() as session:
        job, agent = await a_job(session), await an_agent(session)
        session.add(
            StandbyRow(
                id=unique(),
                job=job.id,
                agent=agent.id,
                mode="dedicated",
                state="READY",
                since=await now(session),
                body={},
            )
        )
    async with database.reading() as session:
        assert [one.state for one in (await standbys.page(session, job=job.id)).rows] == ["READY"]
        assert (await standbys.page(session, job="nobody")).rows == []
        assert (await standbys.page(session, job=job.id, states=[StandbyState.FAILED])).rows == []
        assert len((await standbys.page(session, job=job.id, states=[StandbyState.READY])).rows) == 1
