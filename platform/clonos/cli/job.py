"""``clonos job``: look at jobs and steer them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import (
    Api,
    JobArgument,
    Limit,
    Listed,
    Listing,
    Lists,
    Output,
    Token,
    Wait,
    connect,
    pairs,
    until_interrupted,
)
from clonos.errors import NotFound, SpecError

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.jobs import StartFrom
    from clonos.resources.service import Operation

app = typer.Typer(no_args_is_help=True, help="Look at jobs and steer them.")

STATES = (
    *("CREATED", "STARTING", "RUNNING", "RECOVERING", "STOPPING"),
    *("STOPPED", "CANCELLING", "CANCELED", "FAILED", "FINISHED"),
)
MODES = ("graceful", "checkpoint", "force")


Timeout = Annotated[
    float, typer.Option(min=0.1, max=3600, help="Seconds for a standby to be READY; until then nothing changes.")
]


@app.command("ls")
def list_jobs(
    state: Annotated[
        list[str] | None, typer.Option(help=f"In this state only; may be repeated. One of {', '.join(STATES)}.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="With this label only: key=value; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="With this in their name only.")] = None,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """List jobs."""
    from clonos.cli import show
    from clonos.resources.jobs import JobState

    wanted = [one.upper() for one in state or []]
    for one in wanted:
        if one not in STATES:
            raise SpecError(f"--state {one} is not known.", hint=f"use one of {', '.join(STATES)}.")
    with connect(api, token) as client:
        states = [JobState(one) for one in wanted] or None
        page = client.jobs.list(states=states, labels=pairs(label or [], "--label"), name=name, limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda job: job.name,
            "state": lambda job: show.state(job.state),
            "for": lambda job: show.age(job.state_since),
            "generation#": lambda job: str(job.generation) if job.generation else None,
            "host": lambda job: job.agent,
            "restarts#": lambda job: str(job.restarts),
            "version#": lambda job: str(job.version),
            "owner": lambda job: job.owner,
            "error": lambda job: job.failure.error if job.failure else "",
        },
        lambda job: job.name,
        none="There are no jobs. Submit one with: clonos submit PATH",
    )


@app.command()
def inspect(job: JobArgument, output: Listed = Output.TABLE, api: Api = None, token: Token = None) -> None:
    """Show one job: state, generation, where it runs, lag, its last recovery, its last error and what to do."""
    from clonos.cli import show
    from clonos.cli.picture import look, picture

    with connect(api, token) as client:
        found = look(client, job)
    if output is Output.JSON:
        show.show_json(found)
    else:
        show.console().print(picture(found))


@app.command()
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    tail: Annotated[int, typer.Option(min=0, max=10_000, help="The last so many lines.")] = 200,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """The log of a job's drivers; `-f` until the job has ended or Ctrl-C."""
    from clonos.cli import show
    from clonos.client.jobs import ENDED

    with connect(api, token) as client, until_interrupted():
        following = follow and client.jobs.get(job).state not in ENDED
        for piece in client.jobs.follow_logs(job, tail=tail) if following else [client.jobs.logs(job, tail=tail)]:
            if output is Output.JSON:
                show.show_json(piece)
            else:
                for line in piece.lines:
                    typer.echo(line)


@app.command()
def watch(
    job: JobArgument,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="json: the job's events as JSON lines.")
    ] = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Watch a job until it has ended or Ctrl-C; on a terminal one picture, in a pipe its events.

    Ends with the job's error and its exit code where it failed.
    """
    from clonos.cli.watching import watch as follow

    with connect(api, token, patience_s=30.0) as client:
        follow(client, job, as_json=output is Output.JSON)


@app.command()
def start(
    job: JobArgument,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SAVEPOINT|EPOCH",
            help="Roll back: start from a savepoint (id or name), or from a retained epoch (a number).",
        ),
    ] = None,
    publish_again: Annotated[
        bool, typer.Option("--publish-again", help="With --from: publish again what was published after that point.")
    ] = False,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Start a job where it ended, or from an older point."""
    with connect(api, token) as client:
        point = starting_point(client, job, start_from, publish_again=publish_again)
        _steer(client, job, lambda name: client.jobs.start(name, point), wait=wait, output=output)


