"""``clonos host`` and ``clonos standby``: the hosts of jobs and the standbys on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clonos.cli import completion, show
from clonos.cli.options import JobArgument, Limit, Listed, Lists, echo
from clonos.cli.progress import Progress, operate
from clonos.cli.remote import Call, remote
from clonos.errors import NotFound, StateConflict, WaitTimeout

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.hosts import Host
    from clonos.resources.jobs import Job

_POLL_S: Final = 1.0
_EXPLAINED: Final = 20  # jobs whose missing standbys are explained

app = typer.Typer(no_args_is_help=True, help="Manage hosts; each runs one agent.")
standbys = typer.Typer(
    no_args_is_help=True, help="Show and promote standbys: warm drivers that take over after a failure."
)

Hosts = Annotated[list[str], typer.Argument(metavar="HOST…", help="Names of hosts.", autocompletion=completion.hosts)]


@app.command("ls")
@remote(output=Lists)
def list_hosts(call: Call, limit: Limit = None) -> None:
    """List the hosts that run jobs, with their capacity: what is in use, and what a driver and a standby take there."""
    call.show_list(
        call.client.hosts.list(limit=limit),
        {
            "name": lambda row: row.name,
            "state": lambda row: show.state(row.state),
            "failure domain": lambda row: row.failure_domain,
            "runs#": lambda row: str(row.runs),
            "free#": lambda row: str(row.free),
            "slots#": lambda row: str(row.slots),
            "pool#": lambda row: str(row.pool_available),
            "cores#": lambda row: str(row.capacity.cores) if row.capacity else None,
            "busy#": lambda row: f"{row.capacity.busy_cores:.1f}" if row.capacity else None,
            "free memory#": lambda row: show.size(row.capacity.available_bytes) if row.capacity else None,
            "a driver takes#": lambda row: show.size(row.capacity.driver_bytes) if row.capacity else None,
            "a standby takes#": lambda row: show.size(row.capacity.standby_bytes) if row.capacity else None,
            "last heartbeat": lambda row: f"{show.age(row.heartbeat_at)} ago",
            "limits": lambda row: ", ".join(row.limits),
            "versions": lambda row: ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items())),
        },
        none="There are no hosts. Start an agent on one with: clonos agent",
    )


@app.command()
@remote()
def drain(call: Call, hosts: Hosts) -> None:
    """Drain hosts: move their jobs to other hosts, and place no new ones."""
    for name in hosts:
        host = call.client.hosts.drain(name)
        echo(f"{host.name} is {host.state} with {host.runs} runs.")


@app.command()
@remote()
def undrain(call: Call, hosts: Hosts) -> None:
    """Allow new jobs on drained hosts again."""
    for name in hosts:
        host = call.client.hosts.undrain(name)
        echo(f"{host.name} is {host.state}.")


@app.command("rm")
@remote()
def remove(call: Call, hosts: Hosts) -> None:
    """Remove the named hosts from the control plane, for machines that no longer exist."""
    for name in hosts:
        call.client.hosts.delete(name)
        echo(f"{name} is removed.")


@standbys.command("ls")
@remote(output=Lists)
def list_standbys(
    call: Call,
    job: Annotated[
        str | None, typer.Option(help="Show standbys of this job only.", autocompletion=completion.jobs)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include promoted, failed and removed standbys.")
    ] = False,
    limit: Limit = None,
) -> None:
    """List standbys that warm up, are ready or take over."""
    from clonos.standby.states import FINAL_STATES, StandbyState

    client = call.client
    states = None if everything else set(StandbyState) - FINAL_STATES
    if job is not None:
        page = client.jobs.standbys(job, states=states, limit=limit)
    else:
        page = client.standbys.list(states=states, limit=limit)
    as_table = call.output == "table"
    names = _names(client, {standby.job for standby in page.data if standby.job}) if as_table else {}
    call.show_list(
        page,
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
        none=_nothing(client, job) if as_table and not page.data else "",
    )


@standbys.command()
@remote(quiet=True)
def wait(
    call: Call,
    job: JobArgument,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Maximum number of seconds to wait.")] = 600.0,
) -> None:
    """Wait until a standby of a job is READY: then a failure costs no cold restart."""
    client, begun = call.client, time.monotonic()
    with Progress(f"standby of {job}", shown=not call.quiet) as progress:
        while True:
            current = client.jobs.get(job)
            rows = client.jobs.standbys(job).data
            ready = next((row for row in rows if row.state == "READY"), None)
            if ready is not None:
                break
            why = _missing_standbys(current, [] if rows else client.hosts.list().data)
            if current.spec.spec.standby.dedicated_replicas == 0:
                raise StateConflict(why, hint="`clonos apply PATH --standbys 1` adds one.")
            if time.monotonic() - begun > timeout:
                raise WaitTimeout(f"No standby of {job} was READY within {timeout:g} s.")
            if progress.due:
                warming = next((row for row in rows if row.state in ("STARTING", "WARMING")), None)
                phase = f"{warming.state} on {warming.host}" if warming else why.rstrip(".")
                progress.show(phase, left_s=_ready_in_s(client, current.id) if warming else None)
            time.sleep(_POLL_S)
    echo(f"A standby of {current.name} is READY on {ready.host}.")


def _ready_in_s(client: Client, job: str) -> float | None:
    """Return the control plane's estimate of the seconds until the standby of a job is READY."""
    forecasts = (row.forecast for row in client.health.status().jobs if row.id == job)
    return next((forecast.ready_in_s for forecast in forecasts if forecast is not None), None)


