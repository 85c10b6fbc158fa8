"""``clonos job``: show and control jobs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import (
    Adopt,
    AllowLint,
    Api,
    Context,
    JobArgument,
    Limit,
    Listed,
    Listing,
    Lists,
    Output,
    Token,
    Wait,
    confirm,
    connect,
    echo,
    pairs,
)
from clonos.cli.progress import Quiet, completed, working
from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.jobs import StartFrom
    from clonos.resources.service import Operation

app = typer.Typer(no_args_is_help=True, help="Show and control jobs.")

STATES = (
    *("CREATED", "STARTING", "RUNNING", "RECOVERING", "STOPPING"),
    *("STOPPED", "CANCELLING", "CANCELED", "FAILED", "FINISHED"),
)
MODES = ("graceful", "checkpoint", "force")

# What each decision about an epoch in doubt means.
KEEP = "The published lanes stand; the other lanes and the state follow the replay."
REPUBLISH = "All lanes of the replay are published: readers get records of this epoch twice."
DEAD_LETTER = "The published lanes stand; the replay's other lanes go to this topic."
NEW_CODE = "The epoch is replayed with the job's changed code; its published lanes must be equal."
_WITHOUT_DRIVER = ("CREATED", "STOPPED", "FAILED", "FINISHED")  # states of jobs

Timeout = Annotated[
    float,
    typer.Option(min=0.1, max=3600, help="Seconds to wait for a READY standby; the driver keeps running until then."),
]


@app.command()
def schema(
    cluster: Annotated[bool, typer.Option("--cluster", help="The schema of cluster.yaml instead.")] = False,
) -> None:
    """Print the JSON Schema of job.yaml, with which editors complete and check it."""
    import json

    from clonos.documents import json_schema
    from clonos.jobs.cluster import ClusterSpec
    from clonos.jobs.spec import JobSpec

    echo(json.dumps(json_schema(ClusterSpec if cluster else JobSpec), indent=2))


@app.command("ls")
def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(help=f"Show jobs in this state only; may be repeated. One of {', '.join(STATES)}."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Show jobs with this label only: key=value; may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Show jobs whose name contains this text.")] = None,
    limit: Limit = None,
    output: Lists = Listing.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """List jobs with their states and hosts."""
    from clonos.cli import show
    from clonos.resources.jobs import JobState

    names = [text.upper() for text in state or []]
    for text in names:
        if text not in STATES:
            raise SpecError(f"--state {text} is unknown.", hint=f"use one of {', '.join(STATES)}.")
    with connect(api, token, context) as client:
        states = [JobState(text) for text in names] or None
        page = client.jobs.list(states=states, labels=pairs(label or [], "--label"), name=name, limit=limit)
    show.show_list(
        page,
        output,
        {
            "name": lambda job: job.name,
            "state": lambda job: show.state(job.state),
            "for": lambda job: show.age(job.state_since),
            "generation#": lambda job: str(job.generation) if job.generation else None,
            "host": lambda job: job.host,
            "restarts#": lambda job: str(job.restarts),
            "version#": lambda job: str(job.version),
            "created by": lambda job: job.created_by,
            "error": lambda job: job.failure.error if job.failure else "",
        },
        lambda job: job.name,
        none="There are no jobs. Submit one with: clonos submit PATH",
    )


@app.command()
def inspect(
    job: JobArgument, output: Listed = Output.TABLE, api: Api = None, token: Token = None, context: Context = None
) -> None:
    """Show one job: state, generation, host, lag, last recovery, last error and how to fix it."""
    from clonos.cli import show
    from clonos.cli.picture import fetch, picture

    with connect(api, token, context) as client:
        inspection = fetch(client, job)
    if output is Output.JSON:
        show.show_json(inspection)
    else:
        show.console().print(picture(inspection))


@app.command()
def watch(
    job: JobArgument,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="Output format; json: the job's events as JSON lines.")
    ] = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Watch a job until it ends or Ctrl-C: a live view on a terminal, events in a pipe.

    If the job fails, the command prints the job's error and exits with the error's exit code.
    """
    from clonos.cli.watching import watch as follow

    with connect(api, token, context, patience_s=30.0) as client:
        follow(client, job, as_json=output is Output.JSON)


@app.command()
@app.command("resume")
def start(
    job: JobArgument,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SAVEPOINT|EPOCH",
            help="Start from a savepoint (id or name) or from a retained epoch (number).",
            autocompletion=completion.savepoints,
        ),
    ] = None,
    publish_again: Annotated[
        bool,
        typer.Option(
            "--publish-again", help="With --from: allow duplicates of the records published after that point."
        ),
    ] = False,
    adopt: Adopt = False,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Start a job from its checkpoint, or from an older point."""
    with connect(api, token, context) as client:
        point = starting_point(client, job, start_from, publish_again=publish_again)
        begin = partial(operate, client, job, wait=wait, quiet=quiet, output=output, starts=True)
        begin(lambda name: client.jobs.start(name, point, adopt=adopt))


@app.command()
@app.command("pause")
def stop(
    job: JobArgument,
    mode: Annotated[
        str, typer.Option(help="graceful: finish the running epoch; checkpoint: also take a savepoint; force: kill.")
    ] = "graceful",
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds until the driver is killed.")] = 60.0,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Stop a job; it can be started again. Output stays exactly once in every mode."""
    from clonos.resources.jobs import StopMode, StopRequest

    if mode not in MODES:
        raise SpecError(f"--mode {mode} is unknown.", hint=f"use one of {', '.join(MODES)}.")
    request = StopRequest(mode=StopMode(mode), timeout_s=timeout)
    with connect(api, token, context) as client:
        operate(client, job, lambda name: client.jobs.stop(name, request), wait=wait, quiet=quiet, output=output)


