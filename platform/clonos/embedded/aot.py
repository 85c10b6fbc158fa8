"""Ahead-of-time caches of Java 25: what a training run loaded and linked is there at once the next time.

Measured on two cores: broker ready in 0.75 s instead of 2.25 s. A cache that does not fit (another
Java, other jars) is ignored by the JVM, so a stale one can slow a start but never break it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clonos.embedded.jars import Jars
from clonos.embedded.java import java_major

_FIRST_MAJOR = 25
# The JVM says at length which classes it could not keep.
_QUIET = ("-Xlog:aot*=off", "-Xlog:cds*=off")


def supported(java: Path) -> bool:
    """Whether `java` can make and use such caches."""
    return java_major(java) >= _FIRST_MAJOR


def cache_file(jars: Jars, name: str, java: Path, *inputs: str) -> Path:
    """Where the cache of the program `name` is; other `inputs` (flags, versions) give another file."""
    release = java.resolve().parent.parent / "release"
    identity = [str(java), release.read_text(encoding="utf-8") if release.is_file() else "", *inputs]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    return jars.aot / f"{name}-{digest}.aot"


def use_flags(java: Path, file: Path) -> list[str]:
    """JVM flags that start from the cache in `file`; none where there is no such cache."""
    if not supported(java) or not file.is_file():
        return []
    return [f"-XX:AOTCache={file}", *_QUIET]


@contextmanager
def training_flags(file: Path) -> Iterator[list[str]]:
    """JVM flags for a training run; if the run wrote a cache it becomes `file` when the block ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for left in file.parent.glob(f".{file.name}.*"):
        left.unlink(missing_ok=True)  # of a training that was killed
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield [f"-XX:AOTCacheOutput={draft}", *_QUIET]
        if draft.is_file():
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
        draft.with_name(f"{draft.name}.config").unlink(missing_ok=True)
