"""Restores a backup into an empty database, SQLite or PostgreSQL. No job starts, and no old token is valid.

The control plane of the backup may still run, its agents may run other drivers now, and a token may have been revoked
since. Therefore, in the restored database:

- no job is set to run, and no run, standby, operation, host task or recovery is in progress;
- hosts have new ids and no agent: each agent registers again, and stops the drivers that the new control plane does not
  know;
- no message to a webhook is pending, and no alert is open: the control plane of the backup may have sent them. No link
  signs a browser in;
- no request for a start from an older point is pending: it may have been executed since the backup;
- all tokens are revoked, unless the caller keeps the backup's; without a valid token of an admin, there is a new
  one;
- numbers of events, logs and the audit log continue far above the backup's, so that readers see new ones.

All functions are synchronous.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Connection, Table, func, select, text, update
from sqlalchemy.engine import make_url

from clonos.errors import StateConflict
from clonos.private_folders import create_private, write_private
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, Failure, JobState
from clonos.resources.service import Role
from clonos.standby.states import FINAL_STATES, StandbyState
from clonos_api.store import tokens
from clonos_api.store.backup import DATABASE_FILE, Manifest, copy_rows, opened, read_manifest, sqlite_url
from clonos_api.store.columns import Moving
from clonos_api.store.db import schema
from clonos_api.store.db.numbers import skip_numbers
from clonos_api.store.db.rows import new_id
from clonos_api.store.tables import (
    AlertRow,
    AuditRow,
    Base,
    ClusterRow,
    DeliveryRow,
    EventRow,
    GenerationRow,
    HostRow,
    IdempotencyRow,
    JobRow,
    JobVersionRow,
    LeaseRow,
    OperationRow,
    RecoveryRow,
    RunRow,
    SavepointRow,
    SignInCodeRow,
    StandbyRow,
    TaskRow,
    TokenRow,
)

_SETTLED: Final = (JobState.CREATED, JobState.STOPPED, JobState.CANCELED, JobState.FAILED, JobState.FINISHED)
_HOSTS_OF: Final = (RunRow.host, StandbyRow.host, TaskRow.host, JobRow.home, EventRow.host)


@dataclass(frozen=True)
class Restored:
    """What `restore` did."""

    manifest: Manifest  # of the backup
    ran: list[str]  # names of the jobs that were set to run; all are stopped now
    tokens: int  # number of valid tokens, including the new one
    token_file: Path | None  # file with the new token of an admin; None if an older one is valid


def restore(directory: Path, url: str, *, token_file: Path, keep_tokens: bool = False) -> Restored:
    """Restore the backup in `directory` into the empty database `url`.

    The tables get the newest revision. A failure changes neither a row of the database nor the token file.

    Args:
        directory: The backup.
        url: The database; an SQLite file must not exist.
        token_file: File to which the new token of an admin is written, with mode 0600.
        keep_tokens: Whether the tokens that were valid at the backup, except sessions of browsers, are valid again.
            Revocations since the backup are lost then.

    Raises:
        BackupDamaged: The backup is incomplete or changed.
        DatabaseNewer: A newer version of Clonos wrote the backup.
        StateConflict: The database is not empty.
        DatabaseUnavailable: The database does not answer.
    """
    manifest = read_manifest(directory)
    target = make_url(url)
    sqlite_file = Path(target.database or "") if target.get_backend_name() == "sqlite" else None
    if sqlite_file is not None:
        create_private(sqlite_file.parent)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=sqlite_file.parent if sqlite_file else None) as folder:
        staged = Path(folder) / DATABASE_FILE
        copied = Path(folder) / "backup.db"
        shutil.copyfile(directory / DATABASE_FILE, copied)
        copied.chmod(0o600)
        schema.upgrade(sqlite_url(copied))
        staged.touch(mode=0o600)
        _copy(copied, staged)
        with opened(staged) as connection:
            ran, secret, valid = _prepare(connection, manifest, keep_tokens=keep_tokens)
        # Before the database, so that the token is not lost; under another name, in case the database is not empty.
        draft = token_file.with_name(f".{token_file.name}.restored")
        if secret is not None:
            create_private(token_file.parent)
            write_private(draft, secret)
        try:
            if sqlite_file is not None:
                _place(staged, sqlite_file)
            else:
                _fill(staged, url)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        if secret is not None:
            draft.replace(token_file)
    return Restored(manifest, ran, valid, token_file if secret is not None else None)


def _prepare(connection: Connection, manifest: Manifest, *, keep_tokens: bool) -> tuple[list[str], str | None, int]:
    """Change the copied rows; return the jobs that ran, the text of the new token, and the number of valid tokens."""
    moment = datetime.now(UTC)
    ran = _stop_jobs(connection, moment)
    _end_work(connection, moment)
    _replace_hosts(connection)
    connection.execute(update(LeaseRow).values(expires_at=moment))
    for sent in (DeliveryRow, AlertRow, SignInCodeRow):
        connection.execute(_table(sent).delete())
    connection.execute(_table(IdempotencyRow).delete().where(IdempotencyRow.status.is_(None)))
    _revoke(connection, moment, *([TokenRow.session_of.is_not(None)] if keep_tokens else []))
    alive = TokenRow.revoked_at.is_(None) & (TokenRow.expires_at.is_(None) | (TokenRow.expires_at > moment))
    admins = connection.execute(select(TokenRow.id).where(alive, TokenRow.role == Role.ADMIN)).all()
    secret = None if admins else _admin_token(connection, moment)
    skip_numbers(connection)
    detail = {"backup": manifest.created_at.isoformat(), "stopped_jobs": len(ran), "kept_tokens": keep_tokens}
    entry = {"at": moment, "subject": "restore", "action": "backup.restore", "outcome": "allowed", "detail": detail}
    connection.execute(_table(AuditRow).insert(), [entry])
    valid = connection.execute(select(func.count()).select_from(TokenRow).where(alive)).scalar_one()
    return ran, secret, valid


def _stop_jobs(connection: Connection, moment: datetime) -> list[str]:
    live = JobRow.deleted_at.is_(None)
    wanted = live & (JobRow.desired_state == DesiredState.RUNNING) & JobRow.state.not_in(("FAILED", "FINISHED"))
    ran = list(connection.execute(select(JobRow.name).where(wanted).order_by(JobRow.name)).scalars())
    connection.execute(update(JobRow).where(wanted).values(desired_state=DesiredState.STOPPED))
    moving = JobRow.state.not_in(_SETTLED)
    canceled = JobRow.desired_state == DesiredState.CANCELED
    for which, state in ((moving & canceled, JobState.CANCELED), (moving, JobState.STOPPED)):
        connection.execute(update(JobRow).where(which).values(state=state, state_since=moment))
    for job, move in connection.execute(select(JobRow.id, JobRow.moving)).all():
        if move and move.cause == "upgrade" and move.failure is None:
            _end_upgrade(connection, job, move)
    nothing: dict[str, Any] = dict.fromkeys(
        ("state_deadline", "stop", "start_from", "resolutions", "run", "moving"), None
    )
    nothing["adopt"] = False
    values = {"observed_nonce": JobRow.restart_nonce, "row_version": JobRow.row_version + 1, **nothing}
    connection.execute(update(JobRow).values(values))
    return ran


def _end_upgrade(connection: Connection, job: str, move: Moving) -> None:
    """Let the next start run the version that worked: the upgrade does not continue."""
    version = select(JobVersionRow.spec, JobVersionRow.artifact)
    version = version.where(JobVersionRow.job == job, JobVersionRow.version == move.previous)
    if (old := connection.execute(version).one_or_none()) is None:
        return
    labels = dict(old.spec.metadata.labels)
    values = {"version": move.previous, "spec": old.spec, "labels": labels, "artifact": old.artifact}
    connection.execute(update(JobRow).where(JobRow.id == job, JobRow.version == move.version).values(values))


def _end_work(connection: Connection, moment: datetime) -> None:
    """End what was in progress: nothing of it continues in the restored control plane."""
    what = "The control plane was restored from a backup."
    failure = Failure(error="control-plane-error", what=what, hint="request it again.", domain="run")
    connection.execute(update(RunRow).where(RunRow.ended_at.is_(None)).values(state="LOST", ended_at=moment))
    connection.execute(update(GenerationRow).where(GenerationRow.ended_at.is_(None)).values(ended_at=moment))
    connection.execute(update(TaskRow).where(TaskRow.ended_at.is_(None)).values(ended_at=moment))
    connection.execute(
        update(StandbyRow).where(StandbyRow.state.not_in(FINAL_STATES)).values(state=StandbyState.FAILED, since=moment)
    )
    connection.execute(
        update(OperationRow)
        .where(OperationRow.state == "IN_PROGRESS")
        .values(state="FAILED", failure=failure, ended_at=moment)
    )
    connection.execute(
        update(SavepointRow)
        .where(SavepointRow.state.in_(("IN_PROGRESS", "DELETING")))
        .values(state="FAILED", failure=failure)
    )
    connection.execute(
        update(ClusterRow).where(ClusterRow.state == "CHECKING").values(state="UNCHECKED", state_since=moment)
    )
    table = _table(RecoveryRow)
    for row in connection.execute(select(table.c.id, table.c.body).where(table.c.ended_at.is_(None))).all():
        ended = {"ended_at": moment, "body": replace(row.body, outcome="ABANDONED")}
        connection.execute(table.update().where(table.c.id == row.id).values(ended))


def _replace_hosts(connection: Connection) -> None:
    """Give each host a new id and no agent.

    An agent that sends the old id gets 404 and registers again. With the old id it could get 409, and exit.
    """
    table = _table(HostRow)
    for host in connection.execute(select(table.c.id, table.c.state)).all():
        state = HostState.REMOVED if host.state == HostState.REMOVED else HostState.LOST
        values: dict[str, Any] = {"id": new_id(), "instance": secrets.token_hex(8), "state": state}
        values |= {"pool_available": 0, "capacity": None}
        connection.execute(table.update().where(table.c.id == host.id).values(values))
        for column in _HOSTS_OF:
            connection.execute(update(column.class_).where(column == host.id).values({column.key: values["id"]}))


def _revoke(connection: Connection, moment: datetime, *which: Any) -> None:
    connection.execute(update(TokenRow).where(TokenRow.revoked_at.is_(None), *which).values(revoked_at=moment))


def _admin_token(connection: Connection, moment: datetime) -> str:
    columns, secret = tokens.new_secret()
    values = {"name": "restore", "role": Role.ADMIN, "subject": "admin", "created_at": moment, **columns}
    connection.execute(_table(TokenRow).insert(), [values])
    return secret


def _copy(copied: Path, staged: Path) -> None:
    """Copy the rows into tables of this version: a changed file may have triggers and views."""
    schema.upgrade(sqlite_url(staged))
    with opened(copied) as source, opened(staged) as target:
        copy_rows(source, target)
        numbers = [dict(row) for row in source.execute(text("SELECT name, seq FROM sqlite_sequence")).mappings()]
        target.execute(text("DELETE FROM sqlite_sequence"))
        if numbers:
            target.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), numbers)


def _place(staged: Path, file: Path) -> None:
    """Make the copy the database `file`; `StateConflict` if there is one, or a write-ahead log of one."""
    with closing(sqlite3.connect(staged)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")
    if file.with_name(f"{file.name}-wal").exists():
        raise _not_empty(str(file))
    try:
        file.hardlink_to(staged)  # unlike a rename, this replaces nothing
    except FileExistsError as error:
        raise _not_empty(str(file)) from error


def _fill(staged: Path, url: str) -> None:
    schema.upgrade(url)
    engine = schema.engine_of(url)
    try:
        with engine.begin() as target, opened(staged) as source:
            for table in reversed(Base.metadata.sorted_tables):
                target.execute(text(f"LOCK TABLE {table.name} IN ACCESS EXCLUSIVE MODE"))
            for table in Base.metadata.sorted_tables:
                if target.execute(select(func.count()).select_from(table)).scalar_one():
                    raise _not_empty(make_url(url).database or "")
            copy_rows(source, target)
            for name, number in source.execute(text("SELECT name, seq FROM sqlite_sequence")).all():
                target.execute(
                    text("SELECT setval(pg_get_serial_sequence(:table, 'seq'), :number)"),
                    {"table": name, "number": number},
                )
    finally:
        engine.dispose()


def _not_empty(name: str) -> StateConflict:
    return StateConflict(
        f"The database {name} is not empty.",
        kept="nothing was restored.",
        hint="stop the control plane, and name a new database (CLONOS_API__DATABASE_URL), or move this one away.",
    )


def _table(row: type[Base]) -> Table:
    table = row.__table__
    assert isinstance(table, Table)
    return table
