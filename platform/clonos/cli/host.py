"""``clonos host`` and ``clonos standby``: where jobs run, and where they may go."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import Api, Limit, Listing, Lists, Token, connect
from clonos.errors import NotFound

if TYPE_CHECKING:
    from clonos.client import Client

app = typer.Typer(no_args_is_help=True, help="Hosts that run jobs: one agent each.")
standbys = typer.Typer(no_args_is_help=True, help="Warm drivers that wait for a failure.")

Hosts = Annotated[list[str], typer.Argument(metavar="HOST…", help="Names of hosts.")]


@app.command("ls")
def list_hosts(limit: Limit = None, output: Lists = Listing.TABLE, api: Api = None, token: Token = None) -> None:
    """All hosts."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.hosts.list(limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda one: one.name,
            "state": lambda one: show.state(one.state),
            "failure domain": lambda one: one.failure_domain,
            "runs#": lambda one: str(one.runs),
            "free#": lambda one: str(one.free),
            "slots#": lambda one: str(one.slots),
            "spares#": lambda one: str(one.spares),
            "heard of": lambda one: f"{show.age(one.heartbeat_at)} ago",
            "limits": lambda one: ", ".join(one.limits),
            "versions": lambda one: ", ".join(f"{name} {version}" for name, version in sorted(one.versions.items())),
        },
        lambda one: one.name,
        none="There are no hosts. Start an agent on one with: clonos agent",
    )


@app.command()
def drain(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Move the jobs of hosts elsewhere, and give them nothing new."""
    with connect(api, token) as client:
        for name in hosts:
            host = client.hosts.drain(name)
            typer.echo(f"{host.name} is {host.state}; it has {host.runs} runs.")


@app.command()
def undrain(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Use hosts again."""
    with connect(api, token) as client:
        for name in hosts:
            host = client.hosts.undrain(name)
            typer.echo(f"{host.name} is {host.state}.")


@app.command("rm")
def remove(hosts: Hosts, api: Api = None, token: Token = None) -> None:
    """Forget hosts that are gone for good."""
    with connect(api, token) as client:
        for name in hosts:
            client.hosts.delete(name)
            typer.echo(f"{name} is removed.")


@standbys.command("ls")
def list_standbys(
    job: Annotated[str | None, typer.Option(help="Of this job only.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that have taken over, failed, or were not wanted any more.")
    ] = False,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Warm drivers that wait or are about to take over."""
    from clonos.cli import show
    from clonos.standby.states import OVER, StandbyState

    states = None if everything else set(StandbyState) - OVER
    with connect(api, token) as client:
        if job is not None:
            page = client.jobs.standbys(job, states=states, limit=limit)
        else:
            page = client.standbys.list(states=states, limit=limit)
        names = _names(client, {one.job for one in page.data if one.job}) if output is Listing.TABLE else {}
    show.show_list(
        page,
        output,
        {
            "id": lambda one: one.id,
            "job": lambda one: names.get(one.job or "", one.job),
            "host": lambda one: one.agent,
            "mode": lambda one: one.mode,
            "state": lambda one: show.state(one.state),
            "behind#": lambda one: f"{one.lag_epochs} epochs" if one.lag_epochs is not None else None,
            "for": lambda one: show.age(one.since),
            "why here": lambda one: one.why_here,
        },
        lambda one: one.id,
        none="There are no standbys.",
    )


def _names(client: Client, jobs: set[str]) -> dict[str, str]:
    """Of jobs that are still there."""
    found = {}
    for job in jobs:
        with contextlib.suppress(NotFound):
            found[job] = client.jobs.get(job).name
    return found
