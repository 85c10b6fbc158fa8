"""A Java that PySpark's own launcher can start, for tests of programs that build their session themselves."""

from __future__ import annotations

import os
from pathlib import Path

from clonos.embedded.java import java_binary
from clonos.embedded.spark_java import java_home_for_spark


def java_home(folder: Path) -> str:
    """The user's ``JAVA_HOME``, or one in `folder` that runs the wheel's Java."""
    return os.environ.get("JAVA_HOME") or str(java_home_for_spark(folder, java_binary()))
