"""Errors of databases, by what helps: wait, try again, or change the job, the table or the login."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from sqlalchemy.exc import DBAPIError

from clonos.errors import ClonosError, EpochFailed, RecordRejected, TargetRefused, TargetUnavailable, TargetUnfit


class Kind(Enum):
    """What an error of a database asks for."""

    AWAY = auto()
    """The database does not answer, or has no connection, memory or space left."""
    LOCKED = auto()
    """Another transaction holds a lock."""
    AGAIN = auto()
    """A deadlock or serialisation failure: the same transaction may succeed now."""
    REFUSED = auto()
    """The login or a privilege."""
    UNFIT = auto()
    """The table, or one of its columns or indexes."""
    REJECTED = auto()
    """A value of a row."""
    OTHER = auto()
    """Anything else."""


_STATES: Final = {  # SQLSTATE, or its first two characters: PostgreSQL's appendix of error codes
    "08": Kind.AWAY,
    "21": Kind.REJECTED,
    "22": Kind.REJECTED,
    "23": Kind.REJECTED,
    "25006": Kind.REFUSED,  # a read-only transaction
    "25P03": Kind.AWAY,  # the server ended an idle transaction
    "28": Kind.REFUSED,
    "3D000": Kind.REFUSED,
    "3F000": Kind.UNFIT,
    "40": Kind.AGAIN,
    "42501": Kind.REFUSED,
    "42": Kind.UNFIT,
    "44": Kind.REJECTED,  # the check of a view
    "53": Kind.AWAY,
    "55P03": Kind.LOCKED,
    "57": Kind.AWAY,
    "58": Kind.AWAY,
}
_SQLITE: Final = {
    "SQLITE_BUSY": Kind.LOCKED,
    "SQLITE_LOCKED": Kind.LOCKED,
    "SQLITE_CONSTRAINT": Kind.REJECTED,
    "SQLITE_MISMATCH": Kind.REJECTED,
    "SQLITE_TOOBIG": Kind.REJECTED,
    "SQLITE_CANTOPEN": Kind.AWAY,
    "SQLITE_FULL": Kind.AWAY,
    "SQLITE_IOERR": Kind.AWAY,
    "SQLITE_READONLY": Kind.REFUSED,
    "SQLITE_PERM": Kind.REFUSED,
    "SQLITE_AUTH": Kind.REFUSED,
    "SQLITE_NOTADB": Kind.REFUSED,
    "SQLITE_ERROR": Kind.UNFIT,  # no such table or column
}
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
        return next((_SQLITE[base] for base in (name, "_".join(name.split("_")[:2])) if base in _SQLITE), Kind.OTHER)
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
