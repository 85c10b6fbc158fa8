"""The table of a sink: what it has, whether the sink's rows fit, and the DDL that is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import DataType, DecimalType
from sqlalchemy import Connection as Session
from sqlalchemy import inspect, types
from sqlalchemy.exc import NoSuchTableError

from clonos.errors import TargetRefused, TargetUnfit
from clonos_sinks.sql.databases import Database

_NUMBERS: Final = (types.Numeric, types.Float, types.String)
# Spark's type → the types of columns that take it, and its type in DDL. Columns of other kinds take a string.
_TYPES: Final[dict[str, tuple[tuple[type[Any], ...], str]]] = {
    "boolean": ((types.Boolean, types.String), "BOOLEAN"),
    "tinyint": ((types.Integer, *_NUMBERS), "SMALLINT"),
    "smallint": ((types.Integer, *_NUMBERS), "SMALLINT"),
    "int": ((types.Integer, *_NUMBERS), "INTEGER"),
    "bigint": ((types.Integer, *_NUMBERS), "BIGINT"),
    "float": (_NUMBERS, "REAL"),
    "double": (_NUMBERS, "DOUBLE PRECISION"),
    "decimal": (_NUMBERS, "DECIMAL"),
    "date": ((types.Date, types.DateTime, types.String), "DATE"),
    "timestamp": ((types.DateTime, types.String), "TIMESTAMP WITH TIME ZONE"),
    "timestamp_ntz": ((types.DateTime, types.String), "TIMESTAMP"),
    "binary": ((types.LargeBinary,), "BYTEA"),
}
_NOT_FOR_STRINGS: Final = (
    types.Integer,
    types.Numeric,
    types.Float,
    types.Boolean,
    types.Date,
    types.DateTime,
    types.LargeBinary,
)


def base_name(kind: DataType) -> str:
    """Return the name of a type without its sizes."""
    return kind.simpleString().partition("(")[0].partition("<")[0]


WRITABLE: Final = frozenset({*_TYPES, "string", "char", "varchar", "array", "map", "struct", "variant"})


@dataclass(frozen=True)
class Target:
    """A table as the sink names it."""

    database: Database
    name: str
    """Name, with the schema before a dot if it is not the default one."""
    key: Sequence[str]
    """Columns of the key; empty: the sink inserts."""

    @property
    def schema(self) -> str | None:
        """The schema; None: the default one."""
        return self.name.rpartition(".")[0] or None

    @property
    def plain(self) -> str:
        """The name without the schema."""
        return self.name.rpartition(".")[2]

    @property
    def quoted(self) -> str:
        """The name in statements."""
        quote = self.database.engine.dialect.identifier_preparer.quote
        return ".".join(quote(part) for part in (self.schema, self.plain) if part)

    def check(self, session: Session, rows: Mapping[str, DataType] | None, optional: frozenset[str]) -> dict[str, str]:
        """Check the table, and return the types of its columns in casts.

        Args:
            session: A session.
            rows: The columns of the sink's rows; None: unknown, and not checked.
            optional: Columns of the rows that the table may lack.

        Raises:
            TargetUnfit: The table is missing, or does not fit. The hint has the DDL.
            TargetRefused: The user lacks a privilege.
        """
        inspector = inspect(session)
        try:
            columns = {column["name"]: column for column in inspector.get_columns(self.plain, self.schema)}
        except NoSuchTableError as error:
            kept = {name: kind for name, kind in (rows or {}).items() if name not in optional}
            raise self._unfit("does not exist", self._create(kept)) from error
        rows = {name: kind for name, kind in (rows or {}).items() if name in columns or name not in optional}
        if missing := [name for name in rows if name not in columns]:
            added = (f"ALTER TABLE {self.quoted} ADD COLUMN {self._column(name, rows[name])};" for name in missing)
            raise self._unfit(f"has no column {', '.join(missing)}", *added)
        for name, kind in rows.items():
            if not (self.database.is_file or _takes(columns[name]["type"], kind)):
                what = f"has the column {name} of type {columns[name]['type']}, and the rows have {kind.simpleString()}"
                raise self._unfit(what)
        required = [
            name
            for name, column in columns.items()
            if not (column["nullable"] or column["default"] or column.get("identity") or column.get("computed"))
        ]
        if rows and (lacking := set(required) - set(rows)):
            raise self._unfit(f"requires the column {', '.join(sorted(lacking))}, which the rows do not have")
        if self.key and not self._is_unique(session):
            quote = self.database.engine.dialect.identifier_preparer.quote
            index = f"CREATE UNIQUE INDEX ON {self.quoted} ({', '.join(map(quote, self.key))});"
            if self.database.is_file:
                index = index.replace(" ON ", f" {quote(f'{self.plain}_key')} ON ", 1)
            raise self._unfit(f"has no primary key or unique index on exactly {', '.join(self.key)}", index)
        needed = ("SELECT", "INSERT", "UPDATE", "DELETE") if self.key else ("INSERT",)
        if lacking_rights := self.database.missing_privileges(session, self.quoted, needed):
            raise TargetRefused(
                f"The user of the database has no {', '.join(lacking_rights)} on the table {self.name}.",
                hint=f"GRANT {', '.join(lacking_rights)} ON {self.quoted} TO {session.engine.url.username};",
            )
        return self.database.cast_types(session, inspector, self.plain, self.schema)

    def _is_unique(self, session: Session) -> bool:
        inspector, where = inspect(session), (self.plain, self.schema)
        unique = [inspector.get_pk_constraint(*where)["constrained_columns"]]
        unique += [constraint["column_names"] for constraint in inspector.get_unique_constraints(*where)]
        for index in inspector.get_indexes(*where):
            partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
            if index["unique"] and not partial and not index.get("expressions"):
                unique.append([str(name) for name in index["column_names"]])
        return any(set(columns) == set(self.key) for columns in unique)

    def _create(self, rows: Mapping[str, DataType]) -> str:
        if not rows:
            return ""
        quote = self.database.engine.dialect.identifier_preparer.quote
        parts = [self._column(name, kind) for name, kind in rows.items()]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, self.key))})")
        return f"CREATE TABLE {self.quoted} ({', '.join(parts)});"

    def _column(self, name: str, kind: DataType) -> str:
        known = _TYPES.get(base_name(kind), ((), "TEXT"))[1]
        sized = f"DECIMAL({kind.precision}, {kind.scale})" if isinstance(kind, DecimalType) else known
        return f"{self.database.engine.dialect.identifier_preparer.quote(name)} {sized}"

    def _unfit(self, what: str, *ddl: str) -> TargetUnfit:
        statements = " ".join(filter(None, ddl))
        hint = f"change the job, or the table: {statements}" if statements else "change the job, or the table."
        return TargetUnfit(f"The table {self.name} {what}.", kept="nothing was started.", hint=hint)


def _takes(column: object, kind: DataType) -> bool:
    known = _TYPES.get(base_name(kind))
    if known is None:
        return not isinstance(column, _NOT_FOR_STRINGS)
    return isinstance(column, (*known[0], types.NullType))
