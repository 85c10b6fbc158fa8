"""``docker/compose.yaml`` and its files, tested without an engine."""

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
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from clonos.client.hosts import Clusters
from clonos.errors import NotFound
from clonos.jobs.cluster import ClusterSpec

DOCKER = Path(__file__).parents[3] / "docker"
COMPOSE = DOCKER / "compose.yaml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """All services, as docker-compose parses them."""
    program = Path(sys.executable).with_name("docker-compose")
    command = [program, "--file", COMPOSE, "--profile", "*", "config", "--format", "json"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = json.loads(process.stdout)["services"]
    return parsed


def test_the_services_of_the_platform(services: dict[str, Any]) -> None:
    kinds = ("kafka", "control-plane", "agent")
    assert [sum(name.startswith(f"{kind}-") for name in services) for kind in kinds] == [3, 2, 3]
    assert services.keys() >= {"postgres", "prometheus", "grafana"}


def test_ports_are_local_and_services_unprivileged(services: dict[str, Any]) -> None:
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


def test_each_agent_has_its_own_token(services: dict[str, Any]) -> None:
    agents = {name: service for name, service in services.items() if name.startswith("agent-")}
    mounted = [
        (volume["source"], volume.get("read_only"))
        for service in agents.values()
        for volume in service["volumes"]
        if volume["target"] == "/run/clonos/token"
    ]
    assert len(set(mounted)) == len(agents)
    assert all(read_only for _, read_only in mounted)
    for name, service in agents.items():
        command = service["command"]
        assert command[command.index("--name") + 1] == name


def test_a_spark_cluster_is_optional_and_shares_the_checkpoints_of_agents(services: dict[str, Any]) -> None:
    spark = {name: service for name, service in services.items() if name.startswith("spark-")}
    assert spark.keys() == {"spark-master", "spark-worker-1", "spark-worker-2", "spark-cluster"}
    assert all(service["profiles"] == ["spark"] for service in spark.values())
    mounts = {
        name: {mount["target"]: mount for mount in service["volumes"]}
        for name, service in services.items()
        if "volumes" in service
    }
    agent = mounts["agent-1"]
    assert {service["image"] for service in spark.values()} == {services["agent-1"]["image"]}, "the versions of drivers"
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        assert "user" not in spark[name], "the image's user"
        secret = mounts[name]["/run/clonos/clusters"]
        assert (secret["source"], secret["read_only"]) == ("clusters", True)
    assert agent["/var/lib/clonos/secrets/clusters"]["source"] == "clusters"
    assert agent["/var/lib/clonos/secrets/clusters"]["read_only"]
    for name in ("spark-worker-1", "spark-worker-2"):
        assert mounts[name]["/var/lib/clonos/shared"]["source"] == agent["/var/lib/clonos/shared"]["source"]
        assert spark[name]["command"][-1] == spark[name]["hostname"] == name
        assert "ports" not in spark[name]
    assert "/run/clonos/clusters" not in mounts["spark-cluster"], "the control plane never has the secret"
    assert not any(mount.get("source") == "clusters" for mount in mounts["control-plane-1"].values())


def test_grafana_files_refer_to_each_other(services: dict[str, Any]) -> None:
    """No test starts Grafana, because its image needs a registry."""
    mounted = {
        volume["target"]: Path(volume["source"])
        for volume in services["grafana"]["volumes"]
        if volume["type"] == "bind"
    }
    provisioned = mounted["/etc/grafana/provisioning"]
    sources = yaml.safe_load((provisioned / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert [source["url"] for source in sources] == ["http://prometheus:9090"]
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


def loaded(name: str) -> ModuleType:
    """A program of compose.yaml as a module."""
    spec = importlib.util.spec_from_file_location(f"compose_{name}", DOCKER / "compose" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = loaded("credentials")
    monkeypatch.setattr(os, "chown", lambda *_: None)  # only root may
    return module


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for name in ("ca", "tls", "database", "postgres", "grafana", "clusters"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_the_certificate_is_valid_for_its_names_only(credentials: ModuleType, volumes: Path) -> None:
    credentials.certificates(volumes)
    for name in (*credentials.NAMES, "127.0.0.1"):
        assert _handshake(volumes, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        _handshake(volumes, "elsewhere")
    assert not list((volumes / "ca").glob("*key*")), "the authority's key is not stored"


def test_existing_secrets_are_reused(credentials: ModuleType, volumes: Path) -> None:
    credentials.certificates(volumes)
    files = [file for file in volumes.rglob("*") if file.is_file()]
    before = {file: file.read_bytes() for file in files}
    credentials.certificates(volumes)
    assert {file: file.read_bytes() for file in files} == before
    for name in ("tls/key.pem", "database/pgpass", "clusters/spark"):
        assert stat.S_IMODE((volumes / name).stat().st_mode) == 0o400, "psql rejects files that others can read"


def test_a_certificate_that_expires_soon_is_renewed(
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
    assert _handshake(volumes, "control-plane")


def _handshake(volumes: Path, name: str) -> bool:
    """Whether a client that trusts the authority connects to a server of that name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(volumes / "tls/certificate.pem", volumes / "tls/key.pem")
    client = ssl.create_default_context(cafile=str(volumes / "ca/ca.pem"))
    near, far = socket.socketpair()
    with near, far:
        answering = threading.Thread(target=_answer, args=(server, far))
        answering.start()
        try:
            with client.wrap_socket(near, server_hostname=name) as secured:
                return secured.recv(1) == b"!"
        finally:
            answering.join(60)


