"""`Idempotency-Key` on POST: the same request made again gets the same answer, and is done once.

The key is reserved before the work, in a transaction of its own, and the answer is kept in the transaction of the work:
so the work is done and its answer known, or neither. Work that fails gives its key back.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import SpecError, StoreAway
from clonos_api.auth.requirements import principal_of
from clonos_api.services import Services, services_of
from clonos_api.store import idempotency
from clonos_api.store.database import Database
from clonos_api.store.idempotency import Answer, Reservation

KEY: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
_JSON: Final = "application/json"


class AnsweredBefore(Exception):
    """The request was made before: not an error, but the shortest way from a dependency to its answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("answered before")
        self.answer = answer


class Once:
    """One request that is done once; without a key it is any request."""

    def __init__(self, reservation: Reservation | None) -> None:
        self._reservation = reservation
        self.answered = False

    async def answer(
        self, session: AsyncSession, status: int, body: BaseModel, *, headers: Mapping[str, str] | None = None
    ) -> Response:
        """The answer, kept with what `session` writes. Return it from the route.

        Args:
            session: The transaction of the work.
            status: Of the answer.
            body: Of the answer.
            headers: Further ones, such as ``Location``.
        """
        text, sent = body.model_dump_json(by_alias=True), dict(headers or {})
        self.answered = True
        if self._reservation is not None:
            await idempotency.answer(session, self._reservation, status, sent, text)
        return Response(text, status_code=status, media_type=_JSON, headers=sent)


async def _once(
    request: Request,
    key: str | None = Header(None, alias=KEY, min_length=1, max_length=255, description="The same again is done once."),
) -> AsyncIterator[Once]:
    if key is None:
        yield Once(None)
        return
    services = services_of(request)
    database = services.database
    fingerprint = await _fingerprint(request)
    async with database.transaction() as session:
        found = await idempotency.reserve(session, principal_of(request).subject, key, fingerprint)
    if isinstance(found, Answer):
        raise AnsweredBefore(found)
    once, forget = Once(found), partial(_forget, database, found)
    try:
        yield once
    except StoreAway:
        # It may have been done; then the answer is there and stays. If not, the next one need not wait.
        services.later(forget)
        raise
    except BaseException:
        await _now_or_later(services, forget)
        raise
    if not once.answered:
        await _now_or_later(services, forget)


async def _now_or_later(services: Services, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except StoreAway:
        services.later(work)


async def _forget(database: Database, reservation: Reservation) -> None:
    async with database.transaction() as session:
        await idempotency.forget(session, reservation)


async def _fingerprint(request: Request) -> str:
    digest = hashlib.sha256()
    for part in (request.method, request.url.path, request.url.query, request.headers.get("content-type", "")):
        digest.update(part.encode() + b"\n")
    digest.update(await request.body())
    return digest.hexdigest()


async def _refused(key: str | None = Header(None, alias=KEY, include_in_schema=False)) -> None:
    if key is not None:
        raise SpecError(
            f"This request takes no {KEY}: its answer holds a secret, which is not kept.",
            kept="nothing was changed.",
            hint=f"send it without {KEY}; what was made twice can be revoked.",
        )


def idempotent() -> Any:
    """A dependency of a POST route: gives a `Once`."""
    return Depends(_once)


def refuse_key() -> Any:
    """A dependency of a POST route whose answer must not be kept."""
    return Depends(_refused)


def install(app: FastAPI) -> None:
    """Answer requests that were answered before."""

    async def on_answered(request: Request, error: Exception) -> Response:
        assert isinstance(error, AnsweredBefore)
        answer = error.answer
        headers = {**answer.headers, REPLAYED: "true"}
        return Response(answer.body, status_code=answer.status, media_type=_JSON, headers=headers)

    app.add_exception_handler(AnsweredBefore, on_answered)
