"""Sessions of browsers: tokens of some hours, with the rights of an API token or of a user of the identity provider.

Each session is a row of the table of tokens, whose `session_of` is the API token, or `tokens.OIDC`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import NotFound, StateConflict
from clonos.resources.service import Role
from clonos_api.store import audit, tokens
from clonos_api.store.db.clock import clock, now
from clonos_api.store.db.database import Actor
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.tables import TokenRow

LIFETIME_S: Final = 12 * 3600.0  # of a session of an API token, after its last renewal
LONGEST_S: Final = 7 * 86_400.0  # of a session of an API token, with all renewals


async def open_by_token(session: AsyncSession, token: str, *, by_link: bool = False) -> tuple[TokenRow, str]:
    """Open a session with the rights of an API token; it ends with the token.

    Args:
        session: The transaction.
        token: Id of the API token.
        by_link: Whether the browser has sent the code of a link instead of the token.

    Returns:
        The session's row, and its token, which is not stored.

    Raises:
        StateConflict: The token belongs to a session.
        Unauthenticated: The token has expired or was revoked since the request was authenticated.
    """
    owner = await tokens.lock_valid(session, token)
    if owner.session_of is not None:
        raise StateConflict("A session opens no other session.", hint="sign in with an API token.")
    moment = await now(session)
    row, text = await tokens.insert(
        session,
        name=owner.name,
        role=owner.role,
        subject=owner.subject,
        created_at=moment,
        expires_at=_end(owner, moment),
        session_of=owner.id,
    )
    await _record_opened(session, row, "link" if by_link else "token")
    return row, text


async def open_by_provider(
    session: AsyncSession, *, subject: str, role: Role, lifetime_s: float
) -> tuple[TokenRow, str]:
    """Open a session of a user whom the identity provider has identified; return as `open_by_token`.

    The session cannot be renewed: the user's groups may have changed.
    """
    moment = await now(session)
    row, text = await tokens.insert(
        session,
        name=tokens.OIDC,
        role=role,
        subject=subject,
        created_at=moment,
        expires_at=moment + timedelta(seconds=lifetime_s),
        session_of=tokens.OIDC,
    )
    await _record_opened(session, row, tokens.OIDC)
    return row, text


async def _record_opened(session: AsyncSession, row: TokenRow, by: str) -> None:
    detail = {"name": row.name, "role": row.role, "by": by}
    # The requester may have had no token: a link's code, or the identity provider's answer.
    actor = Actor(row.subject, None if row.session_of == tokens.OIDC else row.session_of)
    await audit.record(session, actor, "session.open", row.id, detail=detail)


async def renew(session: AsyncSession, token: str) -> TokenRow | None:
    """Extend the session whose token has this id, but not beyond `LONGEST_S` after its beginning.

    None if that is not a session of an API token.
    """
    row = await tokens.lock_valid(session, token)
    if row.session_of is None or row.session_of == tokens.OIDC:
        return None
    end = _end(await tokens.get(session, row.session_of), await now(session))
    row.expires_at = min(end, row.created_at + timedelta(seconds=LONGEST_S))
    return row


def _end(owner: TokenRow, moment: datetime) -> datetime:
    end = moment + timedelta(seconds=LIFETIME_S)
    return end if owner.expires_at is None else min(end, owner.expires_at)


async def page(session: AsyncSession, window: Window = FIRST, *, subject: str | None = None) -> Page[TokenRow]:
    """One page of the open sessions, of all subjects or of one, newest first."""
    return await by_time(session, select(TokenRow).where(*_open(subject)), TokenRow.created_at, TokenRow.id, window)


async def end(session: AsyncSession, token: str) -> None:
    """End the session whose token has this id, at once. A repeated call does nothing.

    Raises:
        NotFound: There is no such session. An API token is none.
    """
    row = await session.get(TokenRow, token)
    if row is None or row.session_of is None:
        raise NotFound(f"There is no session {token}.", hint="`clonos session ls` lists the open ones.")
    await tokens.revoke(session, token)


async def end_all(session: AsyncSession, subject: str) -> int:
    """End the open sessions of a subject, and return their number. Its API tokens remain, and can open others."""
    opened = list(await session.scalars(select(TokenRow.id).where(*_open(subject)).order_by(TokenRow.id)))
    for token in opened:
        await tokens.revoke(session, token)
    return len(opened)


def _open(subject: str | None) -> Iterator[ColumnElement[bool]]:
    yield TokenRow.session_of.is_not(None)
    yield TokenRow.revoked_at.is_(None)
    yield TokenRow.expires_at > clock()
    if subject is not None:
        yield TokenRow.subject == subject
