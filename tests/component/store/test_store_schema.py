"""Migrations: up, down and up again, and never another schema than that of the tables."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, inspect, select

from clonos.errors import DatabaseUnavailable, StateConflict
from clonos_api.store import events, jobs, owners, views
from clonos_api.store.__main__ import main as store_command
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from clonos_api.store.tables import Base, EventRow, RecoveryRow, RunRow, StandbyRow
from support.stored import host_row, job_row, run_row

pytestmark = pytest.mark.anyio


async def make_a_job(url: str) -> str:
    database = Database(url)
    async with database.transaction() as session:
        job = await job_row(session)
    async with database.reading() as session:
        assert (await jobs.get(session, job.id)).name == job.name
    await database.close()
    return job.id


def differences(url: str) -> list[Any]:
    with schema._connected(url) as (connection, _):
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))


def tables(url: str) -> set[str]:
    with schema._connected(url) as (connection, _):
        return set(inspect(connection).get_table_names()) - {"alembic_version", "sqlite_sequence"}


async def test_up_down_and_up_again_with_data(empty_url: str) -> None:
    assert schema.current(empty_url) is None
    schema.upgrade(empty_url)
    assert schema.current(empty_url) == schema.newest()
    assert tables(empty_url) == set(Base.metadata.tables)
    await make_a_job(empty_url)
    schema.upgrade(empty_url)  # nothing to do
    schema.downgrade(empty_url)
    assert schema.current(empty_url) is None
    assert tables(empty_url) == set()
    schema.upgrade(empty_url)
    await make_a_job(empty_url)


async def test_owners_of_older_jobs_get_numbers(empty_url: str) -> None:
    schema.upgrade(empty_url)
    job = await make_a_job(empty_url)
    schema.downgrade(empty_url, "0003")
    schema.upgrade(empty_url)
    database = Database(empty_url)
    async with database.transaction() as session:
        number = await owners.number_of_job(session, job)
        assert number > 0
        assert number == await owners.number(session, "ada")
    await database.close()


async def test_older_events_lose_the_ids_of_processes(empty_url: str) -> None:
    schema.upgrade(empty_url)
    schema.downgrade(empty_url, "0005")
    database = Database(empty_url)
    async with database.transaction() as session:
        session.add(EventRow(at=datetime.now(UTC), type="host.registered", data={"name": "h1", "instance": "0a1b"}))
        events.append(session, "host.registered", data={"name": "h2"})
        events.append(session, "other", data={"instance": "kept"})
    await database.close()
    schema.upgrade(empty_url)
    database = Database(empty_url)
    async with database.reading() as session:
        rows = (await session.scalars(select(EventRow).order_by(EventRow.seq.desc()).limit(3))).all()
    await database.close()
    assert [row.data for row in rows] == [{"instance": "kept"}, {"name": "h2"}, {"name": "h1"}]


def test_the_migrations_create_the_tables_of_the_code(url: str) -> None:
    assert differences(url) == []


def test_the_comparison_detects_a_difference(url: str) -> None:
    with schema._connected(url) as (connection, _):
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN restarts")
        actual = list(compare_metadata(MigrationContext.configure(connection), Base.metadata))
        connection.rollback()
    assert [fact[0] for fact in actual] == ["add_column"]


def test_two_concurrent_upgrades_both_succeed(empty_url: str) -> None:
    schema.downgrade(empty_url)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            schema.upgrade(empty_url)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert schema.current(empty_url) == schema.newest()


def test_a_failed_migration_changes_nothing(empty_url: str) -> None:
    schema.downgrade(empty_url)
    with schema._connected(empty_url) as (connection, _):
        connection.exec_driver_sql("CREATE TABLE jobs (id INTEGER)")
    with pytest.raises(Exception, match="jobs"):
        schema.upgrade(empty_url)
    assert tables(empty_url) == {"jobs"}
    with schema._connected(empty_url) as (connection, _):
        connection.exec_driver_sql("DROP TABLE jobs")
    schema.upgrade(empty_url)


def test_the_command_upgrades_to_the_newest_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docker/compose.yaml calls it."""
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path))
    monkeypatch.setenv("CLONOS_API__DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path}/store.db")
    assert store_command(["current"]) == 1
    assert store_command(["upgrade", "0003"]) == 0
    assert store_command(["current"]) == 1
    assert store_command(["upgrade"]) == 0
    assert store_command(["current"]) == 0


def test_an_unavailable_database_is_reported(tmp_path: Path) -> None:
    for url in (f"sqlite+aiosqlite:///{tmp_path}/missing/x.db", "postgresql+psycopg://clonos@127.0.0.1:1/x"):
        with pytest.raises(DatabaseUnavailable):
            schema.upgrade(url)


