"""The jars that Clonos needs, with pinned versions: downloaded once by the Ivy that PySpark ships, verified, and
cached.

``python -m clonos.embedded.jars`` downloads them ahead of time; ``python -m clonos.embedded.jars s3`` also those of
Amazon S3, which only jobs with a checkpoint there need.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clonos.embedded.java import is_bundled, java_binary, trust_store
from clonos.errors import JarsUnavailable
from clonos.settings import Settings

_SETS = ("connector", "broker", "compiler")
_S3_SETS = ("s3",)
_HINT = (
    "check the network and try again; for a mirror, set CLONOS_IVY_SETTINGS to an Ivy settings file. "
    "Completed downloads are reused."
)
_MARKER = ".complete"


@dataclass(frozen=True)
class Jars:
    """The directories of the downloaded jars."""

    connector: Path  # directory of Spark's Kafka connector
    broker: Path  # directory of the Kafka broker's jars
    compiler: Path  # directory of the Java compiler

    @property
    def aot(self) -> Path:
        """Directory of the ahead-of-time caches for these jars."""
        return self.connector.parent / "aot"


def ensure_jars(settings: Settings) -> Jars:
    """Return the directories of the jars, and download the jars if the cache lacks them.

    Safe to call from several processes: one downloads, the others wait.

    Raises:
        JarsUnavailable: A jar cannot be downloaded, or its checksum differs.
    """
    target = _ensure(settings, _SETS)
    return Jars(*(target / name for name in _SETS))


def ensure_s3_jars(settings: Settings) -> Path:
    """Return the directory of the jars of Hadoop's file system ``s3a:``; as `ensure_jars` otherwise."""
    return _ensure(settings, _S3_SETS) / "s3"


def _ensure(settings: Settings, folders: tuple[str, ...]) -> Path:
    root = settings.cache / "jars"
    target = root / _pin(folders)
    if (target / _MARKER).exists():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with exclusive(root / ".lock"):
            if not (target / _MARKER).exists():
                _download(settings, root, target, folders)
    except OSError as error:
        raise JarsUnavailable(
            f"The jars cannot be stored in {root}: {error}.", hint="free some space or choose another CLONOS_CACHE."
        ) from error
    return target


def cached(settings: Settings) -> Path | None:
    """Return the cache directory of `Jars`; None if jars are missing. Nothing is downloaded."""
    target = settings.cache / "jars" / _pin()
    return target if (target / _MARKER).exists() else None


def pinned(folders: tuple[str, ...] = _SETS) -> dict[str, str]:
    """Return the required SHA-256 of each jar, by ``<folder>/<file name>``; the folders are named in `Jars`."""
    lines = _resource(_names(folders)[1]).decode().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line)}


def _resource(name: str) -> bytes:
    return resources.files("clonos.embedded").joinpath(name).read_bytes()


def _names(folders: tuple[str, ...]) -> tuple[str, str]:
    """Return the files that list the jars of `folders`: for Ivy, and with checksums."""
    return ("ivy.xml", "jars.sha256") if folders == _SETS else ("ivy-s3.xml", "jars-s3.sha256")


