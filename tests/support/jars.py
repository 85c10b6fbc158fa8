"""Jars that only tests need, from the same repository as those of Clonos (`clonos.embedded.jars`)."""

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
    <dependency org="{org}" name="{name}" rev="{version}" conf="tests->master" transitive="false"/>
  </dependencies>
</ivy-module>
"""


def fetched_jar(org: str, name: str, version: str, sha256: str) -> Path:
    """The path of one jar without its dependencies, downloaded once."""
    settings = Settings()
    folder = settings.cache / "jars" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    jar = folder / f"{name}-{version}.jar"
    with exclusive(folder / ".lock"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                Path(scratch, "ivy.xml").write_text(_IVY.format(org=org, name=name, version=version))
                command = ivy_command(settings, Path(scratch), configurations=["tests"])
                command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
                draft = Path(scratch, jar.name)
                digest = hashlib.sha256(draft.read_bytes()).hexdigest()
                assert digest == sha256, f"{jar.name} has the checksum {digest}"
                shutil.move(draft, jar)
    return jar
