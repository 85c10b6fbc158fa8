"""``clonos report``: an HTML page of benchmark or demo results. `clonos_api` renders it in a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from clonos.cli.options import echo


def report(
    files: Annotated[list[str], typer.Argument(help="Files with --json output; - is standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Render the results of a benchmark or the demo as one self-contained HTML page."""
    from clonos.cli.db import require_control_plane

    require_control_plane()
    done = subprocess.run(
        [sys.executable, "-m", "clonos_api.dashboard.report", *files], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    output.write_bytes(done.stdout)
    echo(str(output))
