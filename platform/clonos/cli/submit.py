"""``clonos submit`` and ``clonos apply``: bring the code and specification on disk to the control plane."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.checkpoint import starting_point
from clonos.cli.lint import require_repeatable
from clonos.cli.options import (
    Adopt,
    AllowLint,
    ClusterName,
    JobName,
    JobPath,
    Listed,
    Params,
    PublishAgain,
    StandbyCount,
    echo,
    pairs,
)
from clonos.cli.progress import operate, placed, running
from clonos.cli.remote import Call, remote
from clonos.errors import NotFound, SpecError, StateConflict

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.client.submission import Submission
    from clonos.resources.jobs import Job, JobPatch, UpgradeRequest


@remote(quiet=True, output=Listed)
def submit(
    call: Call,
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
    publish_again: PublishAgain = False,
    adopt: Adopt = False,
    allow_lint: AllowLint = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job runs; if it fails, exit with its error.")
    ] = False,
) -> None:
    """Submit a new job: upload its code and start it on a host. `clonos apply` also changes existing jobs."""
    from clonos.cli.capacity_notes import show_capacity
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import JobCreate

    client, params = call.client, pairs(param, "--param")
    submission = read_submission(path, name=name, params=params, standbys=standbys, cluster=cluster)
    require_repeatable(submission.file, allowed=allow_lint)
    point = starting_point(client, None, start_from, publish_again=publish_again)
    artifact = client.artifacts.upload(submission.packed)
    # Older control planes know no adoption: the field is sent only if it is used.
    options = {"adopt": True} if adopt else {}
    request = JobCreate(spec=submission.spec, artifact=artifact.id, start=start, start_from=point, **options)
    job = client.jobs.create(request)
    if not call.as_json:
        echo(f"{job.name} is submitted (job {job.id}, code {artifact.id[:12]}).")
        if start:
            show_capacity(client, job)
    if wait and start:
        job = running(call, job)
    elif start:
        placed(client, job)
    if watch:
        from clonos.cli.picture import watch as follow

        follow(client, job.id, as_json=call.as_json)
    else:
        call.show(job, partial(_next_step, start=start, wait=wait, command="Start it with"))


def _next_step(job: Job, *, start: bool, wait: bool, command: str) -> str:
    if start and wait:
        return f"{job.name} is {job.state}{f' on {job.host}' if job.host else ''}."
    return f"Watch it with: clonos job watch {job.name}" if start else f"{command}: clonos job start {job.name}"


@remote(waits=True, output=Listed)
def apply(
    call: Call,
    path: JobPath,
    param: Params = None,
    name: JobName = None,
    standbys: StandbyCount = None,
    cluster: ClusterName = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the job if it does not run.")] = True,
    new_code: Annotated[
        bool, typer.Option("--new-code", help="If the job has no driver: accept the new code for its epochs in doubt.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, help="Seconds to wait for a READY standby of the new version of a running job."
        ),
    ] = 180.0,
    allow_lint: AllowLint = False,
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
    params = pairs(param, "--param")
    submission = read_submission(path, name=name, params=params, standbys=standbys, cluster=cluster)
    require_repeatable(submission.file, allowed=allow_lint)
    try:
        current = call.client.jobs.get(submission.spec.name)
    except NotFound:
        _create(call, submission, start=start)
    else:
        change = change_of(call.client, current, submission)
        _change(call, current, change, start=start, new_code=new_code, timeout_s=timeout)


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
    """Return the request that stores a change and upgrades the running driver to it."""
    from clonos.resources.jobs import UpgradeRequest

    return UpgradeRequest(spec=change.spec, artifact=change.artifact, timeout_s=timeout_s)


def _differs(current: Job, change: JobPatch) -> bool:
    """Whether specification or code differ from the job's newest version."""
    assert change.spec is not None
    # With defaults: the control plane returns a specification with them.
    return change.artifact != current.artifact or change.spec.model_dump() != current.spec.model_dump()


def _create(call: Call, submission: Submission, *, start: bool) -> None:
    from clonos.cli.capacity_notes import show_capacity
    from clonos.resources.jobs import JobCreate

    client = call.client
    artifact = client.artifacts.upload(submission.packed)
    job = client.jobs.create(JobCreate(spec=submission.spec, artifact=artifact.id, start=start))
    if not call.as_json:
        echo(f"{job.name} is created (code {artifact.id[:12]}).")
        if start:
            show_capacity(client, job)
    if start and call.wait:
        job = running(call, job)
    call.show(job, partial(_next_step, start=start, wait=call.wait, command="Start it"))


def _change(call: Call, current: Job, change: JobPatch, *, start: bool, new_code: bool, timeout_s: float) -> None:
    from clonos.resources.jobs import ResolveRequest

    jobs, name = call.client.jobs, current.name
    if current.state in ("CANCELED", "CANCELLING", "STOPPING"):
        raise StateConflict(
            f"Job {name} is {current.state}.",
            hint="wait until it is STOPPED, and repeat the command."
            if current.state == "STOPPING"
            else f"a cancelled job cannot run again: delete it with `clonos job rm {name}`, and repeat the command.",
        )
    runs, differs = current.state == "RUNNING", _differs(current, change)
    begin = partial(operate, call, name)
    if runs and differs:
        request = upgrade_to(change, timeout_s)
        begin(lambda job: jobs.upgrade(job, request, version=current.version))
        return
    if differs:
        current = jobs.patch(current.id, change, version=current.version)
        echo(f"{name} has the new version {current.version} (code {(change.artifact or '')[:12]}).", err=True)
    elif runs and current.observed_version == current.version:
        call.show(current, lambda job: f"{job.name} is unchanged, and runs.")
        return
    if runs:
        begin(jobs.upgrade)
    elif new_code:  # refused while the job has a driver
        begin(lambda job: jobs.resolve(job, ResolveRequest(decision="new-code")), starts=True)
    elif current.state in ("STARTING", "RECOVERING"):
        begin(jobs.restart if differs else jobs.start)
    elif start:
        begin(jobs.start, starts=True)
    else:
        echo(f"{name} is {current.state}. Start it: clonos job start {name}")
