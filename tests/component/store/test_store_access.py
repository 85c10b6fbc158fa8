"""Tokens, audit, idempotency keys, operations, savepoints, standbys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import (
    ConcurrentUpdate,
    NameTaken,
    NotFound,
    RequestInProgress,
    StateConflict,
    Unauthenticated,
)
from clonos.resources.jobs import Failure
from clonos.resources.service import Role, TokenCreate
from clonos_api.reconcile.states.failures import savepoint_given_up
from clonos_api.store import (
    audit,
    events,
    idempotency,
    operations,
    savepoints,
    sessions,
    sign_in_codes,
    tokens,
)
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.database import Actor, Database
from clonos_api.store.db.paging import Window
from clonos_api.store.idempotency import Answer, Reservation
from clonos_api.store.tables import AuditRow, IdempotencyRow, TokenRow
from support.stored import job_row, unique

pytestmark = pytest.mark.anyio
REQUEST, OTHER = "a" * 64, "b" * 64


async def a_token(database: Database, **fields: Any) -> tuple[TokenRow, str]:
    async with database.transaction(by=Actor("root")) as session:
        return await tokens.create(session, TokenCreate(name=unique("ci-"), role=Role.OPERATOR, **fields))


async def test_authenticate_accepts_only_the_exact_text(database: Database) -> None:
    row, secret = await a_token(database, subject="ada")
    other, _ = await a_token(database)
    known = await tokens.authenticate(database, secret)
    assert known is not None
    assert (known.id, known.subject, known.role) == (row.id, "ada", "operator")
    assert other.subject == other.name
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


async def test_last_use_is_written_once_a_minute(database: Database) -> None:
    row, secret = await a_token(database)

    async def used() -> Any:
        await tokens.authenticate(database, secret)
        while database._background:
            await asyncio.sleep(0.01)
        async with database.reading() as session:
            return (await tokens.get(session, row.id)).last_used_at

    first = await used()
    assert first is not None
    assert await used() == first
    async with database.transaction() as session:
        earlier = update(TokenRow).where(TokenRow.id == row.id).values(last_used_at=clock(-61))
        await session.execute(earlier)
    assert await used() > first


async def test_a_read_waits_for_no_write(database: Database) -> None:
    _, secret = await a_token(database)
    async with database.transaction() as session:  # holds SQLite's only writer
        await session.execute(update(TokenRow).values(name="locked"))
        async with asyncio.timeout(2):
            assert await tokens.authenticate(database, secret)


async def test_audit_entries_have_subject_action_and_target(database: Database) -> None:
    who = Actor("ada", "t7")
    async with database.transaction() as session:
        await audit.record(session, who, "job.delete", "j1", outcome="denied", detail={"why": "role"})
    async with database.transaction(by=who) as session:
        job = await job_row(session)
    async with database.transaction() as session:
        await job_row(session)  # without a user

    async def fail() -> None:
        async with database.transaction(by=who) as session:
            await job_row(session)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.reading() as session:
        rows = (await session.scalars(select(AuditRow).where(AuditRow.token == "t7").order_by(AuditRow.seq))).all()
        actual = [(row.action, row.target, row.outcome) for row in rows if row.action.startswith("job")]
        assert actual == [("job.delete", "j1", "denied"), ("job.create", job.id, "allowed")]
        page = await audit.page(session, Window(2))
        rest = await audit.page(session, Window(200, page.next))
        assert [row.seq for row in page.rows] > [row.seq for row in rest.rows][:2]


async def reserve(database: Database, key: str, request: str = REQUEST) -> Answer | Reservation:
    async with database.transaction() as session:
        return await idempotency.reserve(session, "ada", key, request)


async def test_one_of_many_equal_requests_gets_the_reservation(database: Database) -> None:
    key = unique()
    results = await asyncio.gather(*(reserve(database, key) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(result, Reservation) for result in results) == 1
    assert sum(isinstance(result, RequestInProgress) for result in results) == 9


async def test_the_reservation_of_a_crashed_process_is_taken_over(database: Database) -> None:
    key = unique()
    own = await reserve(database, key)
    assert isinstance(own, Reservation)
    moved = own.reserved_at - timedelta(seconds=120)
    async with database.transaction() as session:
        await session.execute(update(IdempotencyRow).where(IdempotencyRow.key == key).values(created_at=moved))
    others = await reserve(database, key)
    assert isinstance(others, Reservation)
    with pytest.raises(ConcurrentUpdate):  # its first attempt was only slow
        async with database.transaction() as session:
            await idempotency.answer(session, Reservation("ada", key, moved), 201, {}, None)
    async with database.transaction() as session:
        await idempotency.answer(session, others, 201, {}, None)
    day = own.reserved_at - timedelta(days=2)
    async with database.transaction() as session:
        await session.execute(update(IdempotencyRow).where(IdempotencyRow.key == key).values(created_at=day))
    assert isinstance(await reserve(database, key, OTHER), Reservation), "answers are kept for a day"


async def test_an_operation_ends_once(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        created = await operations.begin(session, "stop", job=job.id, arguments={"a": 1}, timeout_s=60, by="ada")
        assert 59 < (created.deadline - created.created_at).total_seconds() < 90
    async with database.transaction() as session:
        done = await operations.complete(session, created, {"savepoint": "s"})
        assert (done.state, done.result, done.ended_at is not None) == ("COMPLETED", {"savepoint": "s"}, True)
    created.row_version, created.state = 1, "IN_PROGRESS"
    for again in (done, created):
        with pytest.raises(ConcurrentUpdate):
            async with database.transaction() as session:
                await operations.fail(session, again, Failure(error="x", what="y"))
    async with database.reading() as session:
        assert (await operations.get(session, created.id)).state == "COMPLETED"
        assert await operations.in_progress(session, job=job.id) == []
        assert [row.id for row in (await operations.page(session, job=job.id, state="COMPLETED")).rows] == [created.id]
        assert (await operations.page(session, job=job.id, state="FAILED")).rows == []
        actual = [event.type for event in await events.after(session, 0, job=job.id)]
        assert actual == ["job.created", "operation.began", "operation.ended"]


async def test_operations_expire_at_their_deadline(database: Database) -> None:
    async with database.transaction() as session:
        late = await operations.begin(session, "stop", timeout_s=-1, by="ada")
        early = await operations.begin(session, "stop", timeout_s=60, by="ada")

    async def expire() -> list[str]:
        async with database.transaction() as session:
            return [item.id for item in await operations.expire(session)]

    given_up = [item for some in await asyncio.gather(*(expire() for _ in range(4))) for item in some]
    assert given_up.count(late.id) == 1
    assert early.id not in given_up
    async with database.reading() as session:
        actual = await operations.get(session, late.id)
        assert actual.failure is not None
        assert (actual.state, actual.failure.error) == ("FAILED", "operation-timed-out")


async def test_savepoints(database: Database) -> None:
    async with database.transaction() as session:
        job = await job_row(session)
        created = await savepoints.create(session, job, name="one", location="file:///x")
    with pytest.raises(NameTaken):
        async with database.transaction() as session:
            await savepoints.create(session, job, name="one", location="file:///y")
    async with database.transaction() as session:
        with pytest.raises(StateConflict):
            await savepoints.begin_delete(session, created)
        created = await savepoints.complete(session, created, epochs={"out": 7}, size_bytes=2**40)
        assert (created.state, created.epochs, created.size_bytes) == ("COMPLETED", {"out": 7}, 2**40)
        with pytest.raises(ConcurrentUpdate):
            await savepoints.complete(session, created, epochs={}, size_bytes=None)
        failed = await savepoints.fail(
            session, await savepoints.create(session, job, name="two", location="x"), savepoint_given_up()
        )
        assert failed.state == "FAILED"
    async with database.transaction() as session:
        assert [row.name for row in (await savepoints.page(session, job=job.id)).rows] == ["two", "one"]
        created = await savepoints.begin_delete(session, created)
        await savepoints.remove(session, created)
        with pytest.raises(NotFound):
            await savepoints.get(session, created.id)
        assert [row.name for row in (await savepoints.page(session, Window(1), job=job.id)).rows] == ["two"]


Mint = Callable[[AsyncSession, str], Awaitable[object]]
MINTS: dict[str, Mint] = {
    "create": lambda session, token: tokens.create(
        session, TokenCreate(name=unique("more-"), role=Role.VIEWER), caller=token
    ),
    "open_session": sessions.open_by_token,
    "sign_in_code": sign_in_codes.create,
    "rotate": tokens.rotate,
    "rotate_with_overlap": lambda session, token: tokens.rotate(session, token, overlap_s=60.0),
    "renew_session": sessions.renew,
}


@pytest.mark.parametrize("mint", MINTS)
async def test_a_request_that_waited_for_a_revocation_gets_no_credential(database: Database, mint: str) -> None:
    """The request was authenticated before; its transaction begins before the revocation commits, or after it."""
    row, _ = await a_token(database)
    caller = row.id
    async with database.transaction() as session:
        if mint == "renew_session":
            caller = (await sessions.open_by_token(session, row.id))[0].id

    async def request() -> object:
        async with database.transaction() as session:
            return await MINTS[mint](session, caller)

    async with database.transaction() as session:
        await tokens.revoke(session, row.id)
        waiting = asyncio.create_task(request())
        await asyncio.wait((waiting,), timeout=0.3)
    for late in (waiting, asyncio.create_task(request())):
        with pytest.raises(Unauthenticated):
            await late
    assert await valid_of(database, row.subject) == []


async def test_a_session_that_opens_before_a_revocation_ends_with_it(database: Database) -> None:
    row, _ = await a_token(database)

    async def revoke() -> None:
        async with database.transaction() as session:
            await tokens.revoke(session, row.id)

    async with database.transaction() as session:
        await sessions.open_by_token(session, row.id)
        revoking = asyncio.create_task(revoke())
        await asyncio.wait((revoking,), timeout=0.3)
    await revoking
    assert await valid_of(database, row.subject) == []


async def test_an_expired_token_gets_no_credential(database: Database) -> None:
    row, _ = await a_token(database, expires_in_s=600)
    async with database.transaction() as session:
        opened, _ = await sessions.open_by_token(session, row.id)
        await session.execute(update(TokenRow).where(TokenRow.id == row.id).values(expires_at=clock(-1)))
    for mint, create in MINTS.items():
        async with database.transaction() as session:
            with pytest.raises(Unauthenticated):
                await create(session, opened.id if mint == "renew_session" else row.id)


async def test_a_session_ends_after_a_week_however_often_it_is_renewed(database: Database) -> None:
    row, _ = await a_token(database)
    async with database.transaction() as session:
        opened, _ = await sessions.open_by_token(session, row.id)
        began = await now(session) - timedelta(days=6, hours=18)
        await session.execute(update(TokenRow).where(TokenRow.id == opened.id).values(created_at=began))
    async with database.transaction() as session:
        renewed = await sessions.renew(session, opened.id)
        assert renewed is not None
        assert renewed.expires_at == began + timedelta(days=7)


async def test_a_session_of_a_revoked_token_is_not_renewed(database: Database) -> None:
    """Also if the session itself was not revoked."""
    row, _ = await a_token(database)
    async with database.transaction() as session:
        opened, _ = await sessions.open_by_token(session, row.id)
        await session.execute(update(TokenRow).where(TokenRow.id == row.id).values(revoked_at=clock()))
    async with database.transaction() as session:
        with pytest.raises(Unauthenticated):
            await sessions.renew(session, opened.id)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)  # SQLite has one writer
async def test_two_admins_that_rotate_do_not_wait_for_each_other(database: Database) -> None:
    """PostgreSQL would end one of two transactions that wait for each other."""
    async with database.transaction() as session:
        body = TokenCreate(name=unique("ci-"), role=Role.ADMIN, subject="root")
        first, second = [(await tokens.create(session, body))[0].id for _ in range(2)]
    async with database.transaction() as session:
        await tokens.lock_valid(session, first)
        async with asyncio.timeout(60), database.transaction() as other:
            await tokens.rotate(other, second)


async def valid_of(database: Database, subject: str) -> list[str]:
    """The ids of the tokens and sessions of a subject that are not revoked."""
    query = select(TokenRow.id).where(TokenRow.subject == subject, TokenRow.revoked_at.is_(None))
    async with database.reading() as session:
        return list(await session.scalars(query))


async def test_the_tokens_that_expire_first_are_named_and_all_are_counted(database: Database) -> None:
    """A board and a scrape read a bounded number of rows."""
    day, marker = 86_400.0, unique("soon-")
    async with database.transaction() as session:
        before = await tokens.expiring(session)
        made = []
        for name, left_s, used in (
            *((marker, 3 * day + number, True) for number in range(tokens.EXPIRING_NAMED + 5)),
            ("long", 8 * day, True),
            ("short-lived", 3600.0, True),
            ("unused", day, False),
        ):
            row, _ = await tokens.create(session, TokenCreate(name=unique(name), role=Role.VIEWER, subject=name))
            lifetime = timedelta(seconds=left_s * (2 if name == "short-lived" else 40))
            row.expires_at = await now(session) + timedelta(seconds=left_s)
            row.created_at = row.expires_at - lifetime
            row.last_used_at = await now(session) if used else None
            made.append(row)
        await session.flush()
        expiring = await tokens.expiring(session)
    assert expiring.count - before.count == tokens.EXPIRING_NAMED + 5
    assert len(expiring.first) == tokens.EXPIRING_NAMED
    assert [token.expires_at for token in expiring.first] == sorted(token.expires_at for token in expiring.first)
    if not before.count:
        assert [token.id for token in expiring.first] == [row.id for row in made[: tokens.EXPIRING_NAMED]]
