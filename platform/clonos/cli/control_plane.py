"""``clonos agent``, ``db`` and ``backup``: the processes and data of a control plane.

For ``db`` and ``backup``, `clonos_api` does the work in a child process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import pairs, valid
from clonos.errors import EnvironmentFault

if TYPE_CHECKING:
    from clonos.agent import Agent

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
    """Run a command of `clonos_api.store` in a child process; exit with its exit code if it fails."""
    import importlib.util

    if importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("clonos_api") is None:
        raise EnvironmentFault(
            "The control plane is not installed here.", hint="install it with: pip install '/path/to/clone[api]'."
        )
    done = subprocess.run([sys.executable, "-m", "clonos_api.store", *arguments], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def agent(
    ctx: typer.Context,
    api: Annotated[str, typer.Option(help="Address of the control plane.", envvar="CLONOS_API")],
    name: Annotated[str | None, typer.Option(help="Unique name of the agent (default: the host name).")] = None,
    failure_domain: Annotated[
        str, typer.Option(help="Unit of correlated failure, such as a rack or zone (default: the host).")
    ] = "",
    slots: Annotated[int, typer.Option(help="Maximum number of concurrent drivers.")] = 2,
    pool_size: Annotated[
        int, typer.Option(help="Number of warm drivers without a job, for recoveries and standbys.")
    ] = 0,
    token_file: Annotated[Path | None, typer.Option(help="File with the agent's API token.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Label of the host: name=value; may be repeated.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file with trusted certificate authorities.")] = None,
    uid: Annotated[int | None, typer.Option(help="User ID of drivers; requires root.")] = None,
    uids: Annotated[
        str | None, typer.Option(help="User IDs of drivers, one for each owner of jobs: FIRST-LAST; requires root.")
    ] = None,
    gid: Annotated[int | None, typer.Option(help="Group ID of drivers with --uid (default: its number).")] = None,
    memory_limit_mb: Annotated[
        int | None, typer.Option(help="Memory limit of one driver and its child processes, in MiB.")
    ] = None,
    cgroup: Annotated[
        Path | None, typer.Option(help="Delegated cgroup (v2) for drivers (default: the agent's own).")
    ] = None,
    stop_drivers: Annotated[
        bool, typer.Option("--stop-drivers", help="Stop the drivers when the agent exits.")
    ] = False,
    stop_grace_s: Annotated[float, typer.Option(help="Seconds until --stop-drivers kills a driver.")] = 10.0,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus metrics (default: disabled).")] = None,
    driver_heartbeat_timeout_s: Annotated[
        float, typer.Option(help="Kill a driver after this many seconds without a heartbeat; 0: never.")
    ] = 10.0,
) -> None:
    """Run the host agent, which starts and supervises the drivers of this host.

    SIGTERM stops the agent. Its drivers keep running, and the next agent with the same name adopts them.
    """
    import asyncio
    import os

    from clonos.agent import Agent, AgentSettings
    from clonos.agent.priority import Priority, set_group_priority
    from clonos.settings import Settings
    from clonos.telemetry.logs import bind_fields, configure_logs

    settings = Settings()
    configure_logs(settings.log_format, settings.log_level)
    with valid("Invalid agent options"):
        chosen = {option: value for option, value in ctx.params.items() if option != "label" and value is not None}
        agent_settings = AgentSettings(**chosen, labels=pairs(label, "--label"))
    bind_fields(agent=agent_settings.name)
    set_group_priority(os.getpid(), Priority.SERVICE)
    asyncio.run(run_until_signalled(Agent(agent_settings)))


async def run_until_signalled(agent: Agent) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()
