"""Jars that only tests need, from the same repository as Clonos's (`clonos.embedded.jars`)."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from clonos.embedded.jars import exclusive, ivy_command
from clonos.settings import Settings

_IVY = """<ivy-module version="2.0">
  <info organisation="clonos" module="tests"/>
  <configurations><conf name="tests"/></configurations>
  <dependencies>
    <dependency org="{org}" name="{name}" rev="{version}" conf="tests->{conf}"/>
  </dependencies>
</ivy-module>
"""


def fetched_jar(org: str, name: str, version: str, sha256: str) -> Path:
    """The path of one jar without its dependencies, downloaded once."""
    folder = _folder()
    jar = folder / f"{name}-{version}.jar"
    with exclusive(folder / ".lock"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                draft = _retrieve(Path(scratch), org, name, version, conf="master") / jar.name
                digest = hashlib.sha256(draft.read_bytes()).hexdigest()
                assert digest == sha256, f"{jar.name} has the checksum {digest}"
                shutil.move(draft, jar)
    return jar


def fetched_jars(org: str, name: str, version: str, sha256: str) -> Path:
    """The folder of a jar and its dependencies, downloaded once.

    Args:
        org: Organisation of the jar.
        name: Name of the jar.
        version: Version of the jar.
        sha256: Checksum of the output of ``sha256sum`` for all jars of the folder, by name.
    """
    folder = _folder()
    jars = folder / f"{name}-{version}"
    with exclusive(folder / ".lock"):
        if not jars.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                draft = _retrieve(Path(scratch), org, name, version, conf="default")
                files = sorted(draft.glob("*.jar"))
                lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
                digest = hashlib.sha256("".join(lines).encode()).hexdigest()
                assert digest == sha256, f"the jars of {name} {version} have the checksum {digest}"
                draft.rename(jars)
    return jars


def _folder() -> Path:
    folder = Settings().cache / "jars" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _retrieve(scratch: Path, org: str, name: str, version: str, *, conf: str) -> Path:
    (scratch / "ivy.xml").write_text(_IVY.format(org=org, name=name, version=version, conf=conf))
    command = ivy_command(Settings(), scratch, configurations=["tests"])
    command += ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=400)
    return scratch / "jars"
