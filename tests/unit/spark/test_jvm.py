"""The JVM's command line, and the Java class of Clonos."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from clonos.embedded.jars import Jars
from clonos.embedded.java import java_binary
from clonos.spark import jvm
from clonos.spark.localfs import CLASS, JAR, SOURCE
from clonos.spark.session import session_conf


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
    java, jars = java_binary(), Jars(tmp_path / "connector", tmp_path / "broker")
    assert "-XX:+UseSerialGC" in jvm._java_command(java, jars, 1024, [], [])
    assert "-XX:+UseSerialGC" not in jvm._java_command(java, jars, 1024, ["-XX:AOTCacheOutput=x"], [])


def test_the_jar_is_built_from_its_source() -> None:
    with zipfile.ZipFile(JAR) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
        names = archive.namelist()
    assert f"Source-SHA256: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}" in manifest, (
        "run python -m clonos.spark.localfs"
    )
    assert f"{CLASS.replace('.', '/')}.class" in names


def test_only_a_local_master_has_the_class() -> None:
    assert session_conf("job", "auto", {})["spark.hadoop.fs.file.impl"] == CLASS
    assert "spark.hadoop.fs.file.impl" not in session_conf("job", "spark://host:7077", {})
    own = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
    assert session_conf("job", "auto", own)["spark.hadoop.fs.file.impl"] == own["spark.hadoop.fs.file.impl"]
