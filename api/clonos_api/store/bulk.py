"""Many rows of one table in one statement.

PostgreSQL gets them as one JSON document: what a statement costs on our side does not grow with its rows then. SQLite,
which is in our process, gets them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from sqlalchemy import Executable, Table, and_, bindparam, column, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.selectable import TableValuedAlias

from clonos_api.store.tables import Base

Row = Mapping[str, Any]
_Names = tuple[str, ...]


async def insert_all(
    session: AsyncSession,
    of: type[Base],
    rows: Sequence[Row],
    *,
    keys: _Names = (),
    replace: _Names = (),
    add: _Names = (),
) -> None:
    """Insert rows, all with the same columns.

    Args:
        session: A transaction.
        of: The table.
        rows: The rows; of those with the same `keys` one.
        keys: If there is a row with the same, change that.
        replace: Columns that are then set.
        add: Columns that are then added to.
    """
    if rows:
        await _write(session, _insert, of, rows, keys, replace, add)


async def update_all(
    session: AsyncSession, of: type[Base], rows: Sequence[Row], *, keys: _Names, add: _Names = ()
) -> None:
    """Set the other columns of those rows that have these `keys`, or add to them.

    Args:
        session: A transaction; it should have locked them, for they are changed in no certain order.
        of: The table.
        rows: The rows, all with the same columns; of those with the same `keys` one.
        keys: Columns that say which row.
        add: Columns that are added to.
    """
    if rows:
        await _write(session, _update, of, rows, keys, (), add)


async def _write(
    session: AsyncSession, make: Any, of: type[Base], rows: Sequence[Row], keys: _Names, replace: _Names, add: _Names
) -> None:
    dialect = session.get_bind().dialect.name
    statement = make(dialect, of, tuple(rows[0]), keys, replace, add)
    if dialect == "postgresql":
        await session.execute(
            statement, {"rows": [{name: _json(value) for name, value in row.items()} for row in rows]}
        )
    else:
        await session.execute(statement, [{f"_{name}": value for name, value in row.items()} for row in rows])


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


@cache
def _insert(dialect: str, of: type[Base], columns: _Names, keys: _Names, replace: _Names, add: _Names) -> Executable:
    table = _table(of)
    if dialect == "postgresql":
        given = _given(table, columns)
        new: Any = postgresql.insert(table).from_select(list(columns), select(*(given.c[name] for name in columns)))
    else:
        new = sqlite.insert(table).values({name: _one(table, name) for name in columns})
    if keys:
        set_ = {name: new.excluded[name] for name in replace}
        set_ |= {name: table.c[name] + new.excluded[name] for name in add}
        new = new.on_conflict_do_update(index_elements=list(keys), set_=set_)
    return cast(Executable, new)


@cache
def _update(dialect: str, of: type[Base], columns: _Names, keys: _Names, replace: _Names, add: _Names) -> Executable:
    table = _table(of)
    given = _given(table, columns).c if dialect == "postgresql" else {name: _one(table, name) for name in columns}
    values = {name: table.c[name] + given[name] if name in add else given[name] for name in columns if name not in keys}
    return update(table).values(values).where(and_(*(table.c[name] == given[name] for name in keys)))


def _table(of: type[Base]) -> Table:
    return cast(Table, of.__table__)


def _given(table: Table, columns: _Names) -> TableValuedAlias:
    rows = func.jsonb_to_recordset(bindparam("rows", type_=postgresql.JSONB()))
    return rows.table_valued(*(column(name, table.c[name].type) for name in columns), name="given").render_derived(
        with_types=True
    )


def _one(table: Table, name: str) -> Any:
    return bindparam(f"_{name}", type_=table.c[name].type)