def _answer(server: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        with server.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(b"!")
    except OSError:
        connection.close()


class _Clusters(Clusters):
    """The clusters of a control plane."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.writes = 0

    def get(self, name: str) -> Any:
        if name not in self.known:
            raise NotFound(f"There is no cluster {name!r}.")
        return self.known[name]

    def create(self, description: ClusterSpec) -> None:
        self.writes += 1
        self.known[description.name] = SimpleNamespace(spec=description.spec, version=1)

    def replace(self, description: ClusterSpec, *, version: int) -> None:
        assert version == self.known[description.name].version
        self.create(description)


def test_the_cluster_is_registered_once_and_changed_with_its_address(services: dict[str, Any]) -> None:
    spark, registered = loaded("spark"), _Clusters()
    for ui in ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:9999"):
        spark.register(SimpleNamespace(clusters=registered), ui)
    assert registered.writes == 2
    settings = registered.known["spark"].spec
    assert (settings.master, settings.ui) == ("spark://spark-master:7077", "http://127.0.0.1:9999")
    assert services["spark-master"]["hostname"] == spark.MASTER_HOST
    assert settings.auth_secret == "spark"
    (shared,) = settings.shared_locations
    assert shared.removeprefix("file://") in {mount["target"] for mount in services["agent-1"]["volumes"]}


@pytest.mark.parametrize("host", ["spark-master", "spark-worker-2"])
def test_a_process_of_spark_has_its_secret_in_a_private_file_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, services: dict[str, Any], host: str
) -> None:
    spark, secret = loaded("spark"), "5ecret" * 10
    monkeypatch.setattr(spark, "HOME", tmp_path)
    monkeypatch.setattr(spark, "SECRETS", tmp_path)
    (tmp_path / "spark").mkdir()
    monkeypatch.setattr(spark, "NAME", "secret-of-spark")
    (tmp_path / "secret-of-spark").write_text(secret + "\n")
    kept = tmp_path / "spark" / "recovery" / "app_1"
    kept.parent.mkdir()
    kept.write_text("")
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *process: became.append(process))
    spark.run(spark.process(host, "http://127.0.0.1:8080"), host)
    ((program, command, environment),) = became
    assert program == command[0]
    assert not any(secret in text for text in (*command, *environment.values()))
    properties = tmp_path / "spark" / "spark.properties"
    assert f"spark.authenticate.secret={secret}" in properties.read_text().splitlines()
    assert stat.S_IMODE(properties.stat().st_mode) == 0o600
    assert kept.exists(), "a master that starts again continues with its applications"
    assert command[command.index("--host") + 1] == host == environment["SPARK_LOCAL_HOSTNAME"]
    port = command[command.index("--webui-port") + 1]
    assert f"/{port}" in services[host]["healthcheck"]["test"][-1]
    if host != "spark-master":
        assert command[-1] == "spark://spark-master:7077"
