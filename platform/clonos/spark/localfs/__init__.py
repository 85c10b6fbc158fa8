"""A local file system for Hadoop that starts no process for a file: the only Java class of Clonos.

PySpark does not ship Hadoop's native library. Without it, Hadoop runs ``chmod`` after each file that it creates: twice
for each file of a checkpoint, four times an epoch. `docs/adr/0014-local-files.md` has the costs.

``python -m clonos.spark.localfs`` builds the jar again. Only this step needs ``javac``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

CLASS: Final = "clonos.LocalFileSystem"
JAR: Final = Path(__file__).with_name("clonos-localfs.jar")
SOURCE: Final = Path(__file__).with_name("LocalFileSystem.java")
