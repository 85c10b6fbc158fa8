"""``clonos backup``: backups of the control plane. `clonos_api` does the work in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clonos.cli.db import run_store

app = typer.Typer(
    no_args_is_help=True,
    help="Back up and restore the control plane (CLONOS_API__DATABASE_URL, or the database below CLONOS_HOME).",
)


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory of the backup.")],
) -> None:
    """Copy the database, with the code of all jobs, into a new directory. The control plane may run."""
    run_store("backup", str(directory))


@app.command()
def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a backup.")],
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens",
            help="Accept the tokens of the backup, also those that were revoked later. Default: revoke all tokens and "
            "create one for an admin.",
        ),
    ] = False,
) -> None:
    """Fill an empty database, SQLite or PostgreSQL, from a backup. All jobs are stopped then."""
    run_store("restore", str(directory), *(["keep-tokens"] if keep_tokens else []))
