"""The checks of `clonos doctor`; `tests/integration/jobs/test_up_and_down.py` covers a real Kafka."""

from __future__ import annotations

import json
import pwd
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import Response

from clonos.client.credentials import Credentials
from clonos.doctor import control_plane, diagnose, kafka, machine
from clonos.doctor.check import Check
from clonos.embedded.processes import ProcessRecord
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.resources.service import Health, Role, Token
from clonos.settings import KafkaSettings, Settings
from component.cli.conftest import Clonos
from component.cli.service import TOKEN, FakeService, host, problem

GOOD = {
    "transaction.max.timeout.ms": "900000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "unclean.leader.election.enable": "false",
}


def statuses(checks: Iterable[Check]) -> dict[str, str]:
    """The status of each check by name; a problem must have a meaning and a fix."""
    results = list(checks)
    assert all(check.status == "ok" or (check.meaning and check.fix) for check in results), results
    return {check.name: check.status for check in results}


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


def test_the_machine_checks_pass_here(settings: Settings) -> None:
    checks = [*machine.python(), *machine.java(), *machine.home(settings)]
    assert statuses(checks) == {"Python": "ok", "Java": "ok", "CLONOS_HOME": "ok"}


def test_a_missing_java_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (check,) = machine.java()
    assert (check.status, "unset JAVA_HOME" in check.fix) == ("fail", True)


def test_missing_packages_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("pyspark", "no-such-package"))
    assert statuses(machine.python()) == {"Python": "fail"}


def test_missing_jars_warn_and_wrong_jars_fail(settings: Settings, tmp_path: Path) -> None:
    empty = settings.model_copy(update={"cache": tmp_path / "cache"})
    assert statuses(machine.jars(empty)) == {"jars": "warn"}
    assert not (tmp_path / "cache").exists(), "nothing is downloaded"
    from clonos.embedded.jars import _pin

    folder = tmp_path / "cache" / "jars" / _pin()
    (folder / "broker").mkdir(parents=True)
    (folder / ".complete").touch()
    assert statuses(machine.jars(empty)) == {"jars": "fail"}


