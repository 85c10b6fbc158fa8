"""The pinned jars: fetched once by the Ivy that PySpark ships, checked, and kept in the user's cache.

``python -m clonos.embedded.jars`` fetches them ahead of time.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clonos.embedded.java import is_bundled, java_binary
from clonos.embedded.trust import trust_store
from clonos.errors import JarsUnavailable
from clonos.settings import Settings

_SETS = ("connector", "broker")
_HINT = (
    "check the network and try again; behind a mirror name an Ivy settings file in CLONOS_IVY_SETTINGS. "
    "What was fetched so far is kept."
)
_MARKER = ".complete"


@dataclass(frozen=True)
class Jars:
    """Folders with the jars.

    Attributes:
        connector: What Spark needs to read Kafka.
        broker: Apache Kafka itself.
    """

    connector: Path
    broker: Path

    @property
    def aot(self) -> Path:
        """Where start-up caches made from exactly these jars are kept."""
        return self.connector.parent / "aot"


def ensure_jars(settings: Settings) -> Jars:
    """The jars, fetched if they are not in the cache yet (at once where they are).

    Safe to call from several processes: one fetches, the others wait for it.

    Raises:
        JarsUnavailable: They cannot be fetched, or one is not what was pinned.
    """
    root = settings.cache / "jars"
    target = root / _pin()
    found = Jars(target / "connector", target / "broker")
    if (target / _MARKER).exists():
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        with exclusive(root / ".lock"):
            if not (target / _MARKER).exists():
                _fetch(settings, root, target)
    except OSError as error:
        raise JarsUnavailable(
            f"The jars cannot be put into {root}: {error}.", hint="free some space or choose another CLONOS_CACHE."
        ) from error
    return found


def cached(settings: Settings) -> Path | None:
    """The folder with the jars, if they are in the cache; nothing is fetched."""
    target = settings.cache / "jars" / _pin()
    return target if (target / _MARKER).exists() else None


def pinned() -> dict[str, str]:
    """Checksum of every jar, by ``<set>/<file name>``."""
    lines = _resource("jars.sha256").decode().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line)}


def _resource(name: str) -> bytes:
    return resources.files("clonos.embedded").joinpath(name).read_bytes()


def _pin() -> str:
    # A user's Ivy settings do not count: the checksums make sure that any mirror gives the same jars.
    return hashlib.sha256(_resource("ivy.xml") + _resource("jars.sha256")).hexdigest()[:16]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path` as a lock; the kernel drops it if this process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(settings: Settings, root: Path, target: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=root, prefix=".fetch-"))
    try:
        _retrieve(settings, work)
        _verify(work)
        (work / _MARKER).touch()
        work.chmod(0o755)
        # A folder without the marker is the rest of something; the rename shows all jars at once or none.
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _retrieve(settings: Settings, work: Path) -> None:
    scratch = work / "ivy"
    scratch.mkdir()
    (scratch / "ivy.xml").write_bytes(_resource("ivy.xml"))
    command = ivy_command(settings, scratch)
    command += ["-retrieve", f"{work}/[conf]/[artifact]-[revision].[ext]"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        tail = _show(ivy.stdout, total=len(pinned()))
    if ivy.returncode:
        raise JarsUnavailable(f"The jars could not be fetched: {_reason(tail)}.", hint=_HINT)
    shutil.rmtree(scratch)


def ivy_command(settings: Settings, scratch: Path) -> list[str]:
    """The command that resolves ``ivy.xml`` in `scratch`, without what it is to do with the result."""
    java = java_binary()
    # Found and not imported: that takes a second.
    pyspark = importlib.util.find_spec("pyspark")
    found = sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")) if pyspark and pyspark.origin else []
    if not found:
        raise JarsUnavailable("This PySpark has no Ivy in its jars folder.", hint="install PySpark from its wheel.")
    home = settings.cache / "ivy"
    home.mkdir(parents=True, exist_ok=True)
    command = [str(java), f"-Divy.default.ivy.user.dir={home}"]
    if is_bundled(java):
        command += trust_store(scratch / "authorities.jks")
    command += ["-jar", str(found[-1]), "-cache", str(home / "cache"), "-ivy", str(scratch / "ivy.xml")]
    if settings.ivy_settings:
        command += ["-settings", str(settings.ivy_settings)]
    # OSGi bundles are jars under another name.
    return [*command, "-types", "jar", "bundle", "-confs", *_SETS]


def _show(lines: IO[str], *, total: int) -> list[str]:
    """Follow Ivy's output with a progress bar, or plain lines where no one watches; return its last lines."""
    console = Console(stderr=True)
    tail: deque[str] = deque(maxlen=200)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("Finding the jars", total=total)
        if not console.is_terminal:
            console.print(f"Fetching {total} jars (once) ...", highlight=False)
        found = fetched = 0
        for line in lines:
            tail.append(line.strip())
            if re.match(r"\s*found \S+#\S+;\S+ in ", line):
                found += 1
                progress.update(task, completed=found)
            elif "[SUCCESSFUL" in line:
                fetched += 1
                progress.update(task, description="Fetching the jars", completed=fetched)
                if not console.is_terminal and fetched % 10 == 0:
                    console.print(f"  {fetched} of {total}", highlight=False)
    return list(tail)


def _reason(tail: list[str]) -> str:
    # The line with the cause comes before Ivy's summary of what it lacks for it.
    for sign in ("Server access error", "UnknownHost", "not found", "FAILED", "Exception"):
        for line in tail:
            if sign in line:
                return line.strip(": ")
    return tail[-1] if tail else "Ivy ended without a word"


def _verify(work: Path) -> None:
    expected = pinned()
    actual = checksums(work)
    wrong = sorted(name for name, digest in expected.items() if name in actual and actual[name] != digest)
    if wrong:
        raise JarsUnavailable(
            f"Not the jars that were pinned: {', '.join(wrong)}.",
            kept="they were thrown away.",
            hint="the mirror or a proxy changed them; remove the folder 'ivy' in the cache and use another mirror.",
        )
    if expected.keys() != actual.keys():
        differing = ", ".join(sorted(expected.keys() ^ actual.keys()))
        raise JarsUnavailable(f"The set of jars is not the pinned one: {differing}.", hint=_HINT)


def checksums(work: Path) -> dict[str, str]:
    """SHA-256 of every jar in the two sets below `work`, by ``<set>/<file name>``."""
    return {
        f"{name}/{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest()
        for name in _SETS
        for jar in sorted((work / name).glob("*.jar"))
    }


if __name__ == "__main__":
    try:
        ensure_jars(Settings())
    except JarsUnavailable as failure:
        sys.exit(str(failure))
