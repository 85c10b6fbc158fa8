"""Stores a new version of a job's specification or code, or returns to an old one, if the caller may do that."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import StateConflict
from clonos.resources.jobs import DesiredState, JobPatch
from clonos_api.admission import checkpoint_owners, clusters, spec_checks
from clonos_api.auth import Principal
from clonos_api.settings import ApiSettings
from clonos_api.store import jobs
from clonos_api.store.tables import JobRow


def check(patch: JobPatch) -> None:
    """Check a new specification as far as that needs no store.

    Raises:
        SpecRefused: The specification is invalid.
    """
    if patch.spec is not None:
        spec_checks.refuse(spec_checks.check_spec(patch.spec))


async def store(
    session: AsyncSession, caller: Principal, job: JobRow, patch: JobPatch, settings: ApiSettings, *, version: int
) -> JobRow:
    """Store `patch` as the newest version of a job; an empty patch changes nothing.

    `version` is the one that the change is based on (``If-Match``).

    Raises:
        SpecRefused: The specification names a cluster that the job cannot use, or another name.
        Forbidden: The checkpoint belongs to another subject.
        VersionStale: `version` is not the newest version.
    """
    if patch.spec is None and patch.artifact is None:
        return job
    if patch.spec is not None:
        spec_checks.refuse(await clusters.check_job(session, patch.spec))
        await checkpoint_owners.check_checkpoint(session, caller, job.name, patch.spec.spec.checkpoint, settings)
    return await jobs.patch(session, job, version=version, spec=patch.spec, artifact=patch.artifact, by=caller.subject)


async def roll_back(
    session: AsyncSession, caller: Principal, job: JobRow, version: int | None, settings: ApiSettings
) -> JobRow:
    """Make another version the one that the next start runs; None: the one whose driver finished an epoch last.

    Raises:
        StateConflict: The job was cancelled, or no other version has finished an epoch without failing later.
        NotFound: There is no such version.
        Forbidden: The checkpoint of the version belongs to another subject.
    """
    if DesiredState.CANCELED in (job.desired_state, job.state):
        raise StateConflict(f"Job {job.name} was cancelled; that is final.", hint="create the job again.")
    target = version if version is not None else await jobs.worked(session, job, but=job.version)
    if target is None:
        raise StateConflict(
            f"No other version of job {job.name} has finished an epoch without failing later.",
            hint=f"name one: `clonos job rollback {job.name} VERSION`; `clonos job versions {job.name}` lists them.",
        )
    if target == job.version:
        return job
    spec = (await jobs.stored_version(session, job, target)).spec
    spec_checks.refuse(await clusters.check_job(session, spec))
    await checkpoint_owners.check_checkpoint(session, caller, job.name, spec.spec.checkpoint, settings)
    return await jobs.revert(session, job, target)
