"""Idempotency keys: the same request under the same key gets the same answer again.

A key is reserved in a transaction of its own, so that a second request sees at once that the first is under way; the
answer is written in the transaction of the work itself, so that both are there or neither. A reservation whose
process died or sleeps is taken over; a transaction of it that is open still cannot commit then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import Fenced, KeyMisused, RequestUnderWay
from clonos_api.store.clock import clock, now
from clonos_api.store.rows import insert_new
from clonos_api.store.tables import IdempotencyRow

_GIVEN_UP_S: Final = 10.0
_DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class Reservation:
    """A request that is being worked on: hand it to `answer`."""

    subject: str
    key: str
    made_at: datetime


@dataclass(frozen=True)
class Answer:
    """What the same request was answered before."""

    status: int
    headers: dict[str, str]
    body: str | None


async def reserve(session: AsyncSession, subject: str, key: str, request: str) -> Answer | Reservation:
    """Reserve a key for a request (SHA-256 of method, path and body, hexadecimal), or the answer that it got before.

    Raises:
        KeyMisused: The key came with another request before.
        RequestUnderWay: The same request is being worked on.
    """
    mine = (IdempotencyRow.subject == subject, IdempotencyRow.key == key)
    old = delete(IdempotencyRow).where(*mine, IdempotencyRow.created_at < clock(-_DAY_S))
    await session.execute(old.execution_options(synchronize_session=False))
    moment = await now(session)
    new = await insert_new(
        session, IdempotencyRow, subject=subject, key=key, request=request, headers={}, created_at=moment
    )
    if new is not None:
        return Reservation(subject, key, new.created_at)
    row = (await session.scalars(select(IdempotencyRow).where(*mine))).one_or_none()
    if row is None:
        raise RequestUnderWay(f"The request with the key {key!r} was just given up; send it again.")
    if row.request != request:
        raise KeyMisused(f"The key {key!r} came with another request before.")
    if row.status is not None:
        return Answer(row.status, row.headers, row.body)
    statement = (
        update(IdempotencyRow)
        .where(*mine, IdempotencyRow.status.is_(None), IdempotencyRow.created_at < clock(-_GIVEN_UP_S))
        .values(created_at=moment)
        .returning(IdempotencyRow.created_at)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise RequestUnderWay(f"The request with the key {key!r} is being worked on.")
    return Reservation(subject, key, moment)


async def answer(
    session: AsyncSession, reservation: Reservation, status: int, headers: dict[str, str], body: str | None
) -> None:
    """Keep the answer, in the transaction of the work.

    Raises:
        Fenced: It took so long that somebody else took the request over; the work is not to be done twice.
    """
    statement = (
        update(IdempotencyRow)
        .where(*_reserved(reservation))
        .values(status=status, headers=headers, body=body)
        .returning(IdempotencyRow.key)
        .execution_options(synchronize_session=False)
    )
    if (await session.execute(statement)).one_or_none() is None:
        raise Fenced(f"The request with the key {reservation.key!r} was taken over.")


async def forget(session: AsyncSession, reservation: Reservation) -> None:
    """The attempt is over: the key may be used again, unless there is an answer.

    Also where it is not known whether the work was committed: until that is decided, this waits for the answer's row.
    """
    statement = delete(IdempotencyRow).where(*_reserved(reservation))
    await session.execute(statement.execution_options(synchronize_session=False))


def _reserved(reservation: Reservation) -> tuple[ColumnElement[bool], ...]:
    return (
        IdempotencyRow.subject == reservation.subject,
        IdempotencyRow.key == reservation.key,
        IdempotencyRow.created_at == reservation.made_at,
        IdempotencyRow.status.is_(None),
    )
