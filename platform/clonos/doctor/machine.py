"""This machine: Python, Java, jars, disk."""

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
from clonos.embedded.jars import cached, checksums, pinned
from clonos.embedded.java import ACCEPTED_MAJORS, java_binary, java_major
from clonos.errors import JavaNotFound
from clonos.settings import Settings

_OLDEST: Final = (3, 11)
_LITTLE: Final = 2 << 30
_TOO_LITTLE: Final = 256 << 20
_PACKAGES: Final = ("pyspark", "confluent-kafka", "pyarrow", "pandas")


def python() -> Iterator[Check]:
    """Its version, and the packages that jobs need."""
    found = platform.python_version()
    if sys.version_info < _OLDEST:
        yield fail(
            "Python",
            f"{found} at {sys.executable}",
            meaning="Clonos is written for newer ones.",
            mend=f"install Clonos with Python {'.'.join(map(str, _OLDEST))} or newer.",
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
            f"{found}, without {', '.join(missing)}",
            meaning="jobs cannot run here.",
            mend="install Clonos anew: it brings them.",
        )
    else:
        yield ok("Python", f"{found} with {', '.join(f'{name} {one}' for name, one in versions.items())}")


def java() -> Iterator[Check]:
    """Which Java would run, and whether it fits."""
    try:
        binary = java_binary()
        yield ok("Java", f"{java_major(binary)} at {binary}")
    except JavaNotFound as error:
        yield fail(
            "Java",
            error.what,
            meaning="neither Spark nor the embedded Kafka starts.",
            mend=error.hint or f"point JAVA_HOME at a Java {', '.join(map(str, ACCEPTED_MAJORS))}.",
        )


def jars(settings: Settings) -> Iterator[Check]:
    """Whether the pinned jars are in the cache, and whole."""
    folder = cached(settings)
    if folder is None:
        yield warn(
            "jars",
            f"not in {settings.cache} yet",
            meaning="the first start fetches them, which takes a minute and a network.",
            mend="fetch them now: python -m clonos.embedded.jars.",
        )
        return
    if checksums(folder) == pinned():
        yield ok("jars", f"{len(pinned())} in {folder}, all as pinned")
    else:
        yield fail(
            "jars",
            f"those in {folder} are not what was pinned",
            meaning="a file is damaged, missing or was changed; what runs with it cannot be trusted.",
            mend=f"remove {folder}: the next start fetches it anew.",
        )


def home(settings: Settings) -> Iterator[Check]:
    """Whether ``CLONOS_HOME`` can be written, by us and by nobody else."""
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
            f"{folder} cannot be written: {error.strerror}",
            meaning="checkpoints, logs and the embedded Kafka have no place.",
            mend="make it writable, or set CLONOS_HOME to another folder.",
        )
        return
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warn(
            "CLONOS_HOME",
            f"{folder} can be written by other users",
            meaning="they could change checkpoints, and so what is published.",
            mend=f"chmod go-w {folder}",
        )
    else:
        yield ok("CLONOS_HOME", f"{folder} is writable")


def disk(settings: Settings) -> Iterator[Check]:
    """How much is free where state, checkpoints and logs are."""
    folder = _existing(settings.home.absolute())
    usage = shutil.disk_usage(folder)
    free = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.0f} GiB free at {folder}"
    if usage.free < _TOO_LITTLE:
        yield fail(
            "disk",
            free,
            meaning="Kafka and checkpoints stop soon: jobs then end with checkpoint-unwritable, and lose nothing.",
            mend="free some space, or move CLONOS_HOME.",
        )
    elif usage.free < _LITTLE:
        yield warn(
            "disk",
            free,
            meaning="Kafka and the state of jobs grow; a full disk stops jobs, and loses nothing.",
            mend="free some space, or move CLONOS_HOME.",
        )
    else:
        yield ok("disk", free)


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())
