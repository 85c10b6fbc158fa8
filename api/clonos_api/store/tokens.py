"""Tokens. A secret is 32 random bytes, so one round of SHA-256 keeps it: there is nothing to guess."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta
from typing import Final

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import TokenCreate
from clonos_api.store import audit, events
from clonos_api.store.clock import clock, now
from clonos_api.store.database import Database
from clonos_api.store.paging import DEFAULT, Page, by_time
from clonos_api.store.rows import found
from clonos_api.store.tables import TokenRow

PREFIX: Final = "clonos"
_USED_S: Final = 60.0
_NOBODY: Final = bytes(32)


async def create(session: AsyncSession, body: TokenCreate) -> tuple[TokenRow, str]:
    """A new token: its row, and its text, which nobody can tell again.

    Events and audit name its id, never its text.
    """
    secret = secrets.token_bytes(32)
    moment = await now(session)
    row = TokenRow(
        id=secrets.token_hex(8),
        name=body.name,
        digest=_digest(secret),
        role=body.role,
        subject=body.subject or body.name,
        agent=body.agent,
        created_at=moment,
        expires_at=None if body.expires_in_s is None else moment + timedelta(seconds=body.expires_in_s),
    )
    session.add(row)
    await session.flush()
    data = {"token": row.id, "name": row.name, "role": row.role, "subject": row.subject}
    events.append(session, "token.created", data=data)
    await audit.asked(session, "token.create", row.id, name=row.name, role=row.role, subject=row.subject)
    return row, f"{PREFIX}_{row.id}_{secret.hex()}"


async def authenticate(database: Database, presented: str) -> TokenRow | None:
    """The token whose text this is, if it is valid now by the database's clock."""
    prefix, id, secret = [*presented.split("_", 2), "", ""][:3]
    try:
        digest = _digest(bytes.fromhex(secret))
    except ValueError:
        digest = _NOBODY
    if not (prefix == PREFIX and id.isalnum() and id.isascii()):
        id = ""
    valid = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > clock())
    used = or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < clock(-_USED_S))
    async with database.reading() as session:
        query = select(TokenRow, valid, used).where(TokenRow.id == id, TokenRow.revoked_at.is_(None))
        row, alive, unnoted = (await session.execute(query)).one_or_none() or (None, False, False)
    # Always compared, so that time does not tell which ids there are.
    same = hmac.compare_digest(digest, row.digest if row is not None else _NOBODY)
    if row is None or not same or not alive or digest == _NOBODY:
        return None
    if unnoted:
        async with database.transaction() as session:
            statement = update(TokenRow).where(TokenRow.id == id, used).values(last_used_at=clock())
            await session.execute(statement.execution_options(synchronize_session=False))
    return row


async def revoke(session: AsyncSession, token: str) -> TokenRow:
    """End a token; again does nothing.

    Raises:
        NotFound: There is none.
    """
    row = await get(session, token)
    statement = (
        update(TokenRow)
        .where(TokenRow.id == token, TokenRow.revoked_at.is_(None))
        .values(revoked_at=clock())
        .returning(TokenRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    changed = (await session.scalars(statement)).one_or_none()
    if changed is None:
        return row
    events.append(session, "token.revoked", data={"token": changed.id, "name": changed.name})
    await audit.asked(session, "token.revoke", changed.id, name=changed.name)
    return changed


async def get(session: AsyncSession, token: str) -> TokenRow:
    """A token by its id.

    Raises:
        NotFound: There is none.
    """
    return found(await session.get(TokenRow, token, populate_existing=True), f"token {token}")


async def page(session: AsyncSession, *, limit: int = DEFAULT, starting_after: str | None = None) -> Page[TokenRow]:
    """Tokens, newest first; those that are over too."""
    return await by_time(
        session, select(TokenRow), TokenRow.created_at, TokenRow.id, limit=limit, starting_after=starting_after
    )


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