def _pin(folders: tuple[str, ...] = _SETS) -> str:
    # The user's Ivy settings are not part of the pin: the checksums ensure that every mirror delivers the same jars.
    return hashlib.sha256(b"".join(map(_resource, _names(folders)))).hexdigest()[:16]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` inside the context; the kernel releases the lock if this process exits."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(settings: Settings, root: Path, target: Path, folders: tuple[str, ...]) -> None:
    work = Path(tempfile.mkdtemp(dir=root, prefix=".download-"))
    try:
        _retrieve(settings, work, folders)
        _verify(work, folders)
        (work / _MARKER).touch()
        work.chmod(0o755)
        # A directory without the marker is a leftover. The rename publishes all jars at once.
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _retrieve(settings: Settings, work: Path, folders: tuple[str, ...]) -> None:
    scratch = work / "ivy"
    scratch.mkdir()
    (scratch / "ivy.xml").write_bytes(_resource(_names(folders)[0]))
    command = ivy_command(settings, scratch, configurations=folders)
    command += ["-retrieve", f"{work}/[conf]/[artifact]-[revision].[ext]"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        tail = _show(ivy.stdout, total=len(pinned(folders)))
    if ivy.returncode:
        raise JarsUnavailable(f"The jars could not be downloaded: {_reason(tail)}.", hint=_HINT)
    shutil.rmtree(scratch)


def ivy_command(settings: Settings, scratch: Path, *, configurations: Iterable[str] = _SETS) -> list[str]:
    """Return Ivy's command line for `scratch`/``ivy.xml``; the caller adds the options for the output."""
    java = java_binary()
    # An import would take a second.
    pyspark = importlib.util.find_spec("pyspark")
    ivy_jars = sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")) if pyspark and pyspark.origin else []
    if not ivy_jars:
        raise JarsUnavailable("This PySpark has no Ivy in its jars folder.", hint="install PySpark from its wheel.")
    home = settings.cache / "ivy"
    home.mkdir(parents=True, exist_ok=True)
    command = [str(java), f"-Divy.default.ivy.user.dir={home}"]
    if is_bundled(java):
        command += trust_store(scratch / "authorities.jks")
    command += ["-jar", str(ivy_jars[-1]), "-cache", str(home / "cache"), "-ivy", str(scratch / "ivy.xml")]
    if settings.ivy_settings:
        command += ["-settings", str(settings.ivy_settings)]
    # OSGi bundles are jars too.
    return [*command, "-types", "jar", "bundle", "-confs", *configurations]


def _show(lines: IO[str], *, total: int) -> list[str]:
    """Show Ivy's progress as a bar, or as plain lines outside a terminal; return its last lines."""
    console = Console(stderr=True)
    tail: deque[str] = deque(maxlen=200)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("Resolving the jars", total=total)
        if not console.is_terminal:
            console.print(f"Downloading {total} jars (once) ...", highlight=False)
        resolved = downloaded = 0
        for line in lines:
            tail.append(line.strip())
            if re.match(r"\s*found \S+#\S+;\S+ in ", line):
                resolved += 1
                progress.update(task, completed=resolved)
            elif "[SUCCESSFUL" in line:
                downloaded += 1
                progress.update(task, description="Downloading the jars", completed=downloaded)
                if not console.is_terminal and downloaded % 10 == 0:
                    console.print(f"  {downloaded} of {total}", highlight=False)
    return list(tail)


def _reason(tail: list[str]) -> str:
    # The line with the cause precedes Ivy's summary.
    for sign in ("Server access error", "UnknownHost", "not found", "FAILED", "Exception"):
        for line in tail:
            if sign in line:
                return line.strip(": ")
    return tail[-1] if tail else "Ivy exited without output"


def _verify(work: Path, folders: tuple[str, ...]) -> None:
    expected = pinned(folders)
    actual = checksums(work, folders)
    wrong = sorted(name for name, digest in expected.items() if name in actual and actual[name] != digest)
    if wrong:
        raise JarsUnavailable(
            f"The checksum differs from the pinned one: {', '.join(wrong)}.",
            kept="the downloaded jars were deleted.",
            hint="the mirror or a proxy changed them; remove the folder 'ivy' in the cache and use another mirror.",
        )
    if expected.keys() != actual.keys():
        differing = ", ".join(sorted(expected.keys() ^ actual.keys()))
        raise JarsUnavailable(f"The set of jars differs from the pinned set: {differing}.", hint=_HINT)


def checksums(work: Path, folders: tuple[str, ...] = _SETS) -> dict[str, str]:
    """Return the SHA-256 of every jar in the folders of `work`, by ``<folder>/<file name>``."""
    return {
        f"{name}/{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest()
        for name in folders
        for jar in sorted((work / name).glob("*.jar"))
    }


if __name__ == "__main__":
    try:
        ensure_jars(Settings())
        if sys.argv[1:] == ["s3"]:
            ensure_s3_jars(Settings())
    except JarsUnavailable as failure:
        sys.exit(str(failure))
