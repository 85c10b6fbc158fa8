"""Idempotency keys: a repeated request with the same key gets the same response.

A key is reserved in its own transaction, so that a concurrent request sees the reservation at once. The response is
written in the transaction of the work, so that both are committed or neither. After 10 s (`_ABANDONED_S`) another
request may take over the reservation, for example of a crashed process; the first transaction then cannot commit.

States of a key: free -> reserved -> answered (for a day), or reserved -> free (the attempt failed).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, IdempotencyKeyReused, RequestInProgress
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.rows import insert_new
from clonos_api.store.tables import IdempotencyRow

_ABANDONED_S: Final = 10.0
_DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class Reservation:
    """An idempotency key that is reserved for a request in progress; pass it to `answer` or `forget`."""

    subject: str
    key: str
    reserved_at: datetime


@dataclass(frozen=True)
class Answer:
    """The stored response to an earlier request with the same idempotency key."""

    status: int
    headers: dict[str, str]
    body: str | None


async def reserve(session: AsyncSession, subject: str, key: str, request: str) -> Answer | Reservation:
    """Reserve an idempotency key of a subject, or return the stored response.

    `request` is the request's SHA-256. Raises `IdempotencyKeyReused` if the key was used for another request, and
    `RequestInProgress` if the same request is in progress.
    """
    same_key = (IdempotencyRow.subject == subject, IdempotencyRow.key == key)
    old = delete(IdempotencyRow).where(*same_key, IdempotencyRow.created_at < clock(-_DAY_S))
    await session.execute(old.execution_options(synchronize_session=False))
    moment = await now(session)
    new = await insert_new(
        session, IdempotencyRow, subject=subject, key=key, request=request, headers={}, created_at=moment
    )
    if new is not None:
        return Reservation(subject, key, new.created_at)
    row = (await session.scalars(select(IdempotencyRow).where(*same_key))).one_or_none()
    if row is None:
        raise RequestInProgress(f"The request with the key {key!r} was just abandoned; send it again.")
    if row.request != request:
        raise IdempotencyKeyReused(f"The key {key!r} was used for another request.")
    if row.status is not None:
        return Answer(row.status, row.headers, row.body)
    statement = (
        update(IdempotencyRow)
        .where(*same_key, IdempotencyRow.status.is_(None), IdempotencyRow.created_at < clock(-_ABANDONED_S))
        .values(created_at=moment)
        .returning(IdempotencyRow.created_at)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise RequestInProgress(f"The request with the key {key!r} is in progress.")
    return Reservation(subject, key, moment)


async def answer(
    session: AsyncSession, reservation: Reservation, status: int, headers: dict[str, str], body: str | None
) -> None:
    """Store the response under its key, in the transaction that executes the request; it fails if another request
    has taken over the key.
    """
    statement = (
        update(IdempotencyRow)
        .where(*_reserved(reservation))
        .values(status=status, headers=headers, body=body)
        .returning(IdempotencyRow.key)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise ConcurrentUpdate(f"The request with the key {reservation.key!r} was taken over.")


async def forget(session: AsyncSession, reservation: Reservation) -> None:
    """Free the reserved key after its request failed, unless a response is stored.

    The call is also correct if the outcome of the commit is unknown: the delete waits for the lock of the response's
    row.
    """
    statement = delete(IdempotencyRow).where(*_reserved(reservation))
    await session.execute(statement.execution_options(synchronize_session=False))


def _reserved(reservation: Reservation) -> tuple[ColumnElement[bool], ...]:
    return (
        IdempotencyRow.subject == reservation.subject,
        IdempotencyRow.key == reservation.key,
        IdempotencyRow.created_at == reservation.reserved_at,
        IdempotencyRow.status.is_(None),
    )
