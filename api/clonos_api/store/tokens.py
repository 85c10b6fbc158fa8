"""Rows of API tokens. A secret is 32 random bytes, so one round of SHA-256 protects it: it cannot be guessed."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import bindparam, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict, Unauthenticated
from clonos.resources.service import WARNED, WARNED_PARTS, Role, TokenCreate
from clonos_api.store import audit, events
from clonos_api.store.db.clock import clock, now, seconds_between
from clonos_api.store.db.database import Database
from clonos_api.store.db.paging import FIRST, Page, Window, by_time
from clonos_api.store.db.rows import require_row
from clonos_api.store.tables import JobNameRow, JobRow, OwnerRow, TokenRow

PREFIX: Final = "clonos"
OIDC: Final = "oidc"  # in `session_of`, where the id of a token has another form
_USED_S: Final = 60.0
_IN_USE_S: Final = 7 * 86_400.0
EXPIRING_NAMED: Final = 20
_NO_DIGEST: Final = bytes(32)
_SECRET: Final = re.compile("(?:[0-9a-f]{2})+")  # one spelling: `bytes.fromhex` ignores spaces and case
_STALE_USE: Final = or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < clock(-_USED_S))
# Built once: each request executes it.
_BY_ID: Final = select(TokenRow, or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > clock()), _STALE_USE).where(
    TokenRow.id == bindparam("token"), TokenRow.revoked_at.is_(None)
)


async def lock_valid(session: AsyncSession, token: str) -> TokenRow:
    """Lock the token of a caller until the transaction ends, and return its row, which is valid now.

    Each function that creates or extends a credential for a caller calls this: since the request was authenticated, the
    token may have been revoked. `revoke` waits for the lock, and then also revokes the sessions that were opened.

    Args:
        session: The transaction.
        token: Id of the caller's token. If it belongs to a session, its API token is locked too.

    Raises:
        NotFound: There is no such token.
        Unauthenticated: The token, or the API token of the session, has expired or was revoked.
    """
    parent = (await get(session, token)).session_of
    if parent is not None and parent != OIDC:
        await _lock_valid(session, parent)  # first, as `revoke` does, against deadlocks
    return await _lock_valid(session, token)


async def _lock_valid(session: AsyncSession, token: str) -> TokenRow:
    # SQLite has no row locks: a transaction that may write begins with the lock of the whole database.
    row = await session.get(TokenRow, token, populate_existing=True, with_for_update=True)
    expired = row is not None and row.expires_at is not None and row.expires_at <= await now(session)
    if row is None or row.revoked_at is not None or expired:
        raise Unauthenticated("The token is not valid.", hint="it has expired or was revoked: use another one.")
    return row


async def create(session: AsyncSession, body: TokenCreate, *, caller: str | None = None) -> tuple[TokenRow, str]:
    """Create an API token; return its row, and the token's text, which is not stored.

    Events and audit entries contain the token's id, never its text.

    Args:
        session: The transaction.
        body: The name, role and lifetime of the token.
        caller: Id of the token that requested it; None if no token was needed, or `lock_valid` was called.

    Raises:
        StateConflict: A token of a user would get a subject that has tokens or jobs only because its name is the same.
        Unauthenticated: The caller's token is no longer valid.
    """
    if caller is not None:
        await lock_valid(session, caller)
    if body.subject is None and body.role in (Role.OPERATOR, Role.ADMIN):
        await _check_name_is_no_subject(session, body.name)
    moment = await now(session)
    row, text = await insert(
        session,
        name=body.name,
        role=body.role,
        subject=body.subject or body.name,
        host=body.host,
        created_at=moment,
        expires_at=None if body.expires_in_s is None else moment + timedelta(seconds=body.expires_in_s),
    )
    data = {"token": row.id, "name": row.name, "role": row.role, "subject": row.subject}
    events.append(session, "token.created", data=data)
    await audit.asked(session, "token.create", row.id, name=row.name, role=row.role, subject=row.subject)
    return row, text


async def _check_name_is_no_subject(session: AsyncSession, name: str) -> None:
    # Jobs and their names outlive the tokens of their owner, which retention deletes.
    owned = select(
        or_(
            exists().where(TokenRow.subject == name, TokenRow.session_of.is_(None)),
            exists().where(JobRow.created_by == name),
            exists().where(JobNameRow.subject == name),
            exists().where(OwnerRow.subject == name),
        )
    )
    if await session.scalar(owned):
        raise StateConflict(
            f"The subject {name!r} has, or had, tokens or jobs, and the tokens of a subject share its jobs.",
            kept="no token was created.",
            hint="give the subject, to share the jobs, or another name.",
        )


async def insert(session: AsyncSession, **columns: Any) -> tuple[TokenRow, str]:
    """Insert a row with a new secret; return it and the token's text."""
    created, text = new_secret()
    row = TokenRow(**created, **columns)
    session.add(row)
    await session.flush()
    return row, text


