"""The Java of Spark's JVMs, and the launcher script for executors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clonos.embedded.spark_java import StartUpCache, java_home_for_spark, scala_version, spark_flags, spark_home

_VECTOR = "--add-modules=jdk.incubator.vector"


def jdk(folder: Path, version: str, modules: str) -> Path:
    """A JDK whose ``java`` prints its arguments, one per line."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return java


def arguments(home: Path, *passed: str) -> list[str]:
    """What the Java of `home` receives."""
    return subprocess.run(
        [home / "bin" / "java", *passed], capture_output=True, text=True, check=True, timeout=30
    ).stdout.splitlines()


def test_a_java_with_the_vector_module_is_used_as_it_is(tmp_path: Path) -> None:
    java = jdk(tmp_path / "jdk", "17.0.9", "java.base jdk.incubator.vector")
    assert java_home_for_spark(tmp_path / "launcher", java) == tmp_path / "jdk"
    assert not (tmp_path / "launcher").exists()


def test_the_launcher_drops_the_module_that_java_lacks(tmp_path: Path) -> None:
    java = jdk(tmp_path / "a jdk", "17.0.9", "java.base")
    home = java_home_for_spark(tmp_path / "launcher", java)
    passed = ["-Xmx1g", _VECTOR, "-Dname=two words", "", "Main", "it's"]
    assert arguments(home, *passed) == ["-Xmx1g", "-Dname=two words", "", "Main", "it's"]


@pytest.mark.parametrize("modules", ["java.base", "java.base jdk.incubator.vector"])
def test_java_25_gets_the_flags_that_arrow_needs(tmp_path: Path, modules: str) -> None:
    java = jdk(tmp_path / "jdk", "25.0.1", modules)
    home = java_home_for_spark(tmp_path / "launcher", java)
    received = arguments(home, _VECTOR, "", "Main")
    assert received[-2:] == ["", "Main"], "an empty argument is passed"
    assert "-Dio.netty.noUnsafe=false" in received
    assert (_VECTOR in received) == ("vector" in modules)


def test_executors_use_the_cache_with_the_flags_and_the_class_path_of_its_training_run(tmp_path: Path) -> None:
    java = jdk(tmp_path / "jdk", "25.0.1", "java.base")
    cache = StartUpCache(("-XX:AOTCache=a file.aot",), "/spark/jars/*:/own classes.jar")
    home = java_home_for_spark(tmp_path / "launcher", java, cache)
    by_spark = ["-cp", "/spark/conf:/spark/jars/a.jar", _VECTOR, "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    by_user = ["--add-opens=java.base/java.lang.ref=ALL-UNNAMED", "-Dempty=", ""]
    received = arguments(home, *by_spark, *by_user, "Main", "-cp-of-the-program")
    expected = [*spark_flags(java), *cache.flags, "-cp", f"{cache.class_path}:/spark/conf:/spark/jars/a.jar"]
    assert received == [*expected, *by_user, "Main", "-cp-of-the-program"]


def test_a_java_without_a_release_file_gets_the_launcher(tmp_path: Path) -> None:
    java = jdk(tmp_path / "jdk", "17.0.9", "java.base jdk.incubator.vector")
    (tmp_path / "jdk" / "release").unlink()
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.9"\' >&2\nprintf "%s\\n" "$@"\n')
    home = java_home_for_spark(tmp_path / "launcher", java)
    assert arguments(home, _VECTOR, "Main") == ["Main"]


def test_the_flags_follow_the_version_of_java(tmp_path: Path) -> None:
    old, new = jdk(tmp_path / "17", "17.0.9", ""), jdk(tmp_path / "25", "25.0.1", "")
    assert "--sun-misc-unsafe-memory-access=allow" not in spark_flags(old)
    assert "--sun-misc-unsafe-memory-access=allow" in spark_flags(new)
    assert "--add-opens=java.base/sun.security.action=ALL-UNNAMED" in spark_flags(old)


def test_the_home_of_spark_has_its_jars() -> None:
    assert list((spark_home() / "jars").glob("spark-core_*.jar"))
    assert scala_version().startswith("2.")
