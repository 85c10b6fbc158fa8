"""Writes many rows of one table in one statement.

PostgreSQL receives the rows as one JSON document, so the client's cost does not grow with the number of rows. It can
receive the rows of several tables in one statement (`together`). SQLite runs in this process and receives rows one at a
time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Executable, Table, and_, bindparam, column, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.selectable import TableValuedAlias

from clonos_api.store.columns import plain
from clonos_api.store.tables import Base, table_of

Row = Mapping[str, Any]
_Names = tuple[str, ...]
_TOGETHER: Final = "clonos.together"


class _Shape(NamedTuple):
    """The form of a write, without its rows."""

    of: type[Base]
    columns: _Names
    keys: _Names
    replace: _Names
    add: _Names
    inserts: bool


@asynccontextmanager
async def together(session: AsyncSession) -> AsyncIterator[None]:
    """On PostgreSQL, write the rows of all calls inside the context at its end, in one statement.

    A second call for a table writes those before it. Reads inside the context do not see rows that are not written.
    """
    if session.get_bind().dialect.name != "postgresql":
        yield
        return
    writes: list[tuple[_Shape, Sequence[Row]]] = session.info.setdefault(_TOGETHER, [])
    try:
        yield
        await _write_joined(session, writes)
    finally:
        del session.info[_TOGETHER]


async def _write_joined(session: AsyncSession, writes: list[tuple[_Shape, Sequence[Row]]]) -> None:
    if writes:
        statement = _joined(tuple(shape for shape, _ in writes))
        await session.execute(statement, {_document(shape): plain(rows) for shape, rows in writes})
        writes.clear()


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
        await _write(session, _Shape(of, tuple(rows[0]), keys, replace, add, inserts=True), rows)


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
        await _write(session, _Shape(of, tuple(rows[0]), keys, (), add, inserts=False), rows)


async def _write(session: AsyncSession, shape: _Shape, rows: Sequence[Row]) -> None:
    dialect = session.get_bind().dialect.name
    if (writes := session.info.get(_TOGETHER)) is not None:
        # PostgreSQL does not order the writes of one statement, and changes a row only once in it.
        if any(shape.of is earlier.of for earlier, _ in writes):
            await _write_joined(session, writes)
        writes.append((shape, rows))
    elif dialect == "postgresql":
        await session.execute(_statement(dialect, shape), {_document(shape): plain(rows)})
    else:
        values = [{f"_{name}": value for name, value in row.items()} for row in rows]
        await session.execute(_statement(dialect, shape), values)


@cache
def _joined(shapes: tuple[_Shape, ...]) -> Executable:
    writes = [_statement("postgresql", shape).cte(f"_{shape.of.__tablename__}") for shape in shapes]
    return select(literal(1)).add_cte(*writes)


@cache
def _statement(dialect: str, shape: _Shape) -> Any:
    return (_insert if shape.inserts else _update)(dialect, shape)


def _insert(dialect: str, shape: _Shape) -> Any:
    table, columns = table_of(shape.of), shape.columns
    if dialect == "postgresql":
        source = _source(shape)
        statement: Any = postgresql.insert(table).from_select(
            list(columns), select(*(source.c[name] for name in columns))
        )
    else:
        statement = sqlite.insert(table).values({name: _parameter(table, name) for name in columns})
    if shape.keys:
        set_ = {name: statement.excluded[name] for name in shape.replace}
        set_ |= {name: table.c[name] + statement.excluded[name] for name in shape.add}
        statement = statement.on_conflict_do_update(index_elements=list(shape.keys), set_=set_)
    return statement


def _update(dialect: str, shape: _Shape) -> Any:
    table, columns = table_of(shape.of), shape.columns
    source = _source(shape).c if dialect == "postgresql" else {name: _parameter(table, name) for name in columns}
    values = {
        name: table.c[name] + source[name] if name in shape.add else source[name]
        for name in columns
        if name not in shape.keys
    }
    return update(table).values(values).where(and_(*(table.c[name] == source[name] for name in shape.keys)))


def _document(shape: _Shape) -> str:
    return f"rows_of_{shape.of.__tablename__}"


def _source(shape: _Shape) -> TableValuedAlias:
    table = table_of(shape.of)
    rows = func.jsonb_to_recordset(bindparam(_document(shape), type_=postgresql.JSONB()))
    columns = (column(name, table.c[name].type) for name in shape.columns)
    return rows.table_valued(*columns, name="source").render_derived(with_types=True)


def _parameter(table: Table, name: str) -> Any:
    return bindparam(f"_{name}", type_=table.c[name].type)
