"""REST routes for artifacts: uploaded job code, identified by its SHA-256."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, UploadFile
from fastapi.responses import StreamingResponse

from clonos.resources.base import Page
from clonos.resources.service import Artifact
from clonos_api.admission import artifact_bytes
from clonos_api.auth import require_owner
from clonos_api.http.archives import receive
from clonos_api.http.bodies import SHA
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep, SettingsDep
from clonos_api.routes.access import API, Admin, Operator, ReadingDep, Viewer, WindowDep
from clonos_api.routes.documented import BYTES, problems
from clonos_api.store import artifacts, views
from clonos_api.store.tables import ArtifactRow

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/artifacts", tags=["artifacts"])

Sha = Annotated[str, Path(pattern=SHA, description="SHA-256 of its bytes.")]


async def artifact_of_path(sha: Sha, database: DatabaseDep) -> ArtifactRow:
    """Return the artifact whose SHA-256 is in the path."""
    async with database.reading() as session:
        return await artifacts.get(session, sha)


OwnCode = Annotated[ArtifactRow, require_owner(artifact_of_path, or_agent=True)]


@router.post("", status_code=201, response_model=Artifact, responses={200: {"model": Artifact}, **problems(413)})
async def upload_artifact(
    file: UploadFile, caller: Operator, database: DatabaseDep, settings: SettingsDep, response: Response
) -> Artifact:
    """Upload job code: a ``.py`` file or a ``.zip``.

    If the same bytes are stored already, the status is 200 instead of 201. The artifacts of a subject have a limit of
    bytes.
    """
    async with receive(file) as taken:
        limit_bytes = settings.limits.artifact_bytes_per_subject
        row, created = await artifact_bytes.store(database, taken, caller, limit_bytes=limit_bytes)
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"{API}/artifacts/{row.id}"
    return views.resource(Artifact, row)


@router.get("")
async def list_artifacts(caller: Viewer, session: ReadingDep, window: WindowDep) -> Page[Artifact]:
    """List artifacts (uploaded job code), newest first."""
    return views.page(Artifact, await artifacts.page(session, window))


@router.get("/{sha}")
async def get_artifact(sha: Sha, caller: Viewer, session: ReadingDep) -> Artifact:
    """Get the description of one artifact, without its content."""
    return views.resource(Artifact, await artifacts.get(session, sha))


@router.get("/{sha}/content", response_class=Response, responses=BYTES)
async def get_artifact_content(row: OwnCode, database: DatabaseDep) -> Response:
    """Download the content of an artifact, as an agent or as its owner."""
    headers = {
        "Content-Length": str(row.size_bytes),
        "ETag": f'"{row.id}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        # A browser must not render an upload as a page of this service.
        "Content-Disposition": f'attachment; filename="{row.id}.{row.kind}"',
        "X-Content-Type-Options": "nosniff",
    }
    # A reader that is slow, or many of them, must not keep whole artifacts in memory.
    return StreamingResponse(
        artifact_bytes.parts(database, row), media_type="application/octet-stream", headers=headers
    )


@router.delete("/{sha}", status_code=204, responses=problems(409))
async def delete_artifact(sha: Sha, caller: Admin, database: DatabaseDep) -> None:
    """Delete an artifact that no job version uses."""
    async with database.transaction(by=caller.actor) as session:
        await artifacts.delete(session, sha)
