"""Checks this machine: Python, Java, jars, the start-up cache, ``CLONOS_HOME`` and disk."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from clonos.doctor.check import Check, fail, ok, warn
from clonos.embedded import aot
from clonos.embedded.jars import cached, checksums, ensure_jars, pinned
from clonos.embedded.java import ACCEPTED_MAJORS, java_binary, java_major
from clonos.errors import EnvironmentFault, JavaNotFound
from clonos.host_inputs import raise_file_limit, require_files
from clonos.settings import Settings

_OLDEST: Final = (3, 11)
_LOW_BYTES: Final = 2 << 30
_CRITICAL_BYTES: Final = 256 << 20
_PACKAGES: Final = ("pyspark", "confluent-kafka", "pyarrow", "pandas")


def python() -> Iterator[Check]:
    """Check the Python version and the packages that jobs need."""
    current = platform.python_version()
    if sys.version_info < _OLDEST:
        yield fail(
            "Python",
            f"{current} at {sys.executable}",
            meaning="Clonos needs a newer version.",
            fix=f"install Clonos with Python {'.'.join(map(str, _OLDEST))} or newer.",
        )
        return
    versions, missing = {}, []
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        yield fail(
            "Python",
            f"{current}, without {', '.join(missing)}",
            meaning="jobs cannot run here.",
            fix="reinstall Clonos with its dependencies.",
        )
    else:
        yield ok("Python", f"{current} with {', '.join(f'{name} {number}' for name, number in versions.items())}")


def java() -> Iterator[Check]:
    """Check that a supported Java runtime is available."""
    try:
        binary = java_binary()
        yield ok("Java", f"{java_major(binary)} at {binary}")
    except JavaNotFound as error:
        yield fail(
            "Java",
            error.what,
            meaning="Spark and the embedded Kafka cannot start.",
            fix=error.hint or f"point JAVA_HOME at a Java {', '.join(map(str, ACCEPTED_MAJORS))}.",
        )


def jars(settings: Settings) -> Iterator[Check]:
    """Check that the pinned jars are in the cache with their checksums."""
    folder = cached(settings)
    if folder is None:
        yield warn(
            "jars",
            f"not in {settings.cache} yet",
            meaning="the first start downloads them, which takes a minute and needs a network.",
            fix="download them now: python -m clonos.embedded.jars.",
        )
        return
    if checksums(folder) == pinned():
        yield ok("jars", f"{len(pinned())} in {folder}, all with their pinned checksums")
    else:
        yield fail(
            "jars",
            f"those in {folder} differ from the pinned ones",
            meaning="a file is damaged, missing or modified, so the jars cannot be trusted.",
            fix=f"remove {folder}: the next start downloads them again.",
        )


def start_up_cache(settings: Settings) -> Iterator[Check]:
    """Check that drivers have a start-up cache, where Java supports it and the jars are in the cache."""
    try:
        binary = java_binary()
    except JavaNotFound:
        return
    if not aot.supported(binary) or cached(settings) is None:
        return
    try:
        from clonos.spark.jvm import aot_file
    except ImportError:  # the check of Python reports that PySpark is missing
        return
    file = aot_file(ensure_jars(settings), binary)
    if file.is_file():
        yield ok("start-up cache", f"{file}")
    else:
        yield warn(
            "start-up cache",
            f"{file} does not exist",
            meaning="drivers start slower, and so do jobs after a failure without a standby.",
            fix="create it, in two minutes: python -m clonos.spark.aot.",
        )


def home(settings: Settings) -> Iterator[Check]:
    """Check that ``CLONOS_HOME`` is writable by this user only."""
    folder = settings.home.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"clonos")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield fail(
            "CLONOS_HOME",
            f"{folder} is not writable: {error.strerror}",
            meaning="checkpoints, logs and the embedded Kafka cannot be stored.",
            fix="make it writable, or set CLONOS_HOME to another folder.",
        )
        return
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warn(
            "CLONOS_HOME",
            f"{folder} is writable by other users",
            meaning="they could change checkpoints, and thereby the output.",
            fix=f"chmod go-w {folder}",
        )
    else:
        yield ok("CLONOS_HOME", f"{folder} is writable")


def open_files() -> Iterator[Check]:
    """Check that a driver may open enough files."""
    try:
        require_files()
        yield ok("open files", f"a process may open {raise_file_limit():,}")
    except EnvironmentFault as error:
        yield fail("open files", error.what, meaning="the JVM of a driver cannot start.", fix=error.hint)


def disk(settings: Settings) -> Iterator[Check]:
    """Check the free space for state, checkpoints and logs."""
    folder = _existing(settings.home.absolute())
    usage = shutil.disk_usage(folder)
    free = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.0f} GiB free at {folder}"
    if usage.free < _CRITICAL_BYTES:
        yield fail(
            "disk",
            free,
            meaning="Kafka and checkpoints stop soon: jobs then fail with checkpoint-unwritable and lose nothing.",
            fix="free some space, or move CLONOS_HOME.",
        )
    elif usage.free < _LOW_BYTES:
        yield warn(
            "disk",
            free,
            meaning="Kafka and the state of jobs grow; a full disk stops jobs but loses nothing.",
            fix="free some space, or move CLONOS_HOME.",
        )
    else:
        yield ok("disk", free)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
