"""Codes that sign a browser in without the API token, and attempts to sign in through the identity provider.

Each works once: a code for a minute, an attempt for ten. The browser keeps the attempt, in a cookie. The database has
only hashes, so the control plane knows no cookie that was changed, invented, used or kept for too long, on any replica
and without a key. A code has 256 random bits, so one round of SHA-256 protects it.
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
from clonos_api.store.tokens import OIDC

LIFETIME_S: Final = 60.0
ATTEMPT_S: Final = 600.0


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
    code = secrets.token_urlsafe(32)
    expires_at = await _add(session, code, owner.id, LIFETIME_S)
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
    token = await _use_up(session, code, SignInCodeRow.token.in_(valid))
    return None if token is None else await sessions.open_by_token(session, token, by_link=True)


async def begin_attempt(session: AsyncSession, cookie: str) -> None:
    """Remember the hash of an attempt's cookie, which holds random values."""
    await _add(session, cookie, OIDC, ATTEMPT_S)


async def use_up_attempt(session: AsyncSession, cookie: str) -> bool:
    """Forget an attempt; return whether its cookie was known and had not expired."""
    return await _use_up(session, cookie, SignInCodeRow.token == OIDC) is not None


async def _add(session: AsyncSession, secret: str, token: str, lifetime_s: float) -> datetime:
    """Insert the hash of a code or cookie, and delete expired ones; return when it expires."""
    await session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= clock()))
    expires_at = await now(session) + timedelta(seconds=lifetime_s)
    session.add(SignInCodeRow(digest=digest_of(secret), token=token, expires_at=expires_at))
    return expires_at


async def _use_up(session: AsyncSession, secret: str, which: ColumnElement[bool]) -> str | None:
    """Delete an unexpired code or cookie in one statement, so that of two requests with it one succeeds."""
    statement = delete(SignInCodeRow).where(*_unexpired(secret), which).returning(SignInCodeRow.token)
    return (await session.scalars(statement.execution_options(synchronize_session=False))).one_or_none()


def _unexpired(code: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return SignInCodeRow.digest == digest_of(code), SignInCodeRow.expires_at > clock()


def digest_of(code: str) -> bytes:
    """Return the hash of a code, as the database has it."""
    return hashlib.sha256(code.encode()).digest()
