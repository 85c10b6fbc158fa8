"""Errors of databases, by what helps: wait, try again, or change the job, the table or the login."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from sqlalchemy.exc import DBAPIError

from clonos.errors import ClonosError, EpochFailed, RecordRejected, TargetRefused, TargetUnavailable, TargetUnfit


class Kind(Enum):
    """What an error of a database asks for."""

    AWAY = auto()  # it does not answer, or has no connection, memory or space left
    LOCKED = auto()  # another transaction holds a lock
    AGAIN = auto()  # a deadlock or serialisation failure: the same transaction may succeed now
    REFUSED = auto()  # the login, or a privilege
    UNFIT = auto()  # the table, or one of its columns or indexes
    REJECTED = auto()  # a value of a row
    OTHER = auto()


def _by_code(codes: dict[Kind, str]) -> dict[str, Kind]:
    return {code: kind for kind, names in codes.items() for code in names.split()}


# SQLSTATE, or its first two characters: PostgreSQL's appendix of error codes.
_STATES: Final = _by_code(
    {
        Kind.AWAY: "08 25P03 53 57 58",
        Kind.LOCKED: "55P03",
        Kind.AGAIN: "40",
        Kind.REFUSED: "25006 28 3D 42501",
        Kind.UNFIT: "3F 42",
        Kind.REJECTED: "21 22 23 44",
    }
)
# The result codes of SQLite without their extensions; SQLITE_ERROR is a missing table or column.
_SQLITE: Final = _by_code(
    {
        Kind.AWAY: "SQLITE_CANTOPEN SQLITE_FULL SQLITE_IOERR",
        Kind.LOCKED: "SQLITE_BUSY SQLITE_LOCKED",
        Kind.REFUSED: "SQLITE_AUTH SQLITE_NOTADB SQLITE_PERM SQLITE_READONLY",
        Kind.UNFIT: "SQLITE_ERROR",
        Kind.REJECTED: "SQLITE_CONSTRAINT SQLITE_MISMATCH SQLITE_TOOBIG",
    }
)
_ERRORS: Final[dict[Kind, type[ClonosError]]] = {
    Kind.AWAY: TargetUnavailable,
    Kind.LOCKED: TargetUnavailable,
    Kind.AGAIN: EpochFailed,
    Kind.REFUSED: TargetRefused,
    Kind.UNFIT: TargetUnfit,
    Kind.REJECTED: RecordRejected,
    Kind.OTHER: EpochFailed,
}
# An error while a connection begins has no SQLSTATE in Python.
_LOGIN: Final = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|does not exist|permission denied|certificate"
)


def kind_of(error: DBAPIError) -> Kind:
    """Return what an error asks for."""
    original = error.orig
    if name := getattr(original, "sqlite_errorname", None):
        return _SQLITE.get("_".join(name.split("_")[:2]), Kind.OTHER)
    if state := getattr(original, "sqlstate", None):
        return _STATES.get(state) or _STATES.get(state[:2], Kind.OTHER)
    classes = {cls.__name__ for cls in type(original).__mro__}
    if "DataError" in classes:  # the client refuses a value, such as a text with a zero byte
        return Kind.REJECTED
    if error.connection_invalidated or "OperationalError" in classes:
        return Kind.REFUSED if _LOGIN.search(str(original)) else Kind.AWAY
    return Kind.OTHER


def said(error: DBAPIError) -> str:
    """Return what the database said, without the statement, and without the details, which may hold values of rows."""
    diagnostics = getattr(error.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    column = getattr(diagnostics, "column_name", None)
    text = primary or (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
    return f"{text} (column {column})" if column and column not in text else str(text)


def typed(error: DBAPIError, subject: str, *, hint: str = "") -> ClonosError:
    """Return the typed error; `subject` begins its text, such as ``The sink 'totals'``."""
    return _ERRORS[kind_of(error)](f"{subject}: the database reports {said(error)!r}.", hint=hint)
