"""Each change has an audit entry; a secret in any request appears in no output."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from clonos.cli.app import app
from support.scripted import ScriptedAgent, create, spec, upload
from support.serving import ApiProcess, Served

CANARY = "c4n4ry-Zx81Kq77"


def audit(service: Served) -> list[dict[str, Any]]:
    with service.client() as admin:
        entries: list[dict[str, Any]] = admin.get("/audit", params={"limit": 200}).json()["data"]
    return entries


def test_each_change_has_an_entry(service: Served, name: str, caller: Callable[..., httpx.Client]) -> None:
    ada = caller("operator", subject=f"ada-{name}")
    job = create(ada, name)
    assert ada.post(f"/jobs/{name}/start").status_code == 202
    assert ada.post(f"/jobs/{name}/cancel").status_code == 202
    own = [entry for entry in audit(service) if entry["subject"] == f"ada-{name}"]
    assert {item["outcome"] for item in own} == {"allowed"}
    assert len([item for item in own if item["target"] in (job["id"], name) or job["id"] in json.dumps(item)]) >= 3
    assert all(item["token"] for item in own)


def test_a_refused_change_has_none(service: Served, name: str, caller: Callable[..., httpx.Client]) -> None:
    """The audit entry and the change are one transaction: a refused change has no entry of a success."""
    ada = caller("operator", subject=f"ada-{name}")
    body = {"spec": spec(name), "artifact": "0" * 64, "start": False}
    assert ada.post("/jobs", json=body).status_code >= 400
    assert not [entry for entry in audit(service) if entry["subject"] == f"ada-{name}"]


def test_each_denial_has_an_entry(service: Served, name: str, caller: Callable[..., httpx.Client]) -> None:
    eve, bob = caller("viewer", subject=f"eve-{name}"), caller("operator", subject=f"bob-{name}")
    create(caller("operator", subject=f"ada-{name}"), name)
    assert eve.post("/tokens", json={"name": "t", "role": "admin"}).status_code == 403
    assert bob.post(f"/jobs/{name}/stop").status_code == 403
    denied = [entry for entry in audit(service) if entry["outcome"] == "denied"]
    assert [entry["action"] for entry in denied if entry["subject"] == f"eve-{name}"] == ["POST /api/v1/tokens"]
    [entry] = [entry for entry in denied if entry["subject"] == f"bob-{name}"]
    assert entry["target"] == f"/api/v1/jobs/{name}/stop"
    assert entry["detail"]["error"] == "forbidden"


def test_the_audit_log_has_filters(service: Served, caller: Callable[..., httpx.Client], name: str) -> None:
    own, other = caller("operator", subject=f"own-{name}"), caller("operator", subject=f"other-{name}")
    created = [create(client, f"{name}-{number}") for number, client in enumerate((own, other))]
    assert own.delete(f"/jobs/{created[1]['id']}").status_code == 403

    def entries(**which: str) -> list[tuple[str, str]]:
        with service.client() as admin:
            answer = admin.get("/audit", params={"subject": f"own-{name}", **which})
        assert answer.status_code == 200, answer.text
        return [(entry["action"].split("/")[0], entry["outcome"]) for entry in answer.json()["data"]]

    assert entries() == [("DELETE ", "denied"), ("job.create", "allowed")]
    assert entries(action="job") == entries(action="job.create") == [("job.create", "allowed")]
    assert entries(action="jo") == entries(action="job.") == []
    assert entries(action="DELETE") == entries(outcome="denied") == [("DELETE ", "denied")]
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    assert entries(since=(now - hour).isoformat(), until=(now + hour).isoformat()) == entries()
    assert entries(since=(now + hour).isoformat()) == entries(until=(now - hour).isoformat()) == []
    with service.client() as admin:
        for wrong in ({"outcome": "x"}, {"since": "yesterday"}):
            assert admin.get("/audit", params=wrong).status_code == 422


def test_requests_without_a_token_are_audited(service: Served, nobody: httpx.Client, name: str) -> None:
    nobody.get(f"/api/v1/jobs/{name}")
    [entry] = [entry for entry in audit(service) if entry["target"] == f"/api/v1/jobs/{name}"]
    assert (entry["subject"], entry["outcome"], entry["detail"]["address"]) == ("(nobody)", "denied", "127.0.0.1")


def doors(client: httpx.Client, name: str) -> list[httpx.Response]:
    """Sends the canary in every request that a user can make."""
    artifact = upload(client)
    dsn = f"postgresql://ada:{CANARY}@db/x"

    def job(**part: Any) -> httpx.Response:
        body = {"spec": {"metadata": {"name": name}, "spec": {"main": "job.py", **part}}, "artifact": artifact}
        return client.post("/jobs", json=body)

    options = {"options": {"options": {"kafka.sasl.jaas.config": f'password="{CANARY}"'}}}
    return [
        job(params={"password": CANARY}),
        job(params={"kafka.sasl.password": CANARY}),
        job(params={"dsn": dsn}),
        job(sparkConf={"spark.hadoop.fs.s3a.secret.key": CANARY}),
        job(sparkConf={"spark.driver.extraJavaOptions": f"-Dpassword={CANARY}"}),
        job(checkpoint=f"s3a://key:{CANARY}@bucket/x"),
        job(secret=CANARY),
        client.post("/jobs", content=f'{{"password": "{CANARY}"', headers={"Content-Type": "application/json"}),
        client.post("/jobs", content=f"password: {CANARY}\n  x", headers={"Content-Type": "application/yaml"}),
        client.post("/connectors/source/kafka/validate", json=options),
        client.get("/jobs", headers={"Authorization": f"Bearer clonos_0123456789abcdef_{CANARY}"}),
        client.get("/jobs", headers={"Authorization": f"Basic {CANARY}"}),
        client.get("/jobs", params={"limit": f"password={CANARY}"}),
        client.post("/artifacts", files={"file": (f"password={CANARY}.exe", b"x")}),
        client.post("/tokens", json={"name": "t", "role": "viewer", "password": CANARY}),
    ]


def test_a_canary_secret_appears_nowhere(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither in responses, audit log, events and log lines, nor in command line, environment and files."""
    with ApiProcess(tmp_path) as api, api.served.client() as admin:
        for number, answer in enumerate(doors(admin, name)):
            assert answer.status_code in (200, 400, 401, 413, 415, 422), (number, answer.text)
            assert CANARY not in answer.text, number
        with ScriptedAgent(api.served, "h") as agent:
            agent.register()
            create(admin, name)
        shown = [
            admin.get(path).text for path in ("/jobs", "/audit", "/events/history", "/tokens", "/operations", "/hosts")
        ]
        argv = Path(f"/proc/{api.process.pid}/cmdline").read_bytes()
        environ = Path(f"/proc/{api.process.pid}/environ").read_bytes()
        token = api.served.admin.split("_")[2]
    assert CANARY not in "".join(shown)
    assert CANARY.encode() not in argv + environ
    assert token.encode() not in argv + environ
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not [path.name for path, content in written.items() if CANARY.encode() in content]
    assert [path.name for path, content in written.items() if token.encode() in content] == [
        api.served.settings.admin_token_file.name
    ]
    log = capfd.readouterr().err
    assert "first token" in log, "the test reads the log of the service"
    assert CANARY not in log
    assert token not in log