@app.command()
def stop(
    job: JobArgument,
    mode: Annotated[
        str, typer.Option(help="graceful: finish the epoch in flight; checkpoint: and take a savepoint; force: kill.")
    ] = "graceful",
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds, then it is killed.")] = 60.0,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Stop a job so that it can be started again. Output is exactly once with each mode."""
    from clonos.resources.jobs import StopMode, StopRequest

    if mode not in MODES:
        raise SpecError(f"--mode {mode} is not known.", hint=f"use one of {', '.join(MODES)}.")
    request = StopRequest(mode=StopMode(mode), timeout_s=timeout)
    with connect(api, token) as client:
        _steer(client, job, lambda name: client.jobs.stop(name, request), wait=wait, output=output)


@app.command()
def restart(
    job: JobArgument, wait: Wait = True, output: Listed = Output.TABLE, api: Api = None, token: Token = None
) -> None:
    """Start a job anew although it runs: with its newest specification and code."""
    with connect(api, token) as client:
        _steer(client, job, client.jobs.restart, wait=wait, output=output)


@app.command()
def move(
    job: JobArgument,
    to: Annotated[str | None, typer.Option(metavar="HOST", help="Where to (default: any other host).")] = None,
    timeout: Timeout = 180.0,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Move a job that runs to another host, through a standby: its driver works until that one takes over."""
    from clonos.resources.jobs import MoveRequest

    request = MoveRequest(to=to, timeout_s=timeout)
    with connect(api, token) as client:
        _steer(client, job, lambda name: client.jobs.move(name, request), wait=wait, output=output)


@app.command()
def upgrade(
    job: JobArgument,
    path: Annotated[
        Path | None,
        typer.Argument(help="New code or specification, as for `clonos submit` (default: what the job has already)."),
    ] = None,
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    timeout: Timeout = 180.0,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Bring a job that runs to its newest specification and code, through a standby.

    Its driver works until the new one is ready. If that fails before it has finished an epoch, the job goes back to the
    version that it had.
    """
    from clonos.resources.jobs import UpgradeRequest

    request = UpgradeRequest(timeout_s=timeout)
    if path is None and param:
        raise SpecError("--param needs the PATH of a specification.")
    with connect(api, token) as client:
        if path is not None:
            _change(client, job, path, pairs(param or [], "--param"))
        _steer(client, job, lambda name: client.jobs.upgrade(name, request), wait=wait, output=output)


@app.command()
def cancel(
    job: JobArgument, wait: Wait = True, output: Listed = Output.TABLE, api: Api = None, token: Token = None
) -> None:
    """End a job for good; what it published stays."""
    with connect(api, token) as client:
        _steer(client, job, client.jobs.cancel, wait=wait, output=output)


@app.command("rm")
def remove(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Names or ids.")],
    wait: Wait = True,
    api: Api = None,
    token: Token = None,
) -> None:
    """Delete jobs; one that runs is ended first. Savepoints stay."""
    with connect(api, token) as client:
        for job in jobs:
            operation = client.jobs.delete(job)
            if wait:
                operation = client.operations.wait(operation)
            typer.echo(f"{job} is deleted." if operation.state == "COMPLETED" else f"{job} is being deleted.")


@app.command()
def exceptions(
    job: JobArgument,
    limit: Limit = 50,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Errors that a job's drivers told, newest first."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.jobs.exceptions(job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "at": lambda one: show.clock(one.at),
            "generation#": lambda one: str(one.generation),
            "error": lambda one: one.failure.error,
            "retried": lambda one: "yes" if one.failure.retry else "no",
            "what": lambda one: show.short(one.failure.what, 200),
        },
        lambda one: one.failure.error,
        none="Its drivers told no errors.",
    )


@app.command()
def generations(
    job: JobArgument, limit: Limit = 50, output: Lists = Listing.TABLE, api: Api = None, token: Token = None
) -> None:
    """A job's claims of its causal log, newest first."""
    from clonos.cli import show

    with connect(api, token) as client:
        page = client.jobs.generations(job, limit=limit)
    show.show_list(
        page,
        output,
        {
            "generation#": lambda one: f"{one.lineage}.{one.generation}",
            "cause": lambda one: one.cause,
            "host": lambda one: one.agent,
            "attempt#": lambda one: str(one.attempt),
            "claimed": lambda one: show.clock(one.claimed_at),
            "ended": lambda one: show.clock(one.ended_at),
            "epochs#": lambda one: show.number(one.epochs),
            "records#": lambda one: show.number(one.records),
        },
        lambda one: f"{one.lineage}.{one.generation}",
        none="No driver has claimed its causal log yet.",
    )


@app.command()
def recoveries(
    job: JobArgument, limit: Limit = 50, output: Lists = Listing.TABLE, api: Api = None, token: Token = None
) -> None:
    """What a job recovered from, newest first (`clonos recovery explain` tells more of each)."""
    from clonos.cli.recovery import show_recoveries

    with connect(api, token) as client:
        show_recoveries(client.jobs.recoveries(job, limit=limit), output)


def starting_point(client: Client, job: str | None, text: str | None, *, publish_again: bool) -> StartFrom | None:
    """What ``--from`` means.

    Raises:
        NotFound: No savepoint has this id or name.
        SpecError: ``--publish-again`` without it.
    """
    from clonos.resources.jobs import StartFrom

    if text is None:
        if publish_again:
            raise SpecError("--publish-again needs --from.")
        return None
    if text.isdigit():
        return StartFrom(epoch=int(text), publish_again=publish_again)
    known = client.savepoints.list(job=job).data
    found = [one.id for one in known if text in (one.id, one.name)]
    if not found:
        where = f"The job {job} has" if job is not None else "There is"
        raise NotFound(f"{where} no savepoint {text!r}.", hint="see `clonos savepoint ls`.")
    if len(found) > 1:
        raise NotFound(f"{len(found)} savepoints are named {text!r}.", hint="name one by its id.")
    return StartFrom(savepoint=found[0], publish_again=publish_again)


def _change(client: Client, job: str, path: Path, params: dict[str, str]) -> None:
    """Give it the code and the specification at `path`; its standbys stay as they are if that says nothing of them."""
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import JobPatch

    now = client.jobs.get(job)
    read = read_submission(path, name=now.name, params=params)
    spec, standby = read.spec, read.spec.spec.standby
    if not standby.model_fields_set & {"replicas", "mode"}:
        same = {"replicas": now.spec.spec.standby.replicas, "mode": now.spec.spec.standby.mode}
        kept = standby.model_copy(update=same) if standby.model_fields_set else now.spec.spec.standby
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"standby": kept})})
    artifact = client.artifacts.upload(read.packed)
    changed = client.jobs.patch(now.id, JobPatch(spec=spec, artifact=artifact.id), version=now.version)
    typer.echo(f"{changed.name} is to have version {changed.version} (code {artifact.id[:12]}).", err=True)


def _steer(client: Client, job: str, ask: Callable[[str], Operation], *, wait: bool, output: Output) -> None:
    from clonos.cli import show

    operation = ask(job)
    if wait:
        operation = client.operations.wait(operation)
    if output is Output.JSON:
        show.show_json(operation)
        return
    now = client.jobs.get(job)
    told = show.state(now.state).plain
    where = f" on {now.agent}" if now.agent and now.state in ("RUNNING", "STARTING", "RECOVERING") else ""
    typer.echo(f"{now.name} is {told}{where}, generation {now.generation}.")
    if not wait:
        typer.echo(f"The operation is {operation.id}.", err=True)
    for name, value in operation.result.items():
        typer.echo(f"{name}: {value}")
