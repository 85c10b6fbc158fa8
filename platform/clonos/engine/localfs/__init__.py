"""Local files without a process for each: the only Java of our own.

Without Hadoop's native library, which PySpark does not ship, Hadoop runs ``chmod`` after each file that it creates:
twice for each file of a checkpoint, four times an epoch. `docs/adr/0014-local-files.md` has what that costs.

``python -m clonos.engine.localfs`` builds the jar anew; it needs ``javac``, which nobody else does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

CLASS: Final = "clonos.LocalFileSystem"
JAR: Final = Path(__file__).with_name("clonos-localfs.jar")
SOURCE: Final = Path(__file__).with_name("LocalFileSystem.java")
