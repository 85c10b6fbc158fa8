"""``clonos db`` and ``clonos backup``: `clonos_api` does the work in a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from clonos.errors import EnvironmentFault

db = typer.Typer(no_args_is_help=True, help="Manage the control plane's database (CLONOS_API__DATABASE_URL).")
backup = typer.Typer(
    no_args_is_help=True,
    help="Back up and restore the control plane (CLONOS_API__DATABASE_URL, or the database below CLONOS_HOME).",
)


@db.command()
def upgrade(revision: str = typer.Argument("head", help="Target revision.")) -> None:
    """Migrate the tables to a revision (default: the newest). It may run concurrently, and beside the control plane."""
    _run("upgrade", revision)


@db.command()
def current() -> None:
    """Show the current and the newest revision of the tables. Exit code 1 if they differ."""
    _run("current")


@backup.command()
def create(directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory of the backup.")]) -> None:
    """Copy the database, with the code of all jobs, into a new directory. The control plane may run."""
    _run("backup", str(directory))


@backup.command()
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
    _run("restore", str(directory), *(["keep-tokens"] if keep_tokens else []))


def _run(*arguments: str) -> None:
    """Run a command of `clonos_api.store` in a child process; exit with its exit code if it fails.

    Raises:
        EnvironmentFault: `clonos_api` or its dependencies are not installed.
    """
    import importlib.util

    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("clonos_api") is None:
        raise EnvironmentFault(
            "The control plane is not installed here.", hint="install it with: pip install '/path/to/clone[api]'."
        )
    done = subprocess.run([sys.executable, "-m", "clonos_api.store", *arguments], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
