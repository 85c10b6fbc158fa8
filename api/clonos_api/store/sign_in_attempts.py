"""Attempts to sign in through the identity provider: the cookie of each works once, for ten minutes.

The browser keeps the attempt. The database has only the hash of its cookie, in the table of sign-in codes. So the
control plane knows no cookie that was changed, invented, used or kept for too long, on any replica and without a key.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.store.db.clock import clock, now
from clonos_api.store.sign_in_codes import digest_of
from clonos_api.store.tables import SignInCodeRow
from clonos_api.store.tokens import OIDC

LIFETIME_S: Final = 600.0


async def begin(session: AsyncSession, cookie: str) -> None:
    """Remember the hash of an attempt's cookie, which holds random values."""
    await session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= clock()))
    expires_at = await now(session) + timedelta(seconds=LIFETIME_S)
    session.add(SignInCodeRow(digest=digest_of(cookie), token=OIDC, expires_at=expires_at))


async def use_up(session: AsyncSession, cookie: str) -> bool:
    """Forget an attempt; return whether its cookie was known and had not expired."""
    # One statement: of two requests with the same cookie, one deletes the row.
    statement = (
        delete(SignInCodeRow)
        .where(
            SignInCodeRow.digest == digest_of(cookie), SignInCodeRow.token == OIDC, SignInCodeRow.expires_at > clock()
        )
        .returning(SignInCodeRow.digest)
        .execution_options(synchronize_session=False)
    )
    return (await session.scalars(statement)).one_or_none() is not None