def _missing_standbys(job: Job, hosts: Sequence[Host]) -> str:
    """Why a job has no standby, in sentences."""
    from clonos.cli.capacity_notes import standby_shortage

    standby = job.spec.spec.standby
    replicas = standby.dedicated_replicas
    if replicas == 0:
        mode = "" if standby.mode == "dedicated" else f" (standby.mode is {standby.mode})"
        return f"{job.name} asks for no standby{mode}."
    wanted = f"{job.name} asks for {replicas} standby{'' if replicas == 1 else 's'}"
    if job.state == "RUNNING":
        if shortage := standby_shortage(hosts):
            return f"{wanted}. {shortage}"
        return f"{wanted}, and none is placed: `clonos host ls` shows free slots, `clonos logs {job.name}` errors."
    return f"{wanted}, placed once its driver runs: it is {job.state}."


def _nothing(client: Client, job: str | None) -> str:
    """Why there are no standbys: in general, or of one job."""
    if job is not None:
        return _missing_standbys(client.jobs.get(job), client.hosts.list().data)
    jobs = [client.jobs.get(row.id) for row in client.jobs.list(limit=_EXPLAINED).data]
    hosts = client.hosts.list().data
    reasons = [_missing_standbys(current, hosts) for current in jobs if current.spec.spec.standby.dedicated_replicas]
    return "\n".join(["There are no standbys.", *reasons])


@standbys.command()
@remote(waits=True, output=Listed)
def promote(
    call: Call,
    job: JobArgument,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Promote the standby on this host (default: any READY one).",
            autocompletion=completion.hosts,
        ),
    ] = None,
) -> None:
    """Let a READY standby take over now: it fences the driver and replays its epoch. As `clonos job move --to`."""
    from clonos.resources.jobs import MoveRequest
    from clonos.standby.states import StandbyState

    ready = call.client.jobs.standbys(job, states={StandbyState.READY}).data
    chosen = next((standby.host for standby in ready if host in (None, standby.host)), None)
    if chosen is None:
        raise StateConflict(
            f"Job {job} has no READY standby{f' on {host}' if host else ''}.",
            hint=f"see `clonos standby ls --job {job}`; `clonos job move {job}` prepares one first.",
        )
    operate(call, job, lambda name: call.client.jobs.move(name, MoveRequest(to=chosen)))


def _names(client: Client, jobs: set[str]) -> dict[str, str]:
    names = {}
    for job in jobs:
        with contextlib.suppress(NotFound):
            names[job] = client.jobs.get(job).name
    return names