@app.command()
def restart(
    job: JobArgument,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Stop a job, if it runs, and start it. A version that was stored for the next start begins to run."""
    with connect(api, token, context) as client:
        operate(client, job, client.jobs.restart, wait=wait, quiet=quiet, output=output)


@app.command()
def move(
    job: JobArgument,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Target host (default: any other host).", autocompletion=completion.hosts),
    ] = None,
    timeout: Timeout = 180.0,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Move a running job to another host through a standby. Its driver works until the standby takes over."""
    from clonos.resources.jobs import MoveRequest

    request = MoveRequest(to=to, timeout_s=timeout)
    with connect(api, token, context) as client:
        operate(client, job, lambda name: client.jobs.move(name, request), wait=wait, quiet=quiet, output=output)


@app.command()
def upgrade(
    job: JobArgument,
    path: Annotated[
        Path | None,
        typer.Argument(help="New code or specification, as for `clonos submit` (default: the newest submitted)."),
    ] = None,
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    timeout: Timeout = 180.0,
    allow_lint: AllowLint = False,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Upgrade a running job to its newest specification and code through a standby.

    The driver works until the new version is ready. If the new version fails before all its queries have returned, the
    job is rolled back. A refused upgrade stores nothing; `clonos apply` also changes jobs that do not run.
    """
    from clonos.cli.apply import change_of, upgrade_to
    from clonos.cli.lint import require_repeatable
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import UpgradeRequest

    request = UpgradeRequest(timeout_s=timeout)
    if path is None and param:
        raise SpecError("--param needs the PATH of a specification.")
    with connect(api, token, context) as client:
        version = None
        if path is not None:
            current = client.jobs.get(job)
            submission = read_submission(path, name=current.name, params=pairs(param or [], "--param"))
            require_repeatable(submission.file, allowed=allow_lint)
            request, version = upgrade_to(change_of(client, current, submission), timeout), current.version
        operate(
            client,
            job,
            lambda name: client.jobs.upgrade(name, request, version=version),
            wait=wait,
            quiet=quiet,
            output=output,
        )


@app.command()
def rollback(
    job: JobArgument,
    version: Annotated[
        int | None,
        typer.Argument(min=1, help="The version (default: the other one whose driver finished an epoch last)."),
    ] = None,
    timeout: Timeout = 180.0,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Return a job to another of its versions: its code and its specification.

    A running job is upgraded to that version through a standby. A job that failed starts with it. A stopped job starts
    with it next time. `clonos job versions` lists the versions, and shows what differs.
    """
    from clonos.resources.jobs import RollbackRequest

    request = RollbackRequest(version=version, timeout_s=timeout)
    with connect(api, token, context) as client:
        begin = partial(operate, client, job, wait=wait, quiet=quiet, output=output, starts=True)
        begin(lambda name: client.jobs.roll_back(name, request))


@app.command()
def rescale(
    job: JobArgument,
    partitions: Annotated[int, typer.Option(min=1, max=10_000, help="Number of partitions of shuffles and state.")],
    timeout: Timeout = 180.0,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Continue a running job with another number of partitions of its shuffles and its state, through a standby.

    The driver works until the standby is ready, and finishes its epoch. The standby repartitions the state and
    continues. A job whose state cannot be repartitioned continues with its old number.
    """
    from clonos.jobs.spec import SHUFFLE_PARTITIONS
    from clonos.resources.jobs import UpgradeRequest

    with connect(api, token, context) as client:
        current = client.jobs.get(job)
        conf = {name: value for name, value in current.spec.spec.spark_conf.items() if name != SHUFFLE_PARTITIONS}
        changes = {"shuffle_partitions": partitions, "spark_conf": conf}
        spec = current.spec.model_copy(update={"spec": current.spec.spec.model_copy(update=changes)})
        request = UpgradeRequest(spec=spec, timeout_s=timeout)
        version = current.version
        operate(
            client,
            job,
            lambda name: client.jobs.upgrade(name, request, version=version),
            wait=wait,
            quiet=quiet,
            output=output,
        )


@app.command()
def resolve(
    job: JobArgument,
    epoch: Annotated[
        int | None,
        typer.Option(min=0, help="The epoch in doubt, as the job's error names it; with --new-code default: all."),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Its query, which has the name of its sink (default: output).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help=KEEP)] = False,
    republish: Annotated[bool, typer.Option("--republish", help=REPUBLISH)] = False,
    dead_letter: Annotated[str | None, typer.Option(metavar="TOPIC", help=DEAD_LETTER)] = None,
    new_code: Annotated[bool, typer.Option("--new-code", help=NEW_CODE)] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Decide about the epochs in doubt that stopped a job, and start the job.

    The audit log and the causal log record the decision.
    """
    from clonos.resources.jobs import ResolveRequest

    meanings = {
        "keep": (keep, KEEP),
        "republish": (republish, REPUBLISH),
        "dead-letter": (dead_letter is not None, DEAD_LETTER),
        "new-code": (new_code, NEW_CODE),
    }
    decisions = [decision for decision, (chosen, _) in meanings.items() if chosen]
    if len(decisions) != 1:
        raise SpecError(
            "A resolution needs exactly one decision.",
            hint="use --keep, --republish, --dead-letter TOPIC or --new-code.",
        )
    if epoch is None and (query is not None or not new_code):
        raise SpecError(
            "The decision names no epoch.",
            hint="add --epoch N; `clonos causal-log ls` shows the epochs in doubt. Only --new-code decides about all.",
        )
    query = query or "output" if epoch is not None else None
    request = ResolveRequest.model_validate(
        {"query": query, "epoch": epoch, "decision": decisions[0], "topic": dead_letter}
    )
    echo(meanings[decisions[0]][1], err=True)
    if not yes:
        what = f"epoch {epoch} of {query}" if epoch is not None else "all epochs in doubt"
        confirm(f"Resolve {what} of {job}?")
    with connect(api, token, context) as client:
        begin = partial(operate, client, job, wait=wait, quiet=quiet, output=output, starts=True)
        begin(lambda name: client.jobs.resolve(name, request))


@app.command()
def verify(
    job: JobArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic to which the job publishes; name all of them (default: those in the causal log)."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to observe a running job.")] = 10.0,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Verify on a host that each epoch of a job was published once; the dashboard shows the result.

    As `clonos verify`, which reads Kafka from this machine. Exit code 1 if the output is not verified.
    """
    from clonos.cli import show
    from clonos.cli.verify import print_verification
    from clonos.resources.verification import Verification, VerifyRequest

    request = VerifyRequest(topics=topic or [], seconds=seconds)
    with connect(api, token, context) as client:
        operation = client.jobs.verify(job, request)
        if not wait:
            echo(f"The operation is {operation.id}.", err=True)
            return
        operation = completed(client, operation, job, quiet=quiet, output=output)
    verification = Verification.model_validate(operation.result)
    if output is Output.JSON:
        show.show_json(verification)
    else:
        print_verification(verification)
    if not verification.clean:
        raise typer.Exit(1)


@app.command()
def cancel(
    job: JobArgument,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Cancel a job permanently; published records stay."""
    with connect(api, token, context) as client:
        operate(client, job, client.jobs.cancel, wait=wait, quiet=quiet, output=output)


@app.command("rm")
def remove(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Names or ids.", autocompletion=completion.jobs)],
    wait: Wait = True,
    quiet: Quiet = False,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Delete jobs; a running job is cancelled first. Savepoints stay."""
    with connect(api, token, context) as client:
        for job in jobs:
            operation = client.jobs.delete(job)
            if wait:
                operation = completed(client, operation, job, quiet=quiet)
            echo(f"{job} is deleted." if operation.state == "COMPLETED" else f"{job} is being deleted.")


def starting_point(client: Client, job: str | None, text: str | None, *, publish_again: bool) -> StartFrom | None:
    """The starting point that ``--from TEXT`` names: an epoch, or a savepoint of `job` (None: of any job)."""
    from clonos.cli.checkpoint import find_savepoint
    from clonos.resources.jobs import StartFrom

    if text is None:
        if publish_again:
            raise SpecError("--publish-again needs --from.")
        return None
    if text.isdigit():
        return StartFrom(epoch=int(text), publish_again=publish_again)
    return StartFrom(savepoint=find_savepoint(client, job, text).id, publish_again=publish_again)


def operate(
    client: Client,
    job: str,
    request: Callable[[str], Operation],
    *,
    wait: bool,
    quiet: bool,
    output: Output,
    starts: bool = False,
) -> None:
    """Send a request for an operation on a job, wait for its end, and print the job's state.

    With `starts`, wait until a job without a driver works again.
    """
    from clonos.cli import show

    begins = starts and wait and client.jobs.get(job).state in _WITHOUT_DRIVER
    operation = request(job)
    if wait:
        operation = completed(client, operation, job, quiet=quiet, output=output)
        if begins:
            working(client, job, quiet=quiet, output=output)
    if output is Output.JSON:
        show.show_json(operation)
        return
    current = client.jobs.get(job)
    where = f" on {current.host}" if current.host and current.state in ("RUNNING", "STARTING", "RECOVERING") else ""
    echo(f"{current.name} is {current.state}{where}, generation {current.generation}.")
    if not wait:
        echo(f"The operation is {operation.id}.", err=True)
    for name, value in operation.result.items():
        echo(f"{name}: {value}")
