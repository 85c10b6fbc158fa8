"""The database's clock. Leases, deadlines and expiries are compared with it alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, cast, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import Float

from clonos_api.store.tables import Utc


class _Clock(FunctionElement[datetime]):
    type = Utc()
    inherit_cache = True
    name = "clock"


@compiles(_Clock, "postgresql")
def _postgresql(element: _Clock, compiler: Any, **options: Any) -> str:
    # Not now(), which is constant within a transaction.
    seconds = compiler.process(element.clauses, **options)
    return f"(clock_timestamp() + make_interval(secs => {seconds}))"


@compiles(_Clock, "sqlite")
def _sqlite(element: _Clock, compiler: Any, **options: Any) -> str:
    # Six digits, as SQLAlchemy writes times: SQLite compares times as text.
    seconds = compiler.process(element.clauses, **options)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', {seconds})) || '000')"


class _Between(FunctionElement[float]):
    type = Float(53)
    inherit_cache = True
    name = "seconds_between"


@compiles(_Between, "postgresql")
def _between_in_postgresql(element: _Between, compiler: Any, **options: Any) -> str:
    earlier, later = (compiler.process(clause, **options) for clause in element.clauses)
    return f"extract(epoch FROM ({later} - {earlier}))"


@compiles(_Between, "sqlite")
def _between_in_sqlite(element: _Between, compiler: Any, **options: Any) -> str:
    earlier, later = (compiler.process(clause, **options) for clause in element.clauses)
    return f"((julianday({later}) - julianday({earlier})) * 86400.0)"


def seconds_between(earlier: Any, later: Any) -> ColumnElement[float]:
    """Return the seconds from one time to another, as an expression within a statement."""
    return _Between(earlier, later)


def clock(plus_s: float | BindParameter[float] = 0.0) -> ColumnElement[datetime]:
    """Return the database's time plus `plus_s` seconds, as an expression within a statement."""
    return _Clock(cast(literal(plus_s) if isinstance(plus_s, float) else plus_s, Float(53)))


_NOW: Final = select(clock())


async def now(session: AsyncSession) -> datetime:
    """Return the database's time; SQLite has a resolution of one millisecond."""
    moment: datetime = (await session.execute(_NOW)).scalar_one()
    return moment.astimezone(UTC)
