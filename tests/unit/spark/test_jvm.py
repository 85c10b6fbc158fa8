"""The JVM's command line, and the Java class of Clonos."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clonos.embedded.jars import Jars, ensure_jars
from clonos.embedded.java import java_binary
from clonos.errors import EnvironmentFault
from clonos.host_inputs import ZONE_AND_LOCALE, fix_zone_and_locale
from clonos.settings import Settings
from clonos.spark import classes, jvm
from clonos.spark.classes import ensure_classes
from clonos.spark.java import LOCAL_FILE_SYSTEM
from clonos.spark.session import LIVE_PYTHON, session_conf


@pytest.mark.parametrize(
    ("heap_mb", "options", "environment", "chosen"),
    [
        (1024, [], "", ["-XX:+UseSerialGC"]),
        (2048, [], "", []),
        (1024, ["-XX:+UseZGC"], "", []),
        (1024, ["-XX:+UseStringDeduplication"], "", ["-XX:+UseSerialGC"]),
        (1024, [], "-Xlog:gc -XX:+UseParallelGC", []),
    ],
)
def test_small_heaps_are_collected_serially_unless_the_user_names_a_collector(
    heap_mb: int, options: list[str], environment: str, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", environment)
    assert jvm._collector(heap_mb, options) == chosen


def test_cache_is_created_with_the_default_collector(tmp_path: Path) -> None:
    java, jars = java_binary(), Jars(*(tmp_path / name for name in ("connector", "broker", "compiler")))
    assert "-XX:+UseSerialGC" in jvm._java_command(java, jars, 1024, [], [])
    assert "-XX:+UseSerialGC" not in jvm._java_command(java, jars, 1024, ["-XX:AOTCacheOutput=x"], [])


def test_the_users_thresholds_of_the_compiler_have_precedence(tmp_path: Path) -> None:
    jars = Jars(*(tmp_path / name for name in ("connector", "broker", "compiler")))
    command = jvm._java_command(java_binary(), jars, 1024, [], ["-XX:Tier4InvocationThreshold=5000"])
    thresholds = [option for option in command if option.startswith("-XX:Tier4InvocationThreshold=")]
    assert thresholds == ["-XX:Tier4InvocationThreshold=50000", "-XX:Tier4InvocationThreshold=5000"], (
        "the last one counts"
    )


def test_the_users_zone_and_locale_have_precedence_over_ours_and_ours_over_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = Jars(*(tmp_path / name for name in ("connector", "broker", "compiler")))
    command = jvm._java_command(java_binary(), jars, 1024, [], ["-Duser.timezone=Asia/Tokyo"])
    zones = [option for option in command if option.startswith("-Duser.timezone=")]
    assert zones == ["-Duser.timezone=UTC", "-Duser.timezone=Asia/Tokyo"], "the last one counts"
    assert "-Duser.language=en" in command
    for name, value in ZONE_AND_LOCALE.items():
        assert session_conf("job", "local[2]", {})[f"spark.executorEnv.{name}"] == value
    assert session_conf("job", "local[2]", {"spark.executorEnv.TZ": "Asia/Tokyo"})["spark.executorEnv.TZ"] == (
        "Asia/Tokyo"
    )
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("LC_TIME", "de_DE.UTF-8")
    monkeypatch.setenv("LC_ALL", "C")
    fix_zone_and_locale()
    try:
        assert (time.localtime(0).tm_hour, os.environ["LC_ALL"], os.environ.get("LC_TIME")) == (0, "C.UTF-8", None)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_hadoops_configuration_is_on_the_class_path_for_yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "")
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert jvm._hadoop_conf({"spark.master": "local[2]"}) == []
    folders = jvm._hadoop_conf({"spark.master": "yarn"})
    jars = Jars(*(tmp_path / name for name in ("connector", "broker", "compiler")))
    command = jvm._java_command(java_binary(), jars, 1024, [], [], folders)
    assert command[-1].split(":")[-1] == "/etc/hadoop"


@pytest.fixture
def foreign_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with a sink, whose Java class is beside its module."""
    site = tmp_path / "site"
    files = {
        "owls-1.dist-info/METADATA": "Name: owls\nVersion: 1\n",
        "owls-1.dist-info/entry_points.txt": "[clonos.sinks]\nowls = owls.sink:OwlSink\n",
        "owls/__init__.py": "raise ImportError('classes are found without an import')",
        "owls/sink.py": "",
        "owls/java/Owl.java": "package owls; public final class Owl { clonos.EpochCommitter committer; }",
    }
    for name, content in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    monkeypatch.syspath_prepend(str(site))
    classes._folders.cache_clear()
    yield
    classes._folders.cache_clear()


def entries(jar: Path) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Names, times and contents, in their order, without the foreign sink."""
    with zipfile.ZipFile(jar) as archive:
        every = [(entry.filename, entry.date_time, archive.read(entry)) for entry in archive.infolist()]
    return [entry for entry in every if not entry[0].startswith("owls/")]


@pytest.mark.usefixtures("foreign_sink")
def test_classes_are_compiled_once_from_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = _jars_with_empty_cache(tmp_path)
    jar = ensure_classes(jars, strict=True)
    with zipfile.ZipFile(jar) as archive:
        compiled = set(archive.namelist())
    for name in (LOCAL_FILE_SYSTEM, LIVE_PYTHON, "clonos.RepeatableKafka", "clonos.LaneProducer", "owls.Owl"):
        assert f"{name.replace('.', '/')}.class" in compiled
    monkeypatch.setattr(classes, "compile_jar", None)
    assert ensure_classes(jars) == jar
    monkeypatch.undo()
    classes._folders.cache_clear()
    earlier = ensure_classes(ensure_jars(Settings()))  # by `make setup`, without the foreign sink
    assert entries(jar) == entries(earlier), "equal sources give equal jars"


def test_a_compile_error_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "Broken.java"
    source.write_text("class Broken { int number = unknown; }")
    monkeypatch.setattr(classes, "_sources", lambda: [source])
    jars = _jars_with_empty_cache(tmp_path)
    with pytest.raises(EnvironmentFault, match="unknown cannot be resolved"):
        ensure_classes(jars)
    assert not list(tmp_path.rglob("clonos-*.jar"))


def _jars_with_empty_cache(tmp_path: Path) -> Jars:
    cached = ensure_jars(Settings())
    (tmp_path / "connector").symlink_to(cached.connector)
    return Jars(tmp_path / "connector", cached.broker, cached.compiler)


def test_only_a_local_master_has_the_class() -> None:
    assert session_conf("job", "auto", {})["spark.hadoop.fs.file.impl"] == LOCAL_FILE_SYSTEM
    assert "spark.hadoop.fs.file.impl" not in session_conf("job", "spark://host:7077", {})
    own = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
    assert session_conf("job", "auto", own)["spark.hadoop.fs.file.impl"] == own["spark.hadoop.fs.file.impl"]
