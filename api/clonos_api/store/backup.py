"""Backups of the control plane's database, also of a running one.

A backup is a directory with two files:

- ``control-plane.db``: all tables, as an SQLite file, also if the control plane uses PostgreSQL. So a backup is
  restored to either, and needs no program of PostgreSQL's release.
- ``manifest.json``: a `Manifest`, with the SHA-256 of the first file.

Both show one moment: SQLite's online backup, or one REPEATABLE READ transaction of PostgreSQL. All functions are
synchronous.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Table, create_engine, func, select, type_coerce
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from clonos.errors import BackupDamaged, NotFound, StateConflict
from clonos.private_folders import create_private, write_private
from clonos_api.store.columns import JobFigures, Json
from clonos_api.store.db import schema
from clonos_api.store.tables import Base, JobRow, SavepointRow

DATABASE_FILE: Final = "control-plane.db"
MANIFEST_FILE: Final = "manifest.json"
_ROWS_AT_ONCE: Final = 100  # of a large artifact half a megabyte each


class JobPosition(BaseModel):
    """What the database knew of a job's progress at the moment of the backup.

    Kafka and the checkpoint know more: the causal log decides where the job continues.
    """

    name: str  # the job's name
    state: str  # its state
    desired_state: str  # the state that a user requested
    generation: int  # newest claim; 0 before the first
    epochs: dict[str, int]  # query → newest finished epoch
    checkpoint: str | None  # location in the specification; None: ``jobs/<name>`` in the ``CLONOS_HOME`` of its host


class SavepointCopy(BaseModel):
    """A savepoint that the database names; its files are not in the backup."""

    job: str
    name: str
    location: str


class Manifest(BaseModel):
    """The content of a backup."""

    format: Literal[1] = 1  # version of the backup's format
    created_at: datetime  # time of the backup
    clonos: str  # version of Clonos that wrote it
    revision: str  # revision of the tables
    source: Literal["sqlite", "postgresql"]  # kind of the database that was copied
    sha256: str  # SHA-256 of the database file, hexadecimal
    rows: dict[str, int]  # table → number of rows
    jobs: list[JobPosition]  # positions of the jobs that are not deleted
    savepoints: list[SavepointCopy]  # the completed savepoints


def create(url: str, directory: Path) -> Manifest:
    """Write a backup of the database `url` to a new directory with mode 0700.

    The directory appears when the backup is complete.

    Raises:
        StateConflict: The directory exists, or the tables do not have the revision of this version of Clonos.
        NotFound: There is no such SQLite file.
        DatabaseUnavailable: The database does not answer.
    """
    if directory.exists():
        raise StateConflict(f"{directory} exists.", kept="nothing was written.", hint="name a new directory.")
    _require_current(url)
    create_private(directory.parent)
    draft = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700)
    try:
        file = draft / DATABASE_FILE
        file.touch(mode=0o600)
        if _is_sqlite(url):
            _copy_sqlite(make_url(url).database or "", file)
        else:
            _copy_postgresql(url, file)
        manifest = _describe(file, "sqlite" if _is_sqlite(url) else "postgresql")
        write_private(draft / MANIFEST_FILE, manifest.model_dump_json(indent=2))
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of the backup in `directory`, after a check of the database file's SHA-256.

    Raises:
        BackupDamaged: A file is missing or changed, or a newer version of Clonos wrote the backup.
    """
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST_FILE).read_bytes())
        digest = _digest(directory / DATABASE_FILE)
    except OSError as error:
        raise BackupDamaged(f"{directory} is not a backup: {error.strerror} ({error.filename}).") from error
    except ValidationError as error:
        raise BackupDamaged(
            f"{directory / MANIFEST_FILE} is not a manifest that this version of Clonos reads."
        ) from error
    if digest != manifest.sha256:
        raise BackupDamaged(f"{directory / DATABASE_FILE} has changed since the backup.")
    return manifest


def sqlite_url(file: Path) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite+aiosqlite:///{file}"


