"""``clonos apply``: bring a job to the code and specification on disk, in any state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from clonos.cli.lint import require_repeatable
from clonos.cli.options import (
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
    Wait,
    connect,
    echo,
    pairs,
)
from clonos.cli.progress import Quiet, running
from clonos.errors import NotFound, SpecError, StateConflict

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.client.submission import Submission
    from clonos.resources.jobs import Job, JobPatch, UpgradeRequest


def apply(
    path: JobPath,
    param: Params = None,
    name: JobName = None,
    standbys: StandbyCount = None,
    cluster: ClusterName = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the job if it does not run.")] = True,
    new_code: Annotated[
        bool,
        typer.Option("--new-code", help="If the job has no driver: accept the new code for its epochs in doubt."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, help="Seconds to wait for a READY standby of the new version of a running job."
        ),
    ] = 180.0,
    allow_lint: AllowLint = False,
    wait: Wait = True,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
    context: Context = None,
) -> None:
    """Create a job, or bring it to the code and specification at PATH.

    A new job starts. A running job is upgraded through a standby, and works until that is ready. A job that is starting
    or recovering restarts. A job that does not run starts with the new version. Without a change, a job that runs is
    left alone. The command waits until the job runs, and fails with the job's error; --no-wait returns at once.
    A job that failed in an epoch refuses changed code for that epoch; --new-code accepts it.
    """
    from clonos.client.submission import read_submission

    if new_code and not start:
        raise SpecError("--new-code starts the job.", hint="use it without --no-start.")
    submission = read_submission(
        path, name=name, params=pairs(param or [], "--param"), standbys=standbys, cluster=cluster
    )
    require_repeatable(submission.file, allowed=allow_lint)
    with connect(api, token, context) as client:
        try:
            current = client.jobs.get(submission.spec.name)
        except NotFound:
            _create(client, submission, start=start, wait=wait, quiet=quiet, output=output)
            return
        change = change_of(client, current, submission)
        how = _Start(start=start, new_code=new_code, timeout_s=timeout, wait=wait, quiet=quiet, output=output)
        _change(client, current, change, how)


def change_of(client: Client, current: Job, submission: Submission) -> JobPatch:
    """Upload the code of a submission, and return what it makes of an existing job.

    The job keeps its standbys if the specification on disk names none.
    """
    from clonos.resources.jobs import JobPatch

    spec, standby = submission.spec, submission.spec.spec.standby
    if not standby.model_fields_set & {"replicas", "mode"}:
        before = current.spec.spec.standby
        same = {"replicas": before.replicas, "mode": before.mode}
        standby = standby.model_copy(update=same) if standby.model_fields_set else before
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"standby": standby})})
    return JobPatch(spec=spec, artifact=client.artifacts.upload(submission.packed).id)


def upgrade_to(change: JobPatch, timeout_s: float) -> UpgradeRequest:
    """The request that stores a change and upgrades the running driver to it."""
    from clonos.resources.jobs import UpgradeRequest

    return UpgradeRequest(spec=change.spec, artifact=change.artifact, timeout_s=timeout_s)


def _differs(current: Job, change: JobPatch) -> bool:
    """Whether specification or code differ from the job's newest version."""
    assert change.spec is not None
    # With defaults: the control plane returns a specification with them.
    return change.artifact != current.artifact or change.spec.model_dump() != current.spec.model_dump()


def _create(client: Client, submission: Submission, *, start: bool, wait: bool, quiet: bool, output: Output) -> None:
    from clonos.cli.capacity_notes import show_capacity
    from clonos.cli.show import show_json
    from clonos.resources.jobs import JobCreate

    artifact = client.artifacts.upload(submission.packed)
    job = client.jobs.create(JobCreate(spec=submission.spec, artifact=artifact.id, start=start))
    if output is Output.TABLE:
        echo(f"{job.name} is created (code {artifact.id[:12]}).")
        if start:
            show_capacity(client, job)
    if start and wait:
        job = running(client, job, quiet=quiet, output=output)
    if output is Output.JSON:
        show_json(job)
    elif start and wait:
        echo(f"{job.name} is {job.state}{f' on {job.host}' if job.host else ''}.")
    else:
        echo(f"Watch it with: clonos job watch {job.name}" if start else f"Start it: clonos job start {job.name}")


class _Start(NamedTuple):
    """How `apply` starts an existing job, as its options."""

    start: bool
    new_code: bool
    timeout_s: float
    wait: bool
    quiet: bool
    output: Output


def _change(
    client: Client,
    current: Job,
    change: JobPatch,
    how: _Start,
) -> None:
    from clonos.cli.job import operate
    from clonos.cli.show import show_json
    from clonos.resources.jobs import ResolveRequest

    jobs, name = client.jobs, current.name
    if current.state in ("CANCELED", "CANCELLING", "STOPPING"):
        raise StateConflict(
            f"Job {name} is {current.state}.",
            kept="nothing was changed.",
            hint="wait until it is STOPPED, and repeat the command."
            if current.state == "STOPPING"
            else f"a cancelled job cannot run again: delete it with `clonos job rm {name}`, and repeat the command.",
        )
    runs, differs = current.state == "RUNNING", _differs(current, change)
    begin = partial(operate, client, name, wait=how.wait, quiet=how.quiet, output=how.output)
    if runs and differs:
        request = upgrade_to(change, how.timeout_s)
        begin(lambda job: jobs.upgrade(job, request, version=current.version))
        return
    if differs:
        stored = jobs.patch(current.id, change, version=current.version)
        echo(f"{name} has the new version {stored.version} (code {(change.artifact or '')[:12]}).", err=True)
        current = stored
    elif runs and current.observed_version == current.version:
        if how.output is Output.JSON:
            show_json(current)
        else:
            echo(f"{name} is unchanged, and runs.")
        return
    if runs:
        begin(jobs.upgrade)
    elif how.new_code:  # refused while the job has a driver
        begin(lambda job: jobs.resolve(job, ResolveRequest(decision="new-code")), starts=True)
    elif current.state in ("STARTING", "RECOVERING"):
        begin(jobs.restart if differs else jobs.start)
    elif how.start:
        begin(jobs.start, starts=True)
    else:
        echo(f"{name} is {current.state}. Start it: clonos job start {name}")
