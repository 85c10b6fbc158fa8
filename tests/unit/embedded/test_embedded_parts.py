from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from clonos.embedded import jars as jars_module
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import Jars, ensure_jars, ivy_command, pinned
from clonos.embedded.java import java_binary, java_major, jks
from clonos.embedded.processes import ProcessRecord, spawn, stop_all
from clonos.errors import DirectoryInUse, JarsUnavailable, JavaNotFound, SpecError
from clonos.settings import Settings
from clonos.spark.session import PROMISED, session_conf


def java_home(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch()
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def test_the_wheels_java_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_major(java_binary()) == 25


@pytest.mark.parametrize("version", ["17.0.9", "21", "25.0.2"])
def test_java_home_overrides_the_wheel(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", version)))
    assert java_binary() == tmp_path / "jdk" / "bin" / "java"


@pytest.mark.parametrize(("version", "message"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11"), ("24", "Java 24")])
def test_unsupported_versions_raise(
    version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "jdk", version)))
    with pytest.raises(JavaNotFound, match=message):
        java_binary()


def test_a_java_home_without_java_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match="JAVA_HOME"):
        java_binary()


@pytest.mark.parametrize(("file", "folders"), [("ivy.xml", jars_module._SETS), ("ivy-s3.xml", jars_module._S3_SETS)])
def test_every_jar_in_ivy_has_a_checksum(file: str, folders: tuple[str, ...]) -> None:
    ivy = ElementTree.fromstring(resources.files("clonos.embedded").joinpath(file).read_text())
    listed = {
        f"{dependency.get('conf', '').partition('->')[0]}/{dependency.get('name')}-{dependency.get('rev')}.jar"
        for dependency in ivy.iter("dependency")
    }
    assert listed == set(pinned(folders))
    assert all(dependency.get("transitive") == "false" for dependency in ivy.iter("dependency"))


def fake_ivy(monkeypatch: pytest.MonkeyPatch, content: bytes, expected: bytes) -> None:
    names = ("connector/a-1.jar", "broker/b-1.jar")
    program = (
        "import pathlib, sys\n"
        f"for name in {names!r}:\n"
        "    file = pathlib.Path(sys.argv[-1].split('/[conf]')[0], name)\n"
        "    file.parent.mkdir(exist_ok=True)\n"
        f"    file.write_bytes({content!r})\n"
    )
    monkeypatch.setattr(jars_module, "ivy_command", lambda settings, scratch, **_: [sys.executable, "-c", program])
    monkeypatch.setattr(jars_module, "pinned", lambda *_: dict.fromkeys(names, hashlib.sha256(expected).hexdigest()))


def test_jars_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ivy(monkeypatch, b"jar", b"jar")
    settings = Settings(cache=tmp_path)
    jars = ensure_jars(settings)
    assert (jars.connector / "a-1.jar").read_bytes() == b"jar"
    assert (jars.broker / "b-1.jar").exists()
    monkeypatch.setattr(jars_module, "ivy_command", None)
    assert ensure_jars(settings) == jars
    assert not list((tmp_path / "jars").glob(".download-*"))


def test_a_modified_jar_is_rejected_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ivy(monkeypatch, b"evil", b"jar")
    with pytest.raises(JarsUnavailable, match=r"a-1\.jar"):
        ensure_jars(Settings(cache=tmp_path))
    assert not list((tmp_path / "jars").rglob("*.jar"))


def test_a_failed_download_reports_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "print('  module not found: a#b;1'); raise SystemExit(1)"
    monkeypatch.setattr(jars_module, "ivy_command", lambda settings, scratch, **_: [sys.executable, "-c", program])
    with pytest.raises(JarsUnavailable, match="a#b;1") as caught:
        ensure_jars(Settings(cache=tmp_path))
    assert "CLONOS_IVY_SETTINGS" in caught.value.hint


def test_ivy_uses_the_mirror_settings(tmp_path: Path) -> None:
    command = ivy_command(Settings(cache=tmp_path, ivy_settings=Path("/mirror.xml")), tmp_path)
    assert command[command.index("-settings") + 1] == "/mirror.xml"
    assert command[command.index("-cache") + 1].startswith(str(tmp_path))


def test_a_trust_store_ends_with_its_digest() -> None:
    store = jks([b"one", b"two"])
    assert store[:4] == bytes.fromhex("feedfeed")
    key = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    assert store[-20:] == hashlib.sha1(key + store[:-20]).digest()


def test_a_directory_with_other_data_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DirectoryInUse, match="not empty"):
        EmbeddedKafka(tmp_path, jars=Jars(tmp_path, tmp_path, tmp_path)).start()
    assert [file.name for file in tmp_path.iterdir() if file.name != ".lock"] == ["thesis.txt"]


def test_a_missing_directory_has_no_cluster(tmp_path: Path) -> None:
    status = EmbeddedKafka(tmp_path / "none").status()
    assert not status.running
    assert status.brokers == ()
    EmbeddedKafka(tmp_path / "none").stop()


def test_a_running_cluster_and_another_size_are_rejected(tmp_path: Path) -> None:
    own = ProcessRecord(os.getpid(), __import__("psutil").Process().create_time())
    record = {
        "cluster_id": "x",
        "ports": [{"client": 7, "controller": 8, "internal": 9}],
        "processes": [{"pid": own.pid, "created": own.created}],
    }
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    with pytest.raises(DirectoryInUse, match=r"127\.0\.0\.1:7"):
        EmbeddedKafka(tmp_path, jars=Jars(tmp_path, tmp_path, tmp_path)).start()
    record["processes"] = [{"pid": own.pid, "created": own.created - 60}]
    (tmp_path / "cluster.json").write_text(json.dumps(record))
    with pytest.raises(DirectoryInUse, match="1 brokers, not of 3"):
        EmbeddedKafka(tmp_path, brokers=3, jars=Jars(tmp_path, tmp_path, tmp_path)).start()


def test_an_invalid_record_raises(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(DirectoryInUse, match=r"cluster\.json"):
        EmbeddedKafka(tmp_path).status()


def test_a_reused_process_id_is_never_stopped() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stop_all([ProcessRecord(other.pid, 1.0)], grace_s=1)
        assert other.poll() is None
    finally:
        other.communicate()


def test_a_paused_process_stops_without_a_zombie(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-c", "import time; time.sleep(60)"], output=tmp_path / "out", directory=tmp_path)
    running = process.find()
    assert running is not None
    running.suspend()
    stop_all([process], grace_s=10)
    assert process.state() == "stopped"


def test_user_configuration_overrides_defaults() -> None:
    conf = session_conf("job", "local[3]", {"spark.sql.session.timeZone": "Europe/Rome"})
    assert conf["spark.sql.session.timeZone"] == "Europe/Rome"
    assert conf["spark.sql.shuffle.partitions"] == "6"
    assert conf["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("key", sorted(PROMISED))
def test_required_settings_cannot_be_changed(key: str) -> None:
    with pytest.raises(SpecError, match=key):
        session_conf("job", "local[2]", {key: "other"})
    assert session_conf("job", "local[2]", {key: PROMISED[key]})[key] == PROMISED[key]


def test_a_master_that_retries_tasks_raises() -> None:
    with pytest.raises(SpecError, match="retry"):
        session_conf("job", "local[2, 4]", {})
    session_conf("job", "local[2,1]", {})