def new_secret() -> tuple[dict[str, Any], str]:
    """Return a new token: the columns ``id`` and ``digest`` of its row, and its text."""
    secret, id = secrets.token_bytes(32), secrets.token_hex(8)
    return {"id": id, "digest": _digest(secret)}, f"{PREFIX}_{id}_{secret.hex()}"


def parse(presented: str) -> tuple[str, bytes] | None:
    """Return the id of a token, and the hash of its secret; None if it does not have the form of a token."""
    prefix, id, secret = [*presented.split("_", 2), "", ""][:3]
    if not (prefix == PREFIX and id.isalnum() and id.isascii()):
        return None
    try:
        return (id, _digest(bytes.fromhex(secret))) if _SECRET.fullmatch(secret) else None
    except ValueError:
        return None


@dataclass(frozen=True)
class Expiring:
    """The API tokens in use that expire soon (`warned_within`) and are not replaced yet."""

    count: int = 0  # their number
    first: tuple[ExpiringToken, ...] = ()  # the `EXPIRING_NAMED` that expire first, in this order


@dataclass(frozen=True)
class ExpiringToken:
    """An API token in use that expires soon."""

    id: str
    name: str
    role: str
    host: str | None  # of an agent
    created_at: datetime
    expires_at: datetime

    @property
    def sentence(self) -> str:
        """When it expires, and what then happens."""
        whose = f"of the agent of {self.host}" if self.host else f"{self.name} ({self.role})"
        then = f"{self.host} is then lost" if self.host else "its requests are then refused"
        return f"The token {whose} expires at {self.expires_at:%Y-%m-%d %H:%M} UTC: {then}."


async def expiring(session: AsyncSession) -> Expiring:
    """Return the API tokens in use that expire soon and are not replaced. A token is in use if a request had it in a
    week.
    """
    left_s, lifetime_s = (seconds_between(since, TokenRow.expires_at) for since in (clock(), TokenRow.created_at))
    columns = (TokenRow.id, TokenRow.name, TokenRow.role, TokenRow.host, TokenRow.created_at, TokenRow.expires_at)
    query = select(func.count().over(), *columns).where(
        TokenRow.session_of.is_(None),
        TokenRow.revoked_at.is_(None),
        TokenRow.replaced_by.is_(None),
        TokenRow.expires_at > clock(),
        TokenRow.expires_at < clock(WARNED.total_seconds()),
        left_s < lifetime_s / WARNED_PARTS,
        TokenRow.last_used_at > clock(-_IN_USE_S),
    )
    count, first = 0, list[ExpiringToken]()
    for row in await session.execute(query.order_by(TokenRow.expires_at, TokenRow.id).limit(EXPIRING_NAMED)):
        total, id, name, role, host, created_at, expires_at = row
        assert expires_at is not None  # it is after now
        count = total
        first.append(ExpiringToken(id, name, role, host, created_at, expires_at))
    return Expiring(count, tuple(first))


async def digests(database: Database) -> dict[str, bytes]:
    """Return the hash of each token's secret by the token's id, of the tokens that are valid now."""
    valid = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > clock())
    query = select(TokenRow.id, TokenRow.digest).where(TokenRow.revoked_at.is_(None), valid)
    async with database.reading() as session:
        return {row.id: row.digest for row in await session.execute(query)}


async def authenticate(database: Database, presented: str) -> TokenRow | None:
    """Return the row of the token whose text is `presented`, if the token is valid now by the database's clock; else
    None.
    """
    id, digest = parse(presented) or ("", _NO_DIGEST)
    async with database.reading() as session:
        rows = await session.execute(_BY_ID, {"token": id})
        row, valid_now, stale_use = rows.one_or_none() or (None, False, False)
    # Always compared, so that the response time does not reveal valid ids.
    same = hmac.compare_digest(digest, row.digest if row is not None else _NO_DIGEST)
    if row is None or not same or not valid_now or digest == _NO_DIGEST:
        return None
    if stale_use:
        statement = update(TokenRow).where(TokenRow.id == id, _STALE_USE).values(last_used_at=clock())
        statement = statement.execution_options(synchronize_session=False)
        database.soon(f"use of token {id}", lambda session: session.execute(statement))
    return row


