"""Stores a new version of a job's specification or code, if the caller may do that."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.jobs import JobPatch
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
