"""Keeps the failure of one job or operation from the others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import ConcurrentUpdate, DatabaseUnavailable

_log = structlog.get_logger("clonos.reconcile")


class Isolated(contextlib.AbstractContextManager["Isolated"]):
    """Logs a failure about one job or operation, so that the others continue."""

    def __init__(self, kind: str, name: str) -> None:
        self._subject = {kind: name}
        self.concurrent = False  # a concurrent change prevented it
        self.failed = False  # it failed for another reason, which was logged

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ConcurrentUpdate):
            self.concurrent = True
            return True
        if error is None or isinstance(error, DatabaseUnavailable) or not isinstance(error, Exception):
            return False
        self.failed = True
        _log.error("not-reconciled", **self._subject, exc_info=error)
        return True


@contextlib.asynccontextmanager
async def isolated_part(session: AsyncSession, kind: str, name: str) -> AsyncIterator[None]:
    """Provide a part of a transaction that is rolled back, and logged, if it fails; the rest continues."""
    with Isolated(kind, name):
        async with session.begin_nested():
            yield
