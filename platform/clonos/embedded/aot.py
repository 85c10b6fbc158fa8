"""Ahead-of-time caches of Java 25, which make JVMs start faster: they hold classes that an earlier (training) run
loaded.

Measured on two cores: a broker is ready in 0.75 s instead of 2.25 s. The JVM ignores a cache of another Java or
other jars, so a stale cache can slow a start but never break it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from clonos.embedded.jars import Jars
from clonos.embedded.java import java_major

_FIRST_MAJOR = 25
# Suppresses the JVM's long list of classes that it could not cache.
_QUIET = ("-Xlog:aot*=off", "-Xlog:cds*=off")
# Number of caches of a program that stay after a training run. Each virtual environment has one of its own, of up to
# 220 MB, in the folder of the jars that they share.
KEPT: Final = 8


def supported(java: Path) -> bool:
    """Whether the Java executable `java` supports ahead-of-time caches."""
    return java_major(java) >= _FIRST_MAJOR


def cache_file(jars: Jars, name: str, java: Path, *inputs: str) -> Path:
    """Path of the ahead-of-time cache of the program `name`.

    Each Java and each set of `inputs` (flags, versions) has its own file.
    """
    release = java.resolve().parent.parent / "release"
    identity = [str(java), release.read_text(encoding="utf-8") if release.is_file() else "", *inputs]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    return jars.aot / f"{name}-{digest}.aot"


def use_flags(java: Path, file: Path) -> list[str]:
    """JVM flags that use the ahead-of-time cache in `file`; empty if the file does not exist."""
    if not supported(java) or not file.is_file():
        return []
    with suppress(OSError):  # the file may belong to another user
        os.utime(file)  # the time of its last use, for `_remove_unused`
    return [f"-XX:AOTCache={file}", *_QUIET]


@contextmanager
def training_flags(file: Path) -> Iterator[list[str]]:
    """JVM flags for a training run inside the context.

    At the end of the context, the cache that the run wrote, if any, is moved to `file`. Of the program's other caches,
    those that were used last stay, so that the program has at most `KEPT`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    for leftover in file.parent.glob(f".{file.name}.*"):
        leftover.unlink(missing_ok=True)  # of a killed training run
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield [f"-XX:AOTCacheOutput={draft}", *_QUIET]
        if draft.is_file():
            draft.replace(file)
            with suppress(OSError):  # the next training run removes them
                _remove_unused(file)
    finally:
        draft.unlink(missing_ok=True)
        draft.with_name(f"{draft.name}.config").unlink(missing_ok=True)


def _remove_unused(newest: Path) -> None:
    """Remove the least recently used caches of the program of `newest`. A JVM that uses one keeps it until it exits."""
    program = newest.name.rpartition("-")[0]
    caches = sorted(newest.parent.glob(f"{program}-*.aot"), key=lambda cache: cache.stat().st_mtime, reverse=True)
    for cache in caches[KEPT:]:
        cache.unlink(missing_ok=True)
