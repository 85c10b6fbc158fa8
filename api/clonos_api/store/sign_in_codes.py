"""Codes that sign a browser in without the API token: each works once, for a minute.

A code has 256 random bits, so one round of SHA-256 protects it.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, delete, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos_api.store import audit, sessions, tokens
from clonos_api.store.db.clock import clock, now
from clonos_api.store.tables import SignInCodeRow, TokenRow

LIFETIME_S: Final = 60.0


async def create(session: AsyncSession, token: str) -> tuple[str, datetime]:
    """Create a code that opens a session with the rights of an API token.

    Args:
        session: The transaction.
        token: Id of the API token.

    Returns:
        The code, which is not stored, and the time at which it expires.

    Raises:
        NotFound: There is no such token: authentication is off.
        StateConflict: The token belongs to a session.
        Unauthenticated: The token has expired or was revoked since the request was authenticated.
    """
    owner = await tokens.lock_valid(session, token)
    if owner.session_of is not None:
        raise StateConflict("A session opens no other session.", hint="use an API token.")
    await session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= clock()))
    code = secrets.token_urlsafe(32)
    expires_at = await now(session) + timedelta(seconds=LIFETIME_S)
    session.add(SignInCodeRow(digest=digest_of(code), token=owner.id, expires_at=expires_at))
    await audit.asked(session, "session.link", owner.id, name=owner.name)
    return code, expires_at


async def is_known(session: AsyncSession, code: str) -> bool:
    """Whether a code exists and has not expired. It is a read: unknown codes make no writer wait."""
    return bool(await session.scalar(select(exists().where(*_unexpired(code)))))


async def redeem(session: AsyncSession, code: str) -> tuple[TokenRow, str] | None:
    """Use up a code: open the session of a browser, as `sessions.open_by_token` does.

    Returns:
        The session's row, and its token, which is not stored; None if the code is unknown, used or expired, or if its
        API token is no longer valid.
    """
    valid = select(TokenRow.id).where(
        TokenRow.revoked_at.is_(None), or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > clock())
    )
    # One statement: of two requests with the same code, one deletes the row.
    statement = (
        delete(SignInCodeRow)
        .where(*_unexpired(code), SignInCodeRow.token.in_(valid))
        .returning(SignInCodeRow.token)
        .execution_options(synchronize_session=False)
    )
    token = (await session.scalars(statement)).one_or_none()
    if token is None:
        return None
    return await sessions.open_by_token(session, token, by_link=True)


def _unexpired(code: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return SignInCodeRow.digest == digest_of(code), SignInCodeRow.expires_at > clock()


def digest_of(code: str) -> bytes:
    """Return the hash of a code, as the database has it."""
    return hashlib.sha256(code.encode()).digest()
