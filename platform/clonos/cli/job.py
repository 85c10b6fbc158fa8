"""``clonos job``: show and control jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clonos.cli import completion, show
from clonos.cli.checkpoint import starting_point
from clonos.cli.options import (
    Adopt,
    AllowLint,
    JobArgument,
    Limit,
    Listed,
    Lists,
    Observed,
    Output,
    Params,
    PublishAgain,
    Topics,
    Yes,
    chosen,
    confirm,
    echo,
    pairs,
)
from clonos.cli.progress import completed, operate
from clonos.cli.remote import Call, remote
from clonos.errors import SpecError

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

Timeout = Annotated[
    float,
    typer.Option(min=0.1, max=3600, help="Seconds to wait for a READY standby; the driver keeps running until then."),
]


@app.command()
def schema(
    cluster: Annotated[bool, typer.Option("--cluster", help="The schema of cluster.yaml instead.")] = False,
) -> None:
    """Print the JSON Schema of job.yaml, which lets editors complete and check it."""
    import json

    from clonos.documents import json_schema
    from clonos.jobs.cluster import ClusterSpec
    from clonos.jobs.spec import JobSpec

    echo(json.dumps(json_schema(ClusterSpec if cluster else JobSpec), indent=2))


@app.command("ls")
@remote(output=Lists)
def list_jobs(
    call: Call,
    state: Annotated[
        list[str] | None,
        typer.Option(help=f"Show jobs in this state only; may be repeated. One of {', '.join(STATES)}."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Show jobs with this label only: key=value; may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Show jobs whose name contains this text.")] = None,
    limit: Limit = None,
) -> None:
    """List jobs with their states and hosts."""
    from clonos.resources.jobs import JobState

    states = [JobState(chosen(text.upper(), "--state", STATES)) for text in state or ()] or None
    call.show_list(
        call.client.jobs.list(states=states, labels=pairs(label, "--label"), name=name, limit=limit),
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
        none="There are no jobs. Submit one with: clonos submit PATH",
    )


@app.command()
@remote(output=Listed)
def inspect(call: Call, job: JobArgument) -> None:
    """Show one job: state, generation, host, lag, last recovery, last error and how to fix it."""
    from clonos.cli.picture import fetch, picture

    call.show(fetch(call.client, job), picture)


@app.command()
@remote(
    output=Annotated[
        Output, typer.Option("--output", "-o", help="Output format; json: the job's events as JSON lines.")
    ],
    patience_s=30.0,
)
def watch(call: Call, job: JobArgument) -> None:
    """Watch a job until it ends or Ctrl-C: a live view on a terminal, events in a pipe.

    If the job fails, the command prints the job's error and exits with the error's exit code.
    """
    from clonos.cli.picture import watch as follow

    follow(call.client, job, as_json=call.as_json)


@app.command()
@app.command("resume")
@remote(waits=True, output=Listed)
def start(
    call: Call,
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
    publish_again: PublishAgain = False,
    adopt: Adopt = False,
) -> None:
    """Start a job from its checkpoint, or from an older point."""
    jobs = call.client.jobs
    point = starting_point(call.client, job, start_from, publish_again=publish_again)
    operate(call, job, lambda name: jobs.start(name, point, adopt=adopt), starts=True)


@app.command()
@app.command("pause")
@remote(waits=True, output=Listed)
def stop(
    call: Call,
    job: JobArgument,
    mode: Annotated[
        str, typer.Option(help="graceful: finish the running epoch; checkpoint: also take a savepoint; force: kill.")
    ] = "graceful",
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds until the driver is killed.")] = 60.0,
) -> None:
    """Stop a job; it can be started again. Output stays exactly once in every mode."""
    from clonos.resources.jobs import StopMode, StopRequest

    request = StopRequest(mode=StopMode(chosen(mode, "--mode", MODES)), timeout_s=timeout)
    operate(call, job, lambda name: call.client.jobs.stop(name, request))


@app.command()
@remote(waits=True, output=Listed)
def restart(call: Call, job: JobArgument) -> None:
    """Stop a job, if it runs, and start it. A version that was stored for the next start begins to run."""
    operate(call, job, call.client.jobs.restart)


@app.command()
@remote(waits=True, output=Listed)
def move(
    call: Call,
    job: JobArgument,
    to: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Target host (default: any other host).", autocompletion=completion.hosts),
    ] = None,
    timeout: Timeout = 180.0,
) -> None:
    """Move a running job to another host through a standby. Its driver works until the standby takes over."""
    from clonos.resources.jobs import MoveRequest

    request = MoveRequest(to=to, timeout_s=timeout)
    operate(call, job, lambda name: call.client.jobs.move(name, request))


@app.command()
@remote(waits=True, output=Listed)
def upgrade(
    call: Call,
    job: JobArgument,
    path: Annotated[
        Path | None,
        typer.Argument(help="New code or specification, as for `clonos submit` (default: the newest submitted)."),
    ] = None,
    param: Params = None,
    timeout: Timeout = 180.0,
    allow_lint: AllowLint = False,
) -> None:
    """Upgrade a running job to its newest specification and code through a standby.

    The driver works until the new version is ready. If the new version fails before all its queries have returned, the
    job is rolled back. A refused upgrade stores nothing; `clonos apply` also changes jobs that do not run.
    """
    from clonos.cli.lint import require_repeatable
    from clonos.cli.submit import change_of, upgrade_to
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import UpgradeRequest

    request, version = UpgradeRequest(timeout_s=timeout), None
    if path is None and param:
        raise SpecError("--param needs the PATH of a specification.")
    if path is not None:
        current = call.client.jobs.get(job)
        submission = read_submission(path, name=current.name, params=pairs(param, "--param"))
        require_repeatable(submission.file, allowed=allow_lint)
        request, version = upgrade_to(change_of(call.client, current, submission), timeout), current.version
    operate(call, job, lambda name: call.client.jobs.upgrade(name, request, version=version))


@app.command()
@remote(waits=True, output=Listed)
def rollback(
    call: Call,
    job: JobArgument,
    version: Annotated[
        int | None,
        typer.Argument(min=1, help="The version (default: the other one whose driver finished an epoch last)."),
    ] = None,
    timeout: Timeout = 180.0,
) -> None:
    """Return a job to another of its versions: its code and its specification.

    A running job is upgraded to that version through a standby. A job that failed starts with it. A stopped job starts
    with it next time. `clonos job versions` lists the versions, and shows what differs.
    """
    from clonos.resources.jobs import RollbackRequest

    request = RollbackRequest(version=version, timeout_s=timeout)
    operate(call, job, lambda name: call.client.jobs.roll_back(name, request), starts=True)


@app.command()
@remote(waits=True, output=Listed)
def rescale(
    call: Call,
    job: JobArgument,
    partitions: Annotated[int, typer.Option(min=1, max=10_000, help="Number of partitions of shuffles and state.")],
    timeout: Timeout = 180.0,
) -> None:
    """Continue a running job with another number of partitions of its shuffles and its state, through a standby.

    The driver works until the standby is ready, and finishes its epoch. The standby repartitions the state and
    continues. A job whose state cannot be repartitioned continues with its old number.
    """
    from clonos.jobs.spec import SHUFFLE_PARTITIONS
    from clonos.resources.jobs import UpgradeRequest

    current = call.client.jobs.get(job)
    conf = {name: value for name, value in current.spec.spec.spark_conf.items() if name != SHUFFLE_PARTITIONS}
    changes = {"shuffle_partitions": partitions, "spark_conf": conf}
    spec = current.spec.model_copy(update={"spec": current.spec.spec.model_copy(update=changes)})
    request = UpgradeRequest(spec=spec, timeout_s=timeout)
    operate(call, job, lambda name: call.client.jobs.upgrade(name, request, version=current.version))


@app.command()
@remote(waits=True, output=Listed)
def resolve(
    call: Call,
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
    yes: Yes = False,
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
    decisions = [decision for decision, (requested, _) in meanings.items() if requested]
    if len(decisions) != 1:
        hint = "use --keep, --republish, --dead-letter TOPIC or --new-code."
        raise SpecError("A resolution needs exactly one decision.", hint=hint)
    if epoch is None and (query is not None or not new_code):
        hint = "add --epoch N; `clonos causal-log ls` shows the epochs in doubt. Only --new-code decides about all."
        raise SpecError("The decision names no epoch.", hint=hint)
    query = query or "output" if epoch is not None else None
    request = ResolveRequest.model_validate(
        {"query": query, "epoch": epoch, "decision": decisions[0], "topic": dead_letter}
    )
    echo(meanings[decisions[0]][1], err=True)
    if not yes:
        what = f"epoch {epoch} of {query}" if epoch is not None else "all epochs in doubt"
        confirm(f"Resolve {what} of {job}?")
    operate(call, job, lambda name: call.client.jobs.resolve(name, request), starts=True)


@app.command()
@remote(waits=True, output=Listed)
def verify(call: Call, job: JobArgument, topic: Topics = None, seconds: Observed = 10.0) -> None:
    """Verify on a host that each epoch of a job was published once; the dashboard shows the result.

    As `clonos verify`, which reads Kafka from this machine. Exit code 1 if the output is not verified.
    """
    from clonos.cli.causal_log import findings
    from clonos.resources.verification import Verification, VerifyRequest

    operation = call.client.jobs.verify(job, VerifyRequest(topics=topic or [], seconds=seconds))
    if not call.wait:
        echo(f"The operation is {operation.id}.", err=True)
        return
    verification = Verification.model_validate(completed(call, operation, job).result)
    call.show(verification, findings)
    if not verification.clean:
        raise typer.Exit(1)


@app.command()
@remote(waits=True, output=Listed)
def cancel(call: Call, job: JobArgument) -> None:
    """Cancel a job permanently; published records stay."""
    operate(call, job, call.client.jobs.cancel)


@app.command("rm")
@remote(waits=True)
def remove(
    call: Call,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Names or ids.", autocompletion=completion.jobs)],
) -> None:
    """Delete jobs; a running job is cancelled first. Savepoints stay."""
    for job in jobs:
        operation = call.client.jobs.delete(job)
        if call.wait:
            operation = completed(call, operation, job)
        echo(f"{job} is deleted." if operation.state == "COMPLETED" else f"{job} is being deleted.")