@contextmanager
def opened(file: Path) -> Iterator[Connection]:
    """Provide a transaction on the copy of a database, which keeps the file's mode and checks no foreign keys."""
    engine = create_engine(f"sqlite:///{file}", poolclass=NullPool)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy the rows of all tables, parents first, into empty tables of the same revision."""
    for table in Base.metadata.sorted_tables:
        # JSON as it is: a copy keeps what this version cannot read.
        columns = [
            type_coerce(column, column.type.impl_instance).label(column.name)
            if isinstance(column.type, Json)
            else column
            for column in table.columns
        ]
        reading = source.execute(select(*columns), execution_options={"yield_per": _ROWS_AT_ONCE})
        for rows in reading.mappings().partitions():
            target.execute(table.insert(), [dict(row) for row in rows])


def _require_current(url: str) -> None:
    if _is_sqlite(url) and not Path(make_url(url).database or "").is_file():
        raise NotFound(f"There is no database at {make_url(url).database}.")
    revision = schema.current(url)
    if revision != schema.newest():
        raise StateConflict(
            f"The database's tables have the revision {revision or 'none'}, and this version of Clonos writes backups "
            f"of revision {schema.newest()}.",
            kept="nothing was written.",
            hint="use the version of Clonos that runs the control plane.",
        )


def _is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def _copy_sqlite(source: str, file: Path) -> None:
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(file)) as copy:
        live.backup(copy)  # in one step: writers wait for nothing, and the copy has no half of a transaction


def _copy_postgresql(url: str, file: Path) -> None:
    schema.upgrade(sqlite_url(file))
    source = schema.engine_of(url)
    try:
        snapshot = source.execution_options(isolation_level="REPEATABLE READ")
        with snapshot.begin() as live, opened(file) as copy:
            copy_rows(live, copy)
    finally:
        source.dispose()


def _describe(file: Path, source: Literal["sqlite", "postgresql"]) -> Manifest:
    """Return the manifest of a copied database; raise `BackupDamaged` if SQLite finds it inconsistent."""
    with closing(sqlite3.connect(file)) as copy:
        problems = [text for (text,) in copy.execute("PRAGMA integrity_check") if text != "ok"]
        if problems or copy.execute("PRAGMA foreign_key_check").fetchone():
            raise BackupDamaged(
                f"The database is damaged: {problems[0] if problems else 'rows without their parents'}.",
                kept="no backup was written.",
                hint="restore the last backup, or run sqlite3 FILE .recover.",
            )
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    with opened(file) as connection:
        rows = {name: _count(connection, table) for name, table in sorted(Base.metadata.tables.items())}
        positions, savepoints = _positions(connection), _savepoints(connection)
    return Manifest(
        created_at=datetime.now(UTC),
        clonos=version("clonos"),
        revision=schema.newest(),
        source=source,
        sha256=_digest(file),
        rows=rows,
        jobs=positions,
        savepoints=savepoints,
    )


def _count(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _positions(connection: Connection) -> list[JobPosition]:
    columns = (JobRow.name, JobRow.state, JobRow.desired_state, JobRow.generation, JobRow.metrics, JobRow.spec)
    rows = connection.execute(select(*columns).where(JobRow.deleted_at.is_(None)).order_by(JobRow.name))
    return [
        JobPosition(
            name=row.name,
            state=row.state,
            desired_state=row.desired_state,
            generation=row.generation,
            epochs=_epochs(row.metrics or JobFigures()),
            checkpoint=row.spec.spec.checkpoint,
        )
        for row in rows
    ]


def _epochs(figures: JobFigures) -> dict[str, int]:
    return {name: query.epoch for name, query in figures.queries.items()}


def _savepoints(connection: Connection) -> list[SavepointCopy]:
    columns = (SavepointRow.job_name, SavepointRow.name, SavepointRow.location)
    rows = connection.execute(select(*columns).where(SavepointRow.state == "COMPLETED").order_by(SavepointRow.id))
    return [SavepointCopy(job=row.job_name, name=row.name, location=row.location) for row in rows]


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
