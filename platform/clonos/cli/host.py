"""``clonos host`` and ``clonos standby``: the hosts of jobs and the standbys on them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, JobArgument, Limit, Listed, Listing, Lists, Output, Token, Wait, connect
from clonos.errors import NotFound, StateConflict

if TYPE_CHECKING:
    from clonos.client import Client

app = typer.Typer(no_args_is_help=True, help="Manage hosts; each runs one agent.")
standbys = typer.Typer(
    no_args_is_help=True, help="Show and promote standbys: warm drivers that take over after a failure."
)

Hosts = Annotated[list[str], typer.Argument(metavar="HOST…", help="Names of hosts.")]


@app.command("ls")
def list_hosts(limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None) -> None:
    """List the hosts that run jobs."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.hosts.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda row: row.name,
            "state": lambda row: show.state(row.state),
            "failure domain": lambda row: row.failure_domain,
            "runs#": lambda row: str(row.runs),
            "free#": lambda row: str(row.free),
            "slots#": lambda row: str(row.slots),
            "pool#": lambda row: str(row.pool_available),
            "last heartbeat": lambda row: f"{show.age(row.heartbeat_at)} ago",
            "limits": lambda row: ", ".join(row.limits),
            "versions": lambda row: ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items())),
        },
        lambda row: row.name,
        none="There are no hosts. Start an agent on one with: clonos agent",
    )


@app.command()
def drain(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Drain hosts: move their jobs to other hosts, and place no new ones."""
    with connect(api, token) as client:
        for name in hosts:
            host = client.hosts.drain(name)
            typer.echo(f"{host.name} is {host.state} with {host.runs} runs.")


@app.command()
def undrain(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Allow new jobs on drained hosts again."""
    with connect(api, token) as client:
        for name in hosts:
            host = client.hosts.undrain(name)
            typer.echo(f"{host.name} is {host.state}.")


@app.command("rm")
def remove(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Remove the named hosts from the control plane, for machines that no longer exist."""
    with connect(api, token) as client:
        for name in hosts:
            client.hosts.delete(name)
            typer.echo(f"{name} is removed.")


@standbys.command("ls")
def list_standbys(
    job: Annotated[str | None, typer.Option(help="Show standbys of this job only.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include promoted, failed and removed standbys.")
    ] = False,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """List standbys that warm up, are ready or take over."""
    from clonos.cli import show
    from clonos.standby.states import FINAL_STATES, StandbyState

    states = None if everything else set(StandbyState) - FINAL_STATES
    with connect(api, token) as client:
        if job is not None:
            page = client.jobs.standbys(job, states=states, limit=limit)
        else:
            page = client.standbys.list(states=states, limit=limit)
        names = _names(client, {standby.job for standby in page.data if standby.job}) if output is Listing.TABLE else {}
    show.show_list(
        page,
        output,
        {
            "id": lambda row: row.id,
            "job": lambda row: names.get(row.job or "", row.job),
            "host": lambda row: row.host,
            "mode": lambda row: row.mode,
            "state": lambda row: show.state(row.state),
            "behind#": lambda row: f"{row.lag_epochs} epochs" if row.lag_epochs is not None else None,
            "for": lambda row: show.age(row.since),
            "placement": lambda row: row.placement_reason,
        },
        lambda row: row.id,
        none="There are no standbys.",
    )


@standbys.command()
def promote(
    job: JobArgument,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Promote the standby on this host (default: any READY one).")
    ] = None,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Let a READY standby take over now; the driver finishes its epoch first. The same as `clonos job move --to`.

    Example: clonos standby promote wordcount
    """
    from clonos.cli.job import operate
    from clonos.resources.jobs import MoveRequest
    from clonos.standby.states import StandbyState

    with connect(api, token) as client:
        ready = client.jobs.standbys(job, states={StandbyState.READY}).data
        chosen = next((standby.host for standby in ready if host in (None, standby.host)), None)
        if chosen is None:
            raise StateConflict(
                f"Job {job} has no READY standby{f' on {host}' if host else ''}.",
                kept="nothing was changed.",
                hint=f"see `clonos standby ls --job {job}`; `clonos job move {job}` prepares one first.",
            )
        operate(client, job, lambda name: client.jobs.move(name, MoveRequest(to=chosen)), wait=wait, output=output)


def _names(client: Client, jobs: set[str]) -> dict[str, str]:
    """Names of the jobs that exist, by id."""
    names = {}
    for job in jobs:
        with contextlib.suppress(NotFound):
            names[job] = client.jobs.get(job).name
    return names
