"""What `clonos doctor` finds; Kafka itself is looked at in `tests/integration/test_up_and_down.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import Response

from cli.conftest import Clonos
from cli.service import TOKEN, FakeService, host, problem
from clonos.client.credentials import Credentials
from clonos.doctor import examine, kafka, machine, service
from clonos.doctor.check import Check
from clonos.embedded.processes import Recorded
from clonos.local.state import Folder, State
from clonos.resources.hosts import HostState
from clonos.resources.service import Health
from clonos.settings import KafkaSettings, Settings

GOOD = {
    "transaction.max.timeout.ms": "900000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "unclean.leader.election.enable": "false",
}


def told(checks: Iterable[Check]) -> dict[str, str]:
    """Name → status; what is not well says what follows and how to mend it."""
    found = list(checks)
    assert all(one.status == "ok" or (one.meaning and one.mend) for one in found), found
    return {one.name: one.status for one in found}


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


def test_this_machine_is_well(settings: Settings) -> None:
    checks = [*machine.python(), *machine.java(), *machine.home(settings)]
    assert told(checks) == {"Python": "ok", "Java": "ok", "CLONOS_HOME": "ok"}


def test_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (check,) = machine.java()
    assert (check.status, "unset JAVA_HOME" in check.mend) == ("fail", True)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGES", ("pyspark", "no-such-package"))
    assert told(machine.python()) == {"Python": "fail"}


def test_jars_that_are_not_there_or_not_what_they_should_be(settings: Settings, tmp_path: Path) -> None:
    empty = settings.model_copy(update={"cache": tmp_path / "cache"})
    assert told(machine.jars(empty)) == {"jars": "warn"}
    assert not (tmp_path / "cache").exists(), "nothing is fetched"
    from clonos.embedded.jars import _pin

    folder = tmp_path / "cache" / "jars" / _pin()
    (folder / "broker").mkdir(parents=True)
    (folder / ".complete").touch()
    assert told(machine.jars(empty)) == {"jars": "fail"}


def test_homes_that_do_not_do(settings: Settings, tmp_path: Path) -> None:
    settings.home.mkdir()
    settings.home.chmod(0o777)
    assert told(machine.home(settings)) == {"CLONOS_HOME": "warn"}
    (tmp_path / "file").touch()
    assert told(machine.home(Settings(home=tmp_path / "file"))) == {"CLONOS_HOME": "fail"}


@pytest.mark.parametrize(("free", "status"), [(10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "fail")])
def test_disks(settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=100 << 30, free=free))
    assert told(machine.disk(settings)) == {"disk": status}


def test_limits_of_transactions() -> None:
    assert told(kafka.limits(GOOD)) == {"transaction limit": "ok"}
    assert told(kafka.limits({**GOOD, "transaction.max.timeout.ms": "30000"})) == {"transaction limit": "fail"}


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
def test_replication(changed: dict[str, str | None], brokers: int, embedded: bool, status: str) -> None:
    assert told(kafka.safety({**GOOD, **changed}, brokers, embedded=embedded)) == {"replication": status}


def test_unclean_elections() -> None:
    found = told(kafka.safety({**GOOD, "unclean.leader.election.enable": "true"}, 3, embedded=False))
    assert found == {"replication": "ok", "leader election": "fail"}


@pytest.mark.parametrize(
    ("at", "status", "said"),
    [
        (1_050, "ok", "agrees"),
        (500, "ok", "agrees"),
        (4_200, "warn", "3.1 s ahead"),
        (-4_000, "warn", "5.0 s behind"),
        (100_000, "fail", "ahead"),
        (-100_000, "fail", "behind"),
    ],
)
def test_clocks(at: float, status: str, said: str) -> None:
    found = kafka.clock(1_000, at, 1_100)
    assert (found.status, said in found.what) == (status, True)


def test_no_kafka(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(kafka.look(settings)) == {"Kafka": "warn"}
    monkeypatch.setattr(kafka, "_PATIENCE_S", 0.2)
    away = settings.model_copy(update={"kafka": KafkaSettings(bootstrap_servers="127.0.0.1:9")})
    assert told(kafka.look(away)) == {"Kafka": "fail"}


class TestControlPlane:
    """As it tells itself."""

    def test_well(self, settings: Settings, fake: FakeService) -> None:
        fake.hosts.append(host())
        found = told(service.look(settings, fake.url, TOKEN))
        assert found == {"control plane": "ok", "database": "ok", "token": "ok", "hosts": "ok"}

    def test_unwell(self, settings: Settings, fake: FakeService) -> None:
        fake.health = Health(
            status="degraded", version="0.1.0", database="away", leader=False, checks={"database": "gone"}
        )
        assert told(service.look(settings, fake.url, TOKEN)) == {"control plane": "fail", "database": "fail"}

    def test_hosts_that_are_lost_or_none(self, settings: Settings, fake: FakeService) -> None:
        assert told(service.look(settings, fake.url, TOKEN))["hosts"] == "fail"
        fake.hosts += [host("host-1"), host("host-2").model_copy(update={"state": HostState.LOST})]
        assert told(service.look(settings, fake.url, TOKEN))["hosts"] == "warn"

    def test_refused(self, settings: Settings, fake: FakeService) -> None:
        assert told(service.look(settings, fake.url, "wrong")) == {"control plane": "fail"}
        fake.faults.append(problem(403, "of-a-newer-version", "No."))
        assert told(service.look(settings, fake.url, TOKEN)) == {"control plane": "fail"}
        fake.faults.append(Response("<html>", 500))
        assert told(service.look(settings, fake.url, TOKEN)) == {"control plane": "fail"}

    def test_away(self, settings: Settings) -> None:
        assert told(service.look(settings, "http://127.0.0.1:9", None)) == {"control plane": "fail"}
        Credentials("http://127.0.0.1:9").write(settings.home)
        assert told(service.look(settings, None, None)) == {"control plane": "fail"}

    def test_a_token_that_ends_soon(
        self, settings: Settings, fake: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = SimpleNamespace(name="mine", expires_at=datetime.now(UTC) + timedelta(hours=5))
        client = SimpleNamespace(tokens=SimpleNamespace(self=lambda: token))
        (check,) = service._token(client)  # type: ignore[arg-type]
        assert check.status == "warn"
        assert "more hours" in check.what

    def test_credentials_that_others_can_read(self, settings: Settings) -> None:
        Credentials("http://127.0.0.1:9").write(settings.home).chmod(0o644)
        assert told(service.look(settings, None, None)) == {"credentials": "fail"}

    def test_a_supervisor_that_was_killed(self, settings: Settings, fake: FakeService) -> None:
        folder = Folder.of(settings.home)
        folder.make()
        State("ready", Recorded(1, 1.0)).write(folder)
        assert told(service.look(settings, fake.url, TOKEN))["local stack"] == "warn"


@pytest.fixture
def fake() -> Iterable[FakeService]:
    made = FakeService()
    made.start()
    yield made
    made.stop()


def test_a_port_that_is_taken(settings: Settings, fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_PORT", int(fake.url.rpartition(":")[2]))
    assert told(service.port(settings)) == {"port": "warn"}
    monkeypatch.setattr(service, "FIRST_PORT", 9)
    assert told(service.port(settings)) == {"port": "ok"}


def test_one_look_that_stumbles_does_not_hide_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble() -> list[Check]:
        raise RuntimeError("oh")

    monkeypatch.setattr(machine, "java", stumble)
    found = examine(settings)
    assert found.status == "fail"
    checks = {one.name: one for one in found.checks}
    assert checks["Java"].what == "RuntimeError: oh"
    assert "disk" in checks


def test_the_command(clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.hosts.append(host())
    good = clonos("doctor", "-o", "json")
    found = json.loads(good.stdout)
    assert good.exit_code == 0, found
    assert found["status"] == "warn", "there is no Kafka"
    service.hosts.clear()
    bad = clonos("doctor", ok=False)
    assert bad.exit_code == 1
    assert "mend it: start an agent on a machine" in bad.stdout