@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=pytest.mark.full)])
def test_the_process_refuses_an_open_address(host: str, tmp_path: Path) -> None:
    environment = {**os.environ, "CLONOS_HOME": str(tmp_path), "CLONOS_API__HOST": host, "CLONOS_API__PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "clonos_api"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 11, done.stderr
    assert "TLS" in done.stderr
    assert not (tmp_path / "control-plane.db").exists()


def test_no_request_makes_the_service_connect_anywhere(service: Served, name: str) -> None:
    """An address in a request cannot cause a connection."""
    _watch()
    evil = "http://169.254.169.254/latest"
    with service.client() as admin:
        artifact = upload(admin)
        kafka = {"topic": "x", "options": {"bootstrap.servers": "127.0.0.1:1"}}
        create(admin, name)
        CONNECTED.clear()
        for path, body in (
            ("/jobs/validate", {"spec": spec(name), "artifact": artifact}),
            ("/connectors/source/kafka/validate", {"options": kafka}),
            ("/connectors/sink/kafka/validate", {"options": {"topic": "x", "registry": evil, "url": evil}}),
            ("/connectors/sink/files/validate", {"options": {"path": evil}}),
            ("/jobs", {"spec": {**spec(f"{name}-2")}, "artifact": artifact, "start": False}),
            (f"/jobs/{name}/savepoints", {"location": "s3a://bucket/x"}),
        ):
            assert admin.post(path, json=body).status_code < 500
            # Only the operating system lists the connections of librdkafka.
            assert not [
                connection
                for connection in psutil.Process().net_connections("inet")
                if connection.raddr and connection.raddr.port == 1
            ]
    ours = int(service.url.rsplit(":", 1)[1])
    assert [address for address in CONNECTED if address[1] != ours] == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", 1), timeout=5)
    assert ("127.0.0.1", 1) in CONNECTED, "the watch sees connections"


CONNECTED: list[tuple[str, int]] = []
_watching: list[bool] = []


def _watch() -> None:
    """Records each connection of this process; an audit hook cannot be removed, so it is added once."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(args[1], tuple):
            CONNECTED.append(args[1][:2])

    if not _watching:
        sys.addaudithook(hook)
        _watching.append(True)


def test_equal_refusals_are_one_entry_that_counts_them(service: Served, caller: Callable[..., httpx.Client]) -> None:
    viewer = caller("viewer", subject="vic")
    for _ in range(100):
        assert viewer.post("/jobs/none-of-these/start").status_code == 403
    assert viewer.post("/jobs/none-of-these/stop").status_code == 403
    with service.client() as admin:
        entries = admin.get("/audit", params={"limit": 200}).json()["data"]
    counted = [entry for entry in entries if entry["subject"] == "vic" and "none-of-these" in entry["action"]]
    assert {entry["action"].rsplit("/")[-1]: entry["detail"].get("requests") for entry in counted} == {
        "start": 64,
        "stop": None,
    }
    assert len(counted) == 2


def test_a_refused_path_cannot_write_to_a_terminal_or_hide_entries(
    service: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs a token to get a path into the audit log, which admins read on their terminals."""
    paths = ("/%1b]0;PWNED%07%1b[2J", "/%5b/x%5d[bold]", "/%c2%9b31m%e2%80%ae%0a2026")
    with service.client("clonos_none_none") as eve:
        for path in paths:
            assert eve.get(f"{service.url}{path}").status_code == 401
    texts = [json.dumps(entry, ensure_ascii=False) for entry in audit(service)]
    assert all(text.isprintable() for text in texts)
    assert sum("[/x][bold]" in text for text in texts) == 1
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CLONOS_API", service.url)
    monkeypatch.setenv("CLONOS_TOKEN", (service.settings.home / "admin.token").read_text().strip())
    printed = CliRunner().invoke(app, ["audit"])
    assert printed.exit_code == 0, printed.exception
    assert "[/x][bold]" in printed.output
