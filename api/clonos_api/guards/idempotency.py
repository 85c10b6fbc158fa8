"""`Idempotency-Key` on POST and DELETE with a response: a repeated request is executed once and gets the same response.

The key is reserved before the work, in its own transaction. The response is stored in the transaction of the work, so
both are committed or neither. Failed work frees its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import DatabaseUnavailable, SpecError
from clonos_api.auth.requirements import principal_of
from clonos_api.replica import Replica, replica_of
from clonos_api.store import idempotency
from clonos_api.store.db.database import Database
from clonos_api.store.idempotency import Answer, Reservation

KEY: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
_JSON: Final = "application/json"


class AnsweredBefore(Exception):
    """Raised by a FastAPI dependency if the response to this idempotency key is stored already; its handler sends
    that response. It is not an error.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__("answered before")
        self.answer = answer


class Once:
    """Stores the response of one request under its ``Idempotency-Key``. Without that header it stores nothing."""

    def __init__(self, reservation: Reservation | None) -> None:
        self._reservation = reservation
        self.answered = False

    async def answer(
        self, session: AsyncSession, status: int, body: BaseModel, *, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Build the response that the route returns, and store it in `session`, the transaction that executes the
        request.
        """
        text, sent = body.model_dump_json(by_alias=True), dict(headers or {})
        self.answered = True
        if self._reservation is not None:
            await idempotency.answer(session, self._reservation, status, sent, text)
        return Response(text, status_code=status, media_type=_JSON, headers=sent)


async def _once(
    request: Request,
    key: str | None = Header(
        None,
        alias=KEY,
        min_length=1,
        max_length=255,
        description="A repeated request with the same key is executed once.",
    ),
) -> AsyncIterator[Once]:
    if key is None:
        yield Once(None)
        return
    replica = replica_of(request)
    database = replica.database
    fingerprint = await _fingerprint(request)
    async with database.transaction() as session:
        reserved = await idempotency.reserve(session, principal_of(request).subject, key, fingerprint)
    if isinstance(reserved, Answer):
        raise AnsweredBefore(reserved)
    once, forget = Once(reserved), partial(_forget, database, reserved)
    try:
        yield once
    except DatabaseUnavailable:
        # The work may have committed: then its response remains. Otherwise this frees the key.
        replica.later(forget)
        raise
    except BaseException:
        await _now_or_later(replica, forget)
        raise
    if not once.answered:
        await _now_or_later(replica, forget)


OnceDep = Annotated[Once, Depends(_once)]


async def _now_or_later(replica: Replica, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except DatabaseUnavailable:
        replica.later(work)


async def _forget(database: Database, reservation: Reservation) -> None:
    async with database.transaction() as session:
        await idempotency.forget(session, reservation)


async def _fingerprint(request: Request) -> str:
    digest = hashlib.sha256()
    for part in (request.method, request.url.path, request.url.query, request.headers.get("content-type", "")):
        digest.update(part.encode() + b"\n")
    digest.update(await request.body())
    return digest.hexdigest()


async def refuse_key(key: str | None = Header(None, alias=KEY, include_in_schema=False)) -> None:
    """Refuse the header ``Idempotency-Key`` of a POST route, as a FastAPI dependency, because the response holds
    a secret and must not be stored.
    """
    if key is not None:
        raise SpecError(
            f"This request does not accept {KEY}: its response contains a secret, which is not stored.",
            kept="nothing was changed.",
            hint=f"send it without {KEY}; a duplicate can be revoked.",
        )


def install(app: FastAPI) -> None:
    """Install the handler of `AnsweredBefore`, which sends the stored response."""

    async def on_answered(request: Request, error: Exception) -> Response:
        assert isinstance(error, AnsweredBefore)
        answer = error.answer
        headers = {**answer.headers, REPLAYED: "true"}
        return Response(answer.body, status_code=answer.status, media_type=_JSON, headers=headers)

    app.add_exception_handler(AnsweredBefore, on_answered)
