"""Backup and restore, through a running control plane and its agents, between SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import BackupDamaged, NotFound, StateConflict
from clonos.testing.harness import eventually
from clonos_api.settings import ApiSettings
from clonos_api.store import backup, restore
from clonos_api.store.db import schema
from clonos_api.store.tables import AlertRow, DeliveryRow, JobRow, SignInCodeRow
from support.postgres import PostgresServer
from support.scripted import CODE, ScriptedAgent, spec, upload
from support.serving import Served, served, write

LARGE = b"x" * (1 << 20)  # stored in parts


def database(kind: str, home: Path, request: pytest.FixtureRequest) -> str:
    """The URL of a database without tables."""
    if kind == "sqlite":
        return ApiSettings(home=home).database
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_database(f"b{secrets.token_hex(4)}")


def serving(home: Path, url: str) -> Any:
    schema.upgrade(url)
    shared = str(home / "shared")
    return served(home, database_url=url, reconcile=True, host_lease_s=60.0, shared_checkpoints=shared)


def get(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def create_job(client: httpx.Client, name: str, **more: Any) -> None:
    answer = client.post("/jobs", json={"spec": spec(name), "artifact": upload(client), **more})
    assert answer.status_code == 201, answer.text


def leads(api: Served) -> None:
    with api.client() as client:
        eventually(lambda: client.get("/health").json()["leader"], "the replica leads")


def place(api: Served, agent: ScriptedAgent, name: str) -> str:
    """Start a job whose driver then runs on the agent; returns the id of its run."""
    with api.client() as client:
        create_job(client, name)
    (run,) = eventually(lambda: [run for run in agent.work()["runs"] if run["name"] == name], f"{name} is placed")
    agent.push_events(run["run"], *_events(name))
    agent.heartbeat({"run": run["run"], "attempts": 1, "generation": 1, "state": "RUNNING", "driver_state": "RUNNING"})
    with api.client() as client:
        eventually(lambda: get(client, f"/jobs/{name}")["state"] == "RUNNING", f"{name} runs")
    return str(run["run"])


def _events(name: str) -> Iterator[dict[str, Any]]:
    base = {"job": name, "generation": 1, "at": 1_700_000_000.0}
    yield {**base, "event": "claimed", "lineage": 1, "lanes": 1}
    yield {**base, "event": "state", "state": "RUNNING"}
    for epoch in range(3):
        figures = {"records_in": 1, "records_out": 1, "skipped_lanes": 0, "replay": False, "duration_ms": 5}
        yield {**base, "event": "epoch", "query": "out", "epoch": epoch, **figures}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite", "sqlite"),
        ("postgresql", "postgresql"),
        pytest.param("sqlite", "postgresql", marks=pytest.mark.full),
        pytest.param("postgresql", "sqlite", marks=pytest.mark.full),
    ],
)
def test_a_restored_control_plane_starts_nothing_and_accepts_no_older_token(
    source: str, target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    old_home, new_home, copy = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    old_url, new_url = database(source, old_home, request), database(target, new_home, request)
    old_home.mkdir()
    with serving(old_home, old_url) as api, api.client() as client, ScriptedAgent(api, "h1") as agent:
        leads(api)
        agent.register()
        run = place(api, agent, "words")
        large = upload(client, LARGE, "large.py")
        create_job(client, "idle", start=False, start_from={"epoch": 3, "publish_again": True}, adopt=True)
        (platform,) = {run_spec["platform"] for run_spec in agent.work()["runs"]}
        assert get(client, "/jobs/words")["state"] == "RUNNING"
        upgrade = {"artifact": upload(client, b"# newer\n" + CODE)}
        begun = client.post("/jobs/words/upgrade", json=upgrade, headers={"If-Match": '"1"'})
        assert (begun.status_code, get(client, "/jobs/words")["version"]) == (202, 2)
        stolen = client.post("/tokens", json={"name": "stolen", "role": "operator"}).json()
        manifest = backup.create(old_url, copy)
        assert client.delete(f"/tokens/{stolen['id']}").status_code == 204
        old_host, old_token = agent.id, agent.client.headers["Authorization"]

    position = {job.name: job for job in manifest.jobs}["words"]
    assert (position.state, position.generation, position.epochs) == ("RUNNING", 1, {"out": 2})
    done = restore.restore(copy, new_url, token_file=new_home / "admin.token")
    assert done.ran == ["words"]
    assert done.tokens == 1
    assert (new_home / "admin.token").stat().st_mode & 0o777 == 0o600
    with schema.engine_of(new_url).connect() as connection:
        pending = connection.execute(select(JobRow.name).where(JobRow.start_from.is_not(None) | JobRow.adopt)).all()
    assert pending == [], "a start from an older point may have been executed since the backup"

    with serving(new_home, new_url) as api, api.client() as client:
        leads(api)
        for text in (stolen["token"], old_token.removeprefix("Bearer ")):
            with api.client(text) as old:
                assert old.get("/jobs").status_code == 401
        words = get(client, "/jobs/words")
        assert (words["state"], words["desired_state"], words["run"]) == ("STOPPED", "STOPPED", None)
        assert words["version"] == 1, "the upgrade was in progress: a start runs the version that worked"
        assert client.get(f"/artifacts/{large}/content").content == LARGE
        with ScriptedAgent(api, "h1") as agent:
            agent.id = old_host
            answer = agent.client.post(f"/hosts/{old_host}/heartbeat", json={"instance": agent.instance, "runs": []})
            assert answer.status_code == 404, "the agent registers again, and does not exit"
            agent.register()
            assert agent.id != old_host
            assert agent.work()["runs"] == [], f"the agent stops the driver of {run}"
            assert client.post("/jobs/words/start").status_code == 202
            (run_spec,) = eventually(lambda: agent.work()["runs"], "a request starts the job")
            assert run_spec["run"] != run
            assert run_spec["platform"] == platform, "its claims follow the lost control plane's"
            assert not run_spec.get("adopt")
        entries = get(client, "/audit?action=backup.restore")["data"]
        assert [entry["detail"]["stopped_jobs"] for entry in entries] == [1]


def test_numbers_of_events_continue_above_those_of_the_lost_database(tmp_path: Path) -> None:
    """A reader that has seen the events after the backup also sees those after the restore."""
    home, again = tmp_path / "old", tmp_path / "new"
    with served(home) as api, api.client() as client:
        create_job(client, "words", start=False)
        backup.create(api.settings.database, tmp_path / "backup")
        create_job(client, "later", start=False)
    newest = _newest_event(home)
    restore.restore(tmp_path / "backup", ApiSettings(home=again).database, token_file=again / "admin.token")
    with served(again) as api, api.client() as client:
        create_job(client, "later", start=False)
        assert _newest_event(again) > newest + 100_000


def _newest_event(home: Path) -> int:
    with closing(sqlite3.connect(home / "control-plane.db")) as opened:
        return int(opened.execute("SELECT max(seq) FROM events").fetchone()[0])


def test_kept_tokens_are_valid_again_but_sessions_of_browsers_are_not(tmp_path: Path) -> None:
    home, again = tmp_path / "old", tmp_path / "new"
    with served(home) as api, api.client() as client:
        user = client.post("/tokens", json={"name": "ada", "role": "operator"}).json()["token"]
        admin = api.admin
        backup.create(api.settings.database, tmp_path / "backup")
    url = ApiSettings(home=again).database
    done = restore.restore(tmp_path / "backup", url, token_file=again / "admin.token", keep_tokens=True)
    assert (done.tokens, done.token_file) == (2, None)
    (again / "admin.token").write_text(admin + "\n")
    with served(again) as api, api.client(user) as client:
        assert client.get("/tokens/self").status_code == 200


def test_neither_messages_nor_sign_in_codes_are_restored(tmp_path: Path) -> None:
    """The control plane of the backup may have sent the messages, and shown the codes."""
    again, moment = tmp_path / "new", datetime.now(UTC)

    async def store(session: AsyncSession) -> None:
        session.add(AlertRow(key="job", body={}, started_at=moment))
        session.add(DeliveryRow(id="d", webhook="pager", body={}, created_at=moment, due_at=moment))
        session.add(SignInCodeRow(digest=bytes(32), token="t", expires_at=moment + timedelta(days=1)))

    with served(tmp_path / "old") as api:
        write(api, store)
        backup.create(api.settings.database, tmp_path / "backup")
    url = ApiSettings(home=again).database
    restore.restore(tmp_path / "backup", url, token_file=again / "admin.token", keep_tokens=True)
    with schema.engine_of(url).connect() as connection:
        for table in (AlertRow, DeliveryRow, SignInCodeRow):
            assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0, table


def test_a_backup_of_a_busy_database_has_no_half_of_a_transaction(tmp_path: Path) -> None:
    with served(tmp_path / "home") as api, api.client() as client:
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                create_job(client, f"job-{number}", start=False)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: len(get(client, "/jobs")["data"]) > 3, "jobs are being created")
            manifest = backup.create(api.settings.database, tmp_path / "backup")
        finally:
            stop.set()
            writer.join()
    # A job and its first version are one transaction.
    assert manifest.rows["jobs"] == manifest.rows["job_versions"] > 3


def test_a_backup_of_an_older_revision_is_upgraded(tmp_path: Path) -> None:
    home, again, copy = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    with served(home) as api, api.client() as client:
        create_job(client, "words", start=False)
        backup.create(api.settings.database, copy)
    schema.downgrade(backup.sqlite_url(copy / backup.DATABASE_FILE), "0006")
    with closing(sqlite3.connect(copy / backup.DATABASE_FILE)) as opened:
        opened.execute("PRAGMA journal_mode = DELETE")
    _write_digest(copy)
    restore.restore(copy, ApiSettings(home=again).database, token_file=again / "admin.token")
    with served(again) as api, api.client() as client:
        assert get(client, "/jobs/words")["state"] == "CREATED"


def test_triggers_and_views_of_a_changed_backup_are_not_restored(tmp_path: Path) -> None:
    again, copy = tmp_path / "new", tmp_path / "backup"
    with served(tmp_path / "old") as api, api.client() as client:
        create_job(client, "words", start=False)
        backup.create(api.settings.database, copy)
    with closing(sqlite3.connect(copy / backup.DATABASE_FILE)) as opened:
        opened.executescript(
            "CREATE TRIGGER t AFTER INSERT ON audit BEGIN UPDATE tokens SET revoked_at = NULL, role = 'admin'; END;"
            "CREATE TRIGGER u AFTER UPDATE ON tokens BEGIN UPDATE tokens SET revoked_at = NULL; END;"
            "CREATE VIEW v AS SELECT * FROM tokens; CREATE TABLE more (x); CREATE INDEX i ON tokens (name);"
        )
    _write_digest(copy)
    done = restore.restore(copy, ApiSettings(home=again).database, token_file=again / "admin.token")
    assert done.tokens == 1
    fresh = tmp_path / "fresh.db"
    schema.upgrade(backup.sqlite_url(fresh))
    assert _schema_of(again / "control-plane.db") == _schema_of(fresh)
    with served(again) as api, api.client() as client:
        assert get(client, "/jobs/words")["state"] == "CREATED"


def _schema_of(file: Path) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(file)) as opened:
        return set(opened.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def _write_digest(copy: Path) -> None:
    manifest = json.loads((copy / backup.MANIFEST_FILE).read_text())
    manifest["sha256"] = backup._digest(copy / backup.DATABASE_FILE)
    (copy / backup.MANIFEST_FILE).write_text(json.dumps(manifest))


def test_what_is_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    home, copy = tmp_path / "home", tmp_path / "backup"
    url = ApiSettings(home=home).database
    with pytest.raises(NotFound, match="no database"):
        backup.create(url, copy)
    assert not home.exists()
    with served(home) as api, api.client() as client:
        create_job(client, "words", start=False)
        backup.create(url, copy)
    before, token_file = _newest_event(home), home / "admin.token"
    admin = token_file.read_text()
    with pytest.raises(StateConflict, match="exists"):
        backup.create(url, copy)
    with pytest.raises(StateConflict, match="not empty"):
        restore.restore(copy, url, token_file=token_file)
    assert _newest_event(home) == before
    assert token_file.read_text() == admin, "the running control plane keeps its token"
    assert not list(home.glob(".*token*"))
    full = database("postgresql", tmp_path / "pg", request)
    restore.restore(copy, full, token_file=tmp_path / "token")
    with pytest.raises(StateConflict, match="not empty"):
        restore.restore(copy, full, token_file=tmp_path / "token")
    schema.downgrade(url, "0006")
    with pytest.raises(StateConflict, match="revision"):
        backup.create(url, tmp_path / "other")
    with (copy / backup.DATABASE_FILE).open("ab") as changed:
        changed.write(b"x")
    empty = ApiSettings(home=tmp_path / "empty").database
    with pytest.raises(BackupDamaged, match="has changed"):
        restore.restore(copy, empty, token_file=tmp_path / "token")
    (copy / backup.MANIFEST_FILE).unlink()
    with pytest.raises(BackupDamaged, match="is not a backup"):
        restore.restore(copy, empty, token_file=tmp_path / "token")
    assert not (tmp_path / "empty" / "control-plane.db").exists()


def test_the_commands(tmp_path: Path) -> None:
    with served(tmp_path / "old") as api, api.client() as client:
        create_job(client, "words")
        made = run_command(tmp_path / "old", "backup", "create", str(tmp_path / "copy"))
        assert made.returncode == 0, made.stderr
        assert "with 1 jobs" in made.stdout
    again = run_command(tmp_path / "new", "backup", "restore", str(tmp_path / "copy"))
    assert again.returncode == 0, again.stderr
    assert "are stopped now: words." in again.stdout
    refused = run_command(tmp_path / "new", "backup", "restore", str(tmp_path / "copy"))
    assert refused.returncode == StateConflict.exit_code
    assert refused.stderr.startswith("state-conflict: ")


def run_command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
    return subprocess.run(
        [sys.executable, "-m", "clonos", *arguments],
        env={**variables, "CLONOS_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
