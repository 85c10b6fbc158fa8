"""Builds the jar of `clonos.spark.localfs` from its Java source."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from clonos.spark.localfs import JAR, SOURCE

_OLDEST_JAVA = "17"  # that Spark 4 runs on
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal sources give equal jars


def build(jar: Path) -> None:
    """Compile the Java source into `jar`, whose manifest holds the hash of the source."""
    with tempfile.TemporaryDirectory() as scratch:
        classes = Path(pyspark.__file__).parent / "jars" / "*"
        subprocess.run(
            ["javac", "--release", _OLDEST_JAVA, "-cp", str(classes), "-d", scratch, str(SOURCE)], check=True
        )
        manifest = f"Manifest-Version: 1.0\nSource-SHA256: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}\n\n"
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _EPOCH), manifest)
            for file in sorted(Path(scratch).rglob("*.class")):
                archive.writestr(zipfile.ZipInfo(str(file.relative_to(scratch)), _EPOCH), file.read_bytes())


if __name__ == "__main__":
    build(JAR)