async def rotate(
    session: AsyncSession, token: str, *, overlap_s: float = 0.0, renewal: bool = False
) -> tuple[TokenRow, str]:
    """Replace a token by a new one with the same rights and lifetime; return as `create` does.

    The old token is revoked, or expires after `overlap_s` seconds, with the sessions that it opened. A token is
    replaced once: otherwise a copy of the old one could replace itself during the overlap, and outlive it.

    `renewal`: an agent replaces its own token. It revokes and replaces again a token of an earlier renewal that nobody
    has used, because the agent crashed before it was stored. A token that a person made stays.
    """
    old = await lock_valid(session, token)
    if old.session_of is not None:
        raise StateConflict("A browser's session has no token to replace.", hint="send the API token itself.")
    like = old
    if old.replaced_by is not None:
        lost = await _revoke_unused(session, old.replaced_by) if renewal and old.role == Role.AGENT else None
        if lost is None:
            raise StateConflict(
                f"Token {token} was already replaced, by token {old.replaced_by}.",
                kept="no token was created.",
                hint="rotate the new token, or revoke this one.",
            )
        like = lost  # the first rotation has shortened the lifetime of the old token
    lifetime = None if like.expires_at is None else max(1, round((like.expires_at - like.created_at).total_seconds()))
    body = TokenCreate(name=old.name, role=Role(old.role), subject=old.subject, host=old.host, expires_in_s=lifetime)
    created = await create(session, body)
    created[0].renewed = renewal
    old.replaced_by = created[0].id
    await session.flush()
    await audit.asked(session, "token.rotate", token, name=old.name, replaced_by=old.replaced_by, overlap_s=overlap_s)
    if overlap_s > 0:
        await _expire(session, token, await now(session) + timedelta(seconds=overlap_s))
    else:
        # Not `revoke`, which locks the tokens of all admins: two admins that rotate could wait for each other.
        await _revoke(session, token)
    return created


async def _revoke_unused(session: AsyncSession, token: str) -> TokenRow | None:
    row = await session.get(TokenRow, token, populate_existing=True, with_for_update=True)
    unused = row is not None and row.renewed and row.last_used_at is None and row.revoked_at is None
    return await _revoke(session, token) if unused else None


async def _expire(session: AsyncSession, token: str, at: datetime) -> None:
    """Let a token and its sessions expire at a time, unless they expire earlier."""
    later = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > at)
    statement = update(TokenRow).where(or_(TokenRow.id == token, TokenRow.session_of == token), later)
    await session.execute(statement.values(expires_at=at).execution_options(synchronize_session=False))
    await audit.asked(session, "token.expire", token, at=at.isoformat())


async def revoke(session: AsyncSession, token: str) -> TokenRow:
    """Revoke a token and its sessions. A repeated call does nothing. The update waits for the lock of `lock_valid`.

    Raises:
        StateConflict: Without the token, no valid token of an admin would be left.
    """
    row = await get(session, token)
    if row.role == Role.ADMIN and row.revoked_at is None and row.session_of is None:
        await _require_another_admin(session, token)
    return await _revoke(session, token) or row


async def _revoke(session: AsyncSession, token: str) -> TokenRow | None:
    """Revoke a token and its sessions; None if it was revoked."""
    statement = (
        update(TokenRow)
        .where(TokenRow.id == token, TokenRow.revoked_at.is_(None))
        .values(revoked_at=clock())
        .returning(TokenRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    changed = (await session.scalars(statement)).one_or_none()
    if changed is None:
        return None
    events.append(session, "token.revoked", data={"token": changed.id, "name": changed.name})
    action = "token.revoke" if changed.session_of is None else "session.end"
    await audit.asked(session, action, changed.id, name=changed.name, subject=changed.subject)
    for opened in await session.scalars(
        select(TokenRow.id).where(TokenRow.session_of == token, TokenRow.revoked_at.is_(None))
    ):
        await _revoke(session, opened)
    return changed


async def _require_another_admin(session: AsyncSession, token: str) -> None:
    valid = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > clock())
    query = select(TokenRow.id).where(
        TokenRow.role == Role.ADMIN, TokenRow.revoked_at.is_(None), TokenRow.session_of.is_(None), valid
    )
    # The lock: two admins may revoke each other's tokens at the same time.
    others = set(await session.scalars(query.order_by(TokenRow.id).with_for_update())) - {token}
    if not others:
        raise StateConflict(
            f"Token {token} is the last valid token of an admin.", hint="create another one first, or rotate this one."
        )


async def get(session: AsyncSession, token: str) -> TokenRow:
    """Return the row of a token, by its id."""
    return require_row(await session.get(TokenRow, token, populate_existing=True), f"token {token}")


async def page(session: AsyncSession, window: Window = FIRST) -> Page[TokenRow]:
    """One page of API tokens, newest first, including expired and revoked ones, but without sessions of browsers."""
    query = select(TokenRow).where(TokenRow.session_of.is_(None))
    return await by_time(session, query, TokenRow.created_at, TokenRow.id, window)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
