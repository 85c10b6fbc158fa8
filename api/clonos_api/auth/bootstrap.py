"""The first token: an admin's, made where there is none, and told only to whoever can read its file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from sqlalchemy import exists, select, text

from clonos.resources.service import Role, TokenCreate
from clonos_api.store import tokens
from clonos_api.store.database import Database
from clonos_api.store.tables import TokenRow

_ANY: Final = select(exists().select_from(TokenRow))


async def bootstrap(database: Database, path: Path) -> bool:
    """Make an admin token and write it to `path`, unless the database has had a token before.

    A token that was revoked counts: whoever revoked all does not get one back by a restart.

    Returns:
        Whether there is a new one.

    Raises:
        OSError: The file cannot be written; then there is no token either.
    """
    async with database.reading() as session:
        if await session.scalar(_ANY):
            return False
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            # Of two replicas that start at once one waits here, and then sees the other's. SQLite has one writer.
            await session.execute(text(f"LOCK TABLE {TokenRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
        if await session.scalar(_ANY):
            return False
        body = TokenCreate(name="bootstrap", role=Role.ADMIN, subject="admin", expires_in_s=None)
        _, secret = await tokens.create(session, body)
        # Before the commit: a token that nobody can read is of no use, and a file without a token does no harm.
        write_private(path, secret + "\n")
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else can read at any moment, in place of what was there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
