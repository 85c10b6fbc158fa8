"""``clonos db``: the control plane's database. The work is done by `clonos_api`, which this library does not import."""

from __future__ import annotations

import subprocess
import sys

import typer

from clonos.errors import EnvironmentFault

app = typer.Typer(no_args_is_help=True, help="The control plane's database (CLONOS_API__DATABASE_URL).")


@app.command()
def upgrade(
    revision: str = typer.Argument("head", help="Up to this revision."),
) -> None:
    """Bring its tables to those of this version. Safe while the service runs, and from several places at once."""
    _store("upgrade", revision)


@app.command()
def current() -> None:
    """The revision that it has, and the newest. Exit code 1 if they differ."""
    _store("current")


def _store(*arguments: str) -> None:
    control_plane_installed()
    done = subprocess.run([sys.executable, "-m", "clonos_api.store", *arguments], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def control_plane_installed() -> None:
    """See that `clonos_api` can be started.

    Raises:
        EnvironmentFault: Its packages are missing.
    """
    import importlib.util

    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("clonos_api") is None:
        raise EnvironmentFault(
            "The control plane is not installed here.", hint="install it with: pip install 'clonos[api]'."
        )
