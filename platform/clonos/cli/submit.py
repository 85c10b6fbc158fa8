"""``clonos submit``: upload a job's code and specification to the control plane."""

from __future__ import annotations

from typing import Annotated

import typer

from clonos.cli import completion
from clonos.cli.lint import require_repeatable
from clonos.cli.options import (
    Adopt,
    AllowLint,
    Api,
    ClusterName,
    Context,
    JobName,
    JobPath,
    Listed,
    Output,
    Params,
    StandbyCount,
    Token,
    connect,
    echo,
    pairs,
)
from clonos.cli.progress import Quiet, placed, running


def submit(
    path: JobPath,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch the job until it ends or Ctrl-C.")] = False,
    param: Params = None,
    name: JobName = None,
    standbys: StandbyCount = None,
    cluster: ClusterName = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the job.")] = True,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SAVEPOINT",
            help="Start from a savepoint (id or name) of another job.",
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
    allow_lint: AllowLint = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job runs; if it fails, exit with its error.")
    ] = False,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Submit a new job: upload its code and start it on a host. `clonos apply` also changes existing jobs."""
    from clonos.cli.capacity_notes import show_capacity
    from clonos.cli.job import starting_point
    from clonos.cli.show import show_json
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import JobCreate

    params = pairs(param or [], "--param")
    submission = read_submission(path, name=name, params=params, standbys=standbys, cluster=cluster)
    require_repeatable(submission.file, allowed=allow_lint)
    with connect(api, token, context) as client:
        point = starting_point(client, None, start_from, publish_again=publish_again)
        artifact = client.artifacts.upload(submission.packed)
        # Older control planes know no adoption: the field is sent only if it is used.
        options = {"adopt": True} if adopt else {}
        request = JobCreate(spec=submission.spec, artifact=artifact.id, start=start, start_from=point, **options)
        job = client.jobs.create(request)
        if output is Output.TABLE:
            echo(f"{job.name} is submitted (job {job.id}, code {artifact.id[:12]}).")
            if start:
                show_capacity(client, job)
        if wait and start:
            job = running(client, job, quiet=quiet, output=output)
        elif start:
            placed(client, job)
        if output is Output.JSON and not watch:
            show_json(job)
        elif watch:
            from clonos.cli.watching import watch as follow

            follow(client, job.id, as_json=output is Output.JSON)
        elif wait and start:
            echo(f"{job.name} is {job.state}{f' on {job.host}' if job.host else ''}.")
        elif start:
            echo(f"Watch it with: clonos job watch {job.name}")
        else:
            echo(f"Start it with: clonos job start {job.name}")