def test_tables_of_another_product_or_a_damaged_file_are_refused_in_words(tmp_path: Path) -> None:
    other, damaged = tmp_path / "other.db", tmp_path / "damaged.db"
    schema.upgrade(f"sqlite+aiosqlite:///{other}", "0001")
    with closing(sqlite3.connect(other)) as opened:
        opened.executescript("ALTER TABLE jobs RENAME COLUMN created_by TO owner")
    before = other.read_bytes()
    with pytest.raises(StateConflict, match="not those of their revision 0001"):
        schema.upgrade(f"sqlite+aiosqlite:///{other}")
    assert other.read_bytes() == before
    damaged.write_bytes(b"no database" * 1_000)
    with pytest.raises(DatabaseUnavailable, match="cannot be read"):
        schema.upgrade(f"sqlite+aiosqlite:///{damaged}")
    environment = {
        **os.environ,
        "CLONOS_HOME": str(tmp_path / "home"),
        "CLONOS_API__PORT": "0",
        "CLONOS_API__DATABASE_URL": f"sqlite+aiosqlite:///{other}",
    }
    service = [sys.executable, "-m", "clonos_api"]
    ended = subprocess.run(service, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == StateConflict.exit_code, ended.stderr
    assert "What to do: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_wheel_contains_the_migrations() -> None:
    """`pyproject.toml` puts them where `schema` looks first."""
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '"migrations" = "clonos_api/migrations"' in project
    assert schema._DIRECTORIES[0].relative_to(Path(schema.__file__).parents[3]) == Path("clonos_api/migrations")


async def test_rows_of_the_version_before_typed_columns_are_read(empty_url: str) -> None:
    """They have the names and the times of revision 0017, and lack what later versions added."""
    schema.upgrade(empty_url)
    database = Database(empty_url)
    async with database.transaction() as session:
        job = await job_row(session)
        host = await host_row(session)
        run = await run_row(session, job, host)
    await database.close()
    schema.downgrade(empty_url, "0017")
    at = "2026-11-29T10:00:00.250000+00:00"
    out = {"epoch": 7, "epochs": 8, "at": at, "records_out": 80, "operators": {"e": {"recorded": 1, "replayed": 0}}}
    kafka = {"brokers": 3, "under_replicated": 0, "silent_since": at}
    metrics = {"at": at, "restarts": 1, "queries": {"out": out}, "kafka": kafka, "open_transactions": {"words": at}}
    phases = [{"name": "detect", "started_at": at, "duration_ms": 12.5}]
    returned = {"out": {"at": at, "downtime_ms": 300.0}}
    body = {"cause": "crash", "failure": None, "failed_generation": 1, "from_host": "h", "phases": phases}
    body |= {"returned": returned, "silent_since": at, "standby": None, "outcome": "COMPLETED"}
    state = {"queries": ["out", "more"], "returned": ["out"], "attempt": 2, "marks": {"claimed": 5.5}, "later": 1}
    state["executors"] = {"wanted": 1, "registered": 1, "listed": [{"id": "0", "host": "w", "cores": 2, "stdout": ""}]}
    moving = {"cause": "move", "leaves": host.id, "version": 1, "previous": 1, "until": at, "handed_at": None}
    stop, resolutions = {"mode": "checkpoint", "timeout_s": 5.0}, [{"decision": "new-code"}]
    values = {"metrics": metrics, "moving": moving, "stop": stop, "resolutions": resolutions}
    engine = schema.engine_of(empty_url)
    with engine.begin() as connection:
        old = MetaData()
        old.reflect(connection, only=["jobs", "runs", "recoveries", "standbys", "series"])
        of = old.tables
        (order,) = connection.execute(select(of["runs"].c.order)).one()
        del order["adopt"], order["platform"], order["cluster"]
        connection.execute(of["jobs"].update().values(**values))
        connection.execute(of["runs"].update().values(order=order, ingest_state=state))
        connection.execute(
            of["recoveries"].insert().values(id="r", job=job.id, started_at=datetime.now(UTC), body=body)
        )
        connection.execute(
            of["standbys"].insert().values(id="s", row_version=1, job=job.id, host=host.id, mode="dedicated",
                                           state="READY", since=datetime.now(UTC), body={"placement_reason": "why"})
        )  # fmt: skip
    engine.dispose()
    schema.upgrade(empty_url)
    database = Database(empty_url)
    moment = datetime.fromisoformat(at)
    async with database.reading() as session:
        stored = await jobs.get(session, job.id)
        assert stored.spec == job.spec
        assert stored.figures.queries["out"].operators["e"].bytes == 0
        assert (stored.figures.at, stored.figures.kafka.silent_since) == (moment, moment)
        assert (stored.moving.until, stored.stop.timeout_s, stored.resolutions[0].decision) == (moment, 5.0, "new-code")
        placed = await session.get_one(RunRow, run.id)
        assert placed.spec == run.spec
        assert views.run(placed, {}).awaited == ["more"]
        shown = views.recovery(await session.get_one(RecoveryRow, "r"))
        assert (shown.phases[0].started_at, shown.returned["out"].downtime_ms) == (moment, 300.0)
        assert (await session.get_one(StandbyRow, "s")).body.epochs is None
    await database.close()
