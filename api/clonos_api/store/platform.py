"""The identity of this control plane, which claims of its drivers have: created once, and kept by backups."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.log.platform_identity import new_platform_id
from clonos_api.store.db.rows import insert_new
from clonos_api.store.tables import PlatformRow

_ONLY: Final = 1


async def identity(session: AsyncSession) -> str:
    """Return the identity of the control plane; all replicas agree on the one that was stored first."""
    query = select(PlatformRow.identity).where(PlatformRow.number == _ONLY)
    stored = (await session.scalars(query)).one_or_none()
    if stored is None:
        await insert_new(session, PlatformRow, number=_ONLY, identity=new_platform_id())
        stored = (await session.scalars(query)).one()
    return stored