def test_a_missing_start_up_cache_warns(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "spark.aot"
    monkeypatch.setattr("clonos.spark.jvm.aot_file", lambda _jars, _java: file)
    monkeypatch.setattr(machine.aot, "supported", lambda _java: True)
    assert statuses(machine.start_up_cache(settings)) == {"start-up cache": "warn"}
    file.touch()
    assert statuses(machine.start_up_cache(settings)) == {"start-up cache": "ok"}
    empty = settings.model_copy(update={"cache": tmp_path / "cache"})
    assert statuses(machine.start_up_cache(empty)) == {}, "the check of the jars warns"
    monkeypatch.setattr(machine.aot, "supported", lambda _java: False)
    assert statuses(machine.start_up_cache(settings)) == {}


def test_an_unsafe_home_warns_and_an_unusable_home_fails(settings: Settings, tmp_path: Path) -> None:
    settings.home.mkdir()
    settings.home.chmod(0o777)
    assert statuses(machine.home(settings)) == {"CLONOS_HOME": "warn"}
    (tmp_path / "file").touch()
    assert statuses(machine.home(Settings(home=tmp_path / "file"))) == {"CLONOS_HOME": "fail"}


@pytest.mark.parametrize(("free", "status"), [(10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")])
def test_disk_thresholds(settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=100 << 30, free=free))
    assert statuses(machine.disk(settings)) == {"disk": status}


def test_a_low_transaction_timeout_fails() -> None:
    assert statuses(kafka.limits(GOOD)) == {"transaction limit": "ok"}
    assert statuses(kafka.limits({**GOOD, "transaction.max.timeout.ms": "30000"})) == {"transaction limit": "fail"}


def test_other_accounts_of_a_machine_with_the_embedded_kafka() -> None:
    """The embedded Kafka has no password."""
    system = pwd.struct_passwd(("www", "x", 33, 33, "", "/", "/bin/sh"))
    locked = pwd.struct_passwd(("old", "x", 1500, 1500, "", "/", "/usr/sbin/nologin"))
    eve = pwd.struct_passwd(("eve", "x", 1501, 1501, "", "/", "/bin/bash"))
    assert not list(kafka.users([system, locked]))
    (found,) = kafka.users([system, locked, eve])
    assert found.status == "warn"
    assert "eve" in found.what


@pytest.mark.parametrize(
    ("changed", "brokers", "embedded", "status"),
    [
        ({}, 3, False, "ok"),
        ({}, 1, True, "ok"),
        ({}, 1, False, "warn"),
        ({"min.insync.replicas": "1"}, 3, False, "warn"),
        ({"transaction.state.log.replication.factor": "1"}, 3, False, "warn"),
        ({"default.replication.factor": None}, 3, True, "warn"),
    ],
)
def test_replication_status(changed: dict[str, str | None], brokers: int, embedded: bool, status: str) -> None:
    assert statuses(kafka.safety({**GOOD, **changed}, brokers, embedded=embedded)) == {"replication": status}


def test_unclean_leader_election_fails() -> None:
    results = statuses(kafka.safety({**GOOD, "unclean.leader.election.enable": "true"}, 3, embedded=False))
    assert results == {"replication": "ok", "leader election": "fail"}


@pytest.mark.parametrize(
    ("at", "status", "text"),
    [
        (1_050, "ok", "less than a second"),
        (500, "ok", "less than a second"),
        (4_200, "warn", "3.1 s ahead"),
        (-4_000, "warn", "5.0 s behind"),
        (100_000, "fail", "ahead"),
        (-100_000, "fail", "behind"),
    ],
)
def test_clock_skew_thresholds(at: float, status: str, text: str) -> None:
    check = kafka.clock(1_000, at, 1_100)
    assert (check.status, text in check.what) == (status, True)


def test_a_missing_kafka_warns_and_an_unreachable_kafka_fails(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert statuses(kafka.check(settings)) == {"Kafka": "warn"}
    monkeypatch.setattr(kafka, "_REACHABLE_TIMEOUT_S", 0.2)
    unreachable = settings.model_copy(update={"kafka": KafkaSettings(bootstrap_servers="127.0.0.1:9")})
    assert statuses(kafka.check(unreachable)) == {"Kafka": "fail"}


class TestControlPlane:
    """Checks against a fake control plane."""

    def test_a_healthy_control_plane_passes(self, settings: Settings, service: FakeService) -> None:
        service.hosts.append(host())
        results = statuses(control_plane.check(settings, service.url, TOKEN))
        assert results == {"control plane": "ok", "database": "ok", "token": "ok", "hosts": "ok"}

    def test_a_degraded_control_plane_fails(self, settings: Settings, service: FakeService) -> None:
        service.health = Health(
            status="degraded", version="0.1.0", database="unavailable", leader=False, checks={"database": "unreachable"}
        )
        assert statuses(control_plane.check(settings, service.url, TOKEN)) == {
            "control plane": "fail",
            "database": "fail",
        }

    def test_no_hosts_fail_and_lost_hosts_warn(self, settings: Settings, service: FakeService) -> None:
        assert statuses(control_plane.check(settings, service.url, TOKEN))["hosts"] == "fail"
        service.hosts += [host("host-1"), host("host-2").model_copy(update={"state": HostState.LOST})]
        assert statuses(control_plane.check(settings, service.url, TOKEN))["hosts"] == "warn"

    def test_a_rejected_request_fails(self, settings: Settings, service: FakeService) -> None:
        assert statuses(control_plane.check(settings, service.url, "wrong")) == {"control plane": "fail"}
        service.faults.append(problem(403, "of-a-newer-version", "No."))
        assert statuses(control_plane.check(settings, service.url, TOKEN)) == {"control plane": "fail"}
        service.faults.append(Response("<html>", 500))
        assert statuses(control_plane.check(settings, service.url, TOKEN)) == {"control plane": "fail"}

    def test_another_service_at_the_default_address_is_not_a_failure(
        self, settings: Settings, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(control_plane, "resolve", lambda *_args, **_options: Credentials(service.url))
        (check,) = control_plane.check(settings, None, None)
        assert check.status == "warn"
        assert "belongs to another service" in check.what
        assert "clonos up" in check.fix
        assert statuses(control_plane.check(settings, service.url, None)) == {"control plane": "fail"}, "it was named"

    def test_an_unreachable_control_plane_fails(self, settings: Settings) -> None:
        assert statuses(control_plane.check(settings, "http://127.0.0.1:9", None)) == {"control plane": "fail"}
        Credentials("http://127.0.0.1:9").write(settings.home)
        assert statuses(control_plane.check(settings, None, None)) == {"control plane": "fail"}

    def test_a_token_that_expires_soon_warns(self, settings: Settings, service: FakeService) -> None:
        moment = datetime.now(UTC)
        admin = Token(
            id="1",
            name="ci",
            role=Role.ADMIN,
            subject="ci",
            created_at=moment - timedelta(days=24),
            expires_at=moment + timedelta(days=6),
            last_used_at=moment,
        )
        agents = admin.model_copy(update={"id": "2", "role": Role.AGENT, "host": "host-1"})
        replaced = agents.model_copy(update={"id": "3", "replaced_by": "4"})
        unused = agents.model_copy(update={"id": "5", "last_used_at": moment - timedelta(days=8)})
        page = SimpleNamespace(data=[admin, agents, replaced, unused])
        client = SimpleNamespace(tokens=SimpleNamespace(self=lambda: admin, list=lambda: page))
        own, other = control_plane._token(client)  # type: ignore[arg-type]
        assert (own.status, other.status) == ("warn", "warn")
        assert "expires in 5 days" in own.what
        assert "of the agent of host-1 expires in 5 days" in other.what

    def test_credentials_readable_by_others_fail(self, settings: Settings) -> None:
        Credentials("http://127.0.0.1:9").write(settings.home).chmod(0o644)
        assert statuses(control_plane.check(settings, None, None)) == {"credentials": "fail"}

    def test_a_killed_supervisor_warns(self, settings: Settings, service: FakeService) -> None:
        folder = Folder.of(settings.home)
        folder.create()
        State("ready", ProcessRecord(1, 1.0)).write(folder)
        assert statuses(control_plane.check(settings, service.url, TOKEN))["local stack"] == "warn"


def test_a_used_port_warns(settings: Settings, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "FIRST_PORT", int(service.url.rpartition(":")[2]))
    assert statuses(control_plane.port(settings)) == {"port": "warn"}
    monkeypatch.setattr(control_plane, "FIRST_PORT", 9)
    assert statuses(control_plane.port(settings)) == {"port": "ok"}


def test_a_check_that_raises_does_not_hide_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error() -> list[Check]:
        raise RuntimeError("oh")

    monkeypatch.setattr(machine, "java", raise_error)
    diagnosis = diagnose(settings)
    assert diagnosis.status == "fail"
    checks = {check.name: check for check in diagnosis.checks}
    assert checks["Java"].what == "RuntimeError: oh"
    assert "disk" in checks


def test_the_command_exits_with_1_on_a_failure(clonos: Clonos, service: FakeService) -> None:
    service.hosts.append(host())
    passing = clonos("doctor", "-o", "json")
    body = json.loads(passing.stdout)
    assert passing.exit_code == 0, body
    assert body["status"] == "warn", "there is no Kafka"
    service.hosts.clear()
    failing = clonos("doctor", ok=False)
    assert failing.exit_code == 1
    assert "fix it: start an agent on a machine" in failing.stdout


def test_an_unknown_context_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert statuses(control_plane.check(settings, None, None, "nope")) == {"credentials": "fail"}
