"""Creates the first admin token in a file that only its owner can read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import exists, select, text

from clonos.private_folders import create_private, write_private
from clonos.resources.service import Role, TokenCreate
from clonos_api.store import tokens
from clonos_api.store.db.database import Database
from clonos_api.store.tables import TokenRow

_ANY: Final = select(exists().select_from(TokenRow))


async def bootstrap(database: Database, path: Path) -> bool:
    """Create an admin token and write it to `path`, unless the database has a token; return whether it was created.

    Revoked tokens count, so a restart never replaces a revoked token. If the file cannot be written, no token is
    created.
    """
    async with database.reading() as session:
        if await session.scalar(_ANY):
            return False
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            # Of two replicas that start at once the second waits here and then finds the token. SQLite has one writer.
            await session.execute(text(f"LOCK TABLE {TokenRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
        if await session.scalar(_ANY):
            return False
        body = TokenCreate(name="bootstrap", role=Role.ADMIN, subject="admin", expires_in_s=None)
        _, secret = await tokens.create(session, body)
        # Before the commit: a file without a token is harmless, but a token without its file would be lost.
        create_private(path.parent)
        write_private(path, secret)
    return True
