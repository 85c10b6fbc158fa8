"""``clonos db``: the control plane's database. `clonos_api` does the work in a child process."""

from __future__ import annotations

import subprocess
import sys

import typer

from clonos.errors import EnvironmentFault

app = typer.Typer(no_args_is_help=True, help="Manage the control plane's database (CLONOS_API__DATABASE_URL).")


@app.command()
def upgrade(
    revision: str = typer.Argument("head", help="Target revision."),
) -> None:
    """Migrate the tables to a revision (default: the newest). It may run concurrently, and beside the control plane."""
    run_store("upgrade", revision)


@app.command()
def current() -> None:
    """Show the current and the newest revision of the tables. Exit code 1 if they differ."""
    run_store("current")


def run_store(*arguments: str) -> None:
    """Run a command of `clonos_api.store` in a child process; exit with its exit code if it fails."""
    require_control_plane()
    done = subprocess.run([sys.executable, "-m", "clonos_api.store", *arguments], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def require_control_plane() -> None:
    """Check that `clonos_api` and its dependencies are installed; raises `EnvironmentFault` if they are not."""
    import importlib.util

    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("clonos_api") is None:
        raise EnvironmentFault(
            "The control plane is not installed here.", hint="install it with: pip install '/path/to/clone[api]'."
        )
