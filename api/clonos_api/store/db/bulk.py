"""Writes many rows of one table in one statement.

PostgreSQL receives the rows as one JSON document, so the client's cost does not grow with the number of rows. SQLite
runs in this process and receives them one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import Executable, Table, and_, bindparam, column, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.selectable import TableValuedAlias

from clonos_api.store.columns import plain
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
    """Insert rows, all with the same columns, in one statement; update those that exist.

    Args:
        session: A transaction.
        of: The table.
        rows: The rows; at most one for each combination of `keys`.
        keys: Columns that identify a row; an existing row with the same values is updated.
        replace: Columns that the update sets.
        add: Columns that the update increments.
    """
    if rows:
        await _write(session, _insert, of, rows, keys, replace, add)


async def update_all(
    session: AsyncSession, of: type[Base], rows: Sequence[Row], *, keys: _Names, add: _Names = ()
) -> None:
    """Update the rows that have these `keys`.

    Args:
        session: A transaction that has locked the rows; the order of the updates is undefined.
        of: The table.
        rows: The rows, all with the same columns; at most one for each combination of `keys`.
        keys: Columns that identify a row.
        add: Columns that are incremented; the others are set.
    """
    if rows:
        await _write(session, _update, of, rows, keys, (), add)


async def _write(
    session: AsyncSession, make: Any, of: type[Base], rows: Sequence[Row], keys: _Names, replace: _Names, add: _Names
) -> None:
    dialect = session.get_bind().dialect.name
    statement = make(dialect, of, tuple(rows[0]), keys, replace, add)
    if dialect == "postgresql":
        await session.execute(statement, {"rows": plain(rows)})
    else:
        await session.execute(statement, [{f"_{name}": value for name, value in row.items()} for row in rows])


@cache
def _insert(dialect: str, of: type[Base], columns: _Names, keys: _Names, replace: _Names, add: _Names) -> Executable:
    table = _table(of)
    if dialect == "postgresql":
        source = _source(table, columns)
        statement: Any = postgresql.insert(table).from_select(
            list(columns), select(*(source.c[name] for name in columns))
        )
    else:
        statement = sqlite.insert(table).values({name: _parameter(table, name) for name in columns})
    if keys:
        set_ = {name: statement.excluded[name] for name in replace}
        set_ |= {name: table.c[name] + statement.excluded[name] for name in add}
        statement = statement.on_conflict_do_update(index_elements=list(keys), set_=set_)
    return cast(Executable, statement)


@cache
def _update(dialect: str, of: type[Base], columns: _Names, keys: _Names, replace: _Names, add: _Names) -> Executable:
    table = _table(of)
    source = (
        _source(table, columns).c if dialect == "postgresql" else {name: _parameter(table, name) for name in columns}
    )
    values = {
        name: table.c[name] + source[name] if name in add else source[name] for name in columns if name not in keys
    }
    return update(table).values(values).where(and_(*(table.c[name] == source[name] for name in keys)))


def _table(of: type[Base]) -> Table:
    return cast(Table, of.__table__)


def _source(table: Table, columns: _Names) -> TableValuedAlias:
    rows = func.jsonb_to_recordset(bindparam("rows", type_=postgresql.JSONB()))
    return rows.table_valued(*(column(name, table.c[name].type) for name in columns), name="source").render_derived(
        with_types=True
    )


def _parameter(table: Table, name: str) -> Any:
    return bindparam(f"_{name}", type_=table.c[name].type)
