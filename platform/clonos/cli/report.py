"""``clonos report``: a page of a benchmark's or a demo's results. `clonos_api` makes it, which this library does not
import.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    files: Annotated[list[str], typer.Argument(help="What --json printed; - is standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Make one HTML page, which needs nothing else, of what a benchmark or the demo measured."""
    from clonos.cli.db import control_plane_installed

    control_plane_installed()
    done = subprocess.run(
        [sys.executable, "-m", "clonos_api.dashboard.report", *files], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise typer.Exit(done.returncode)
    output.write_bytes(done.stdout)
    typer.echo(str(output))
