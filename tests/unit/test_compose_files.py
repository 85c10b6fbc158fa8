"""``docker/compose.yaml`` and its files, as far as they can be looked at without an engine."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = DOCKER / "compose.yaml"
GRAFANA = DOCKER / "compose" / "grafana"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """All services, as Docker's own program reads them."""
    program = Path(sys.executable).with_name("docker-compose")
    command = [program, "--file", COMPOSE, "--profile", "*", "config", "--format", "json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(said.stdout)["services"]
    return found


def test_what_there_is(services: dict[str, Any]) -> None:
    kinds = ("kafka", "control-plane", "agent")
    assert [sum(name.startswith(f"{kind}-") for name in services) for kind in kinds] == [3, 2, 3]
    assert services.keys() >= {"postgres", "prometheus", "grafana"}


def test_only_this_machine_gets_in_and_nothing_is_privileged(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}, name
        assert not service.get("privileged"), name
        assert "no-new-privileges:true" in service["security_opt"], name
        if "kafka" not in name and name != "postgres":
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name


def test_secrets_come_from_files(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if any(word in variable for word in ("PASSWORD", "TOKEN", "SECRET")):
                assert value.startswith("/run/clonos/"), (name, variable)
        assert "password" not in service.get("environment", {}).get("CLONOS_API__DATABASE_URL", ""), name


def test_each_agent_has_a_token_of_its_own(services: dict[str, Any]) -> None:
    agents = {name: service for name, service in services.items() if name.startswith("agent-")}
    mounted = [
        (one["source"], one.get("read_only"))
        for service in agents.values()
        for one in service["volumes"]
        if one["target"] == "/run/clonos/token"
    ]
    assert len(set(mounted)) == len(agents)
    assert all(read_only for _, read_only in mounted)
    for name, service in agents.items():
        given = service["command"]
        assert given[given.index("--name") + 1] == name


def test_grafana_finds_what_it_is_told(services: dict[str, Any]) -> None:
    """Grafana itself is not started by any test: its image cannot be had without a registry."""
    mounted = {one["target"]: Path(one["source"]) for one in services["grafana"]["volumes"] if one["type"] == "bind"}
    provisioned = mounted["/etc/grafana/provisioning"]
    sources = yaml.safe_load((provisioned / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert [one["url"] for one in sources] == ["http://prometheus:9090"]
    assert services["prometheus"]["ports"][0]["target"] == 9090
    (provider,) = yaml.safe_load((provisioned / "dashboards" / "clonos.yml").read_text())["providers"]
    dashboards = list(mounted[provider["options"]["path"]].glob("*.json"))
    assert dashboards
    for file in dashboards:
        dashboard = json.loads(file.read_text())
        assert {"uid", "title", "schemaVersion", "panels"} <= dashboard.keys()
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        for panel in dashboard["panels"]:
            assert panel["datasource"] == {"type": "prometheus", "uid": sources[0]["uid"]}
            assert all(target["expr"] for target in panel["targets"])


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compose_credentials", DOCKER / "compose" / "credentials.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(os, "chown", lambda *_: None)  # only root may
    return module


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for name in ("ca", "tls", "database", "postgres", "grafana"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_the_certificate_is_believed_under_its_names_and_no_other(credentials: ModuleType, volumes: Path) -> None:
    credentials.certificates(volumes)
    for name in (*credentials.NAMES, "127.0.0.1"):
        assert _greeted(volumes, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        _greeted(volumes, "elsewhere")
    assert not list((volumes / "ca").glob("*key*")), "nobody can make another certificate"


def test_what_is_there_is_kept(credentials: ModuleType, volumes: Path) -> None:
    credentials.certificates(volumes)
    files = [file for file in volumes.rglob("*") if file.is_file()]
    before = {file: file.read_bytes() for file in files}
    credentials.certificates(volumes)
    assert {file: file.read_bytes() for file in files} == before
    for name in ("tls/key.pem", "database/pgpass"):
        assert stat.S_IMODE((volumes / name).stat().st_mode) == 0o400, "psql refuses what others may read"


def test_a_certificate_that_is_soon_over_is_made_anew(
    credentials: ModuleType, volumes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "_VALID", credentials._LEFT)
        credentials.certificates(volumes)
    before, password = (volumes / "ca/ca.pem").read_bytes(), (volumes / "postgres/password").read_text()
    credentials.certificates(volumes)
    assert (volumes / "ca/ca.pem").read_bytes() != before
    assert (volumes / "postgres/password").read_text() == password
    assert (volumes / "database/pgpass").read_text() == f"postgres:5432:clonos:clonos:{password}\n"
    assert _greeted(volumes, "control-plane")


def _greeted(volumes: Path, name: str) -> bool:
    """Whether a client that has the authority shakes hands with a server of that name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(volumes / "tls/certificate.pem", volumes / "tls/key.pem")
    client = ssl.create_default_context(cafile=str(volumes / "ca/ca.pem"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answering = threading.Thread(target=_answer, args=(server, theirs))
        answering.start()
        try:
            with client.wrap_socket(ours, server_hostname=name) as secured:
                return secured.recv(1) == b"!"
        finally:
            answering.join(10)


def _answer(server: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        with server.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(b"!")
    except OSError:
        connection.close()
