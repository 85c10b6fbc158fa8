"""The linter in a process of its own: ``python -m clonos_api.admission.analysis FILE``.

User code may need much time and memory to be analysed, though it is not run. The process limits both for itself, prints
an `Analysis` as JSON, and ends. Nothing else is printed.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from clonos.errors import ClonosError
from clonos.lint import lint

# Beside the service in a container of 512 MB. Code of 300 kB takes 170 MB and 2 s, and 6 s on a busy machine.
MEMORY_BYTES: Final = 320 << 20
CPU_S: Final = 15
NICENESS: Final = 5  # the service comes first; with more, an analysis would not end on a busy machine


class Analysis(BaseModel):
    """What the linter found, or why it could not read the code."""

    findings: list[dict[str, Any]] = []  # the fields of `clonos.lint.Finding`
    what: str = ""  # what prevents the analysis; empty: nothing
    hint: str = ""  # what to do about it


def analyse(file: Path) -> Analysis:
    """Analyse a job file, and the modules beside it that it imports, within the limits of the process."""
    try:
        return Analysis(findings=[asdict(finding) for finding in lint([file]).findings])
    except ClonosError as error:
        return Analysis(what=error.what, hint=error.hint)
    except (MemoryError, RecursionError):
        return Analysis(what="The code is too large to be analysed.", hint="split it into smaller modules.")


if __name__ == "__main__":
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write(analyse(Path(sys.argv[1])).model_dump_json())
