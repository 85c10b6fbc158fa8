"""``clonos apply``: bring a job to the code and specification on disk, in any state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from clonos.cli.lint import require_repeatable
from clonos.cli.options import AllowLint, Api, Listed, Output, Token, Wait, connect, pairs
from clonos.errors import NotFound, StateConflict

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.client.submission import Submission
    from clonos.jobs.spec import JobSpec
    from clonos.resources.jobs import Job, JobPatch, UpgradeRequest


def apply(
    path: Annotated[Path, typer.Argument(help="The job file (.py), its specification (.yaml), or their folder.")],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job (default: the specification's).")] = None,
    standbys: Annotated[
        int | None,
        typer.Option(min=0, max=8, help="Number of standbys (`standby.replicas`).", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Name of a Spark cluster, in place of the specified master or cluster.")
    ] = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the job if it does not run.")] = True,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, help="Seconds to wait for a READY standby of the new version of a running job."
        ),
    ] = 180.0,
    allow_lint: AllowLint = False,
    wait: Wait = True,
    output: Listed = Output.TABLE,
    api: Api = None,
    token: Token = None,
) -> None:
    """Create a job, or bring it to the code and specification at PATH.

    A new job starts. A running job is upgraded through a standby, and works until that is ready. A job that is starting
    or recovering restarts. A job that does not run starts with the new version. Without a change, a job that runs is
    left alone.
    """
    from clonos.client.submission import read_submission

    submission = read_submission(
        path, name=name, params=pairs(param or [], "--param"), standbys=standbys, cluster=cluster
    )
    require_repeatable(submission.file, allowed=allow_lint)
    with connect(api, token) as client:
        try:
            current = client.jobs.get(submission.spec.name)
        except NotFound:
            _create(client, submission, start=start, output=output)
            return
        changed = Changed.of(current, submission).upload(client)
        _change(client, current, changed, start=start, timeout_s=timeout, wait=wait, output=output)


@dataclass(frozen=True)
class Changed:
    """The code and specification on disk, for an existing job.

    Attributes:
        current: The job.
        spec: The specification. It keeps the job's standbys if the one on disk names none.
        submission: What was read from disk.
    """

    current: Job
    spec: JobSpec
    submission: Submission

    @classmethod
    def read(cls, current: Job, path: Path, *, params: Mapping[str, str]) -> Self:
        """Read the code and specification at `path` for a job."""
        from clonos.client.submission import read_submission

        return cls.of(current, read_submission(path, name=current.name, params=params))

    @classmethod
    def of(cls, current: Job, submission: Submission) -> Self:
        """What `submission` changes in a job."""
        spec, standby = submission.spec, submission.spec.spec.standby
        if not standby.model_fields_set & {"replicas", "mode"}:
            before = current.spec.spec.standby
            same = {"replicas": before.replicas, "mode": before.mode}
            standby = standby.model_copy(update=same) if standby.model_fields_set else before
            spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"standby": standby})})
        return cls(current, spec, submission)

    def upload(self, client: Client) -> Uploaded:
        """Upload the code, unless the control plane has it."""
        return Uploaded(self.current, self.spec, client.artifacts.upload(self.submission.packed).id)


@dataclass(frozen=True)
class Uploaded:
    """A changed job whose code is on the control plane."""

    current: Job
    spec: JobSpec
    artifact: str

    @property
    def differs(self) -> bool:
        """Whether specification or code differ from the job's newest version."""
        # With defaults: the control plane returns a specification with them.
        return self.artifact != self.current.artifact or self.spec.model_dump() != self.current.spec.model_dump()

    def patch(self) -> JobPatch:
        """The request that stores the change as the newest version."""
        from clonos.resources.jobs import JobPatch

        return JobPatch(spec=self.spec, artifact=self.artifact)

    def upgrade(self, timeout_s: float) -> UpgradeRequest:
        """The request that also upgrades the running driver."""
        from clonos.resources.jobs import UpgradeRequest

        return UpgradeRequest(spec=self.spec, artifact=self.artifact, timeout_s=timeout_s)


def _create(client: Client, submission: Submission, *, start: bool, output: Output) -> None:
    from clonos.cli.show import show_json
    from clonos.resources.jobs import JobCreate

    artifact = client.artifacts.upload(submission.packed)
    job = client.jobs.create(JobCreate(spec=submission.spec, artifact=artifact.id, start=start))
    if output is Output.JSON:
        show_json(job)
    else:
        typer.echo(f"{job.name} is created (code {artifact.id[:12]}).")
        typer.echo(f"Watch it with: clonos job watch {job.name}" if start else f"Start it: clonos job start {job.name}")


def _change(
    client: Client, current: Job, uploaded: Uploaded, *, start: bool, timeout_s: float, wait: bool, output: Output
) -> None:
    from clonos.cli.job import operate
    from clonos.cli.show import show_json

    jobs, name = client.jobs, current.name
    if current.state in ("CANCELED", "CANCELLING", "STOPPING"):
        raise StateConflict(
            f"Job {name} is {current.state}.",
            kept="nothing was changed.",
            hint="wait until it is STOPPED, and repeat the command."
            if current.state == "STOPPING"
            else f"a cancelled job cannot run again: delete it with `clonos job rm {name}`, and repeat the command.",
        )
    runs = current.state == "RUNNING"
    if runs and uploaded.differs:
        request = uploaded.upgrade(timeout_s)
        operate(client, name, lambda job: jobs.upgrade(job, request, version=current.version), wait=wait, output=output)
        return
    if uploaded.differs:
        stored = jobs.patch(current.id, uploaded.patch(), version=current.version)
        typer.echo(f"{name} has the new version {stored.version} (code {uploaded.artifact[:12]}).", err=True)
        current = stored
    elif runs and current.observed_version == current.version:
        if output is Output.JSON:
            show_json(current)
        else:
            typer.echo(f"{name} is unchanged, and runs.")
        return
    if runs:
        operate(client, name, jobs.upgrade, wait=wait, output=output)
    elif current.state in ("STARTING", "RECOVERING"):
        operate(client, name, jobs.restart if uploaded.differs else jobs.start, wait=wait, output=output)
    elif start:
        operate(client, name, jobs.start, wait=wait, output=output)
    else:
        typer.echo(f"{name} is {current.state}. Start it: clonos job start {name}")
