"""Artifacts: uploaded code, named by its content."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, UploadFile

from clonos.resources.base import Page
from clonos.resources.service import Artifact
from clonos_api import views
from clonos_api.archives import receive
from clonos_api.auth import require_owner
from clonos_api.bodies import Limit, StartingAfter, page
from clonos_api.documented import BYTES, problems
from clonos_api.routes.access import API, Admin, Operator, Viewer
from clonos_api.services import Store
from clonos_api.store import artifacts
from clonos_api.store.tables import ArtifactRow

router = APIRouter(prefix=f"{API}/artifacts", tags=["artifacts"])

Sha = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its bytes.")]


async def artifact_of_path(sha: Sha, store: Store) -> ArtifactRow:
    """The artifact that the path names."""
    async with store.reading() as session:
        return await artifacts.get(session, sha)


OwnCode = Annotated[ArtifactRow, require_owner(artifact_of_path, owner="created_by", or_agent=True)]


@router.post("", status_code=201, response_model=Artifact, responses={200: {"model": Artifact}, **problems(413)})
async def upload_artifact(file: UploadFile, caller: Operator, store: Store, response: Response) -> Artifact:
    """Upload a ``.py`` or a ``.zip``. The same bytes again are the artifact that is there (200)."""
    async with receive(file) as taken:
        content = await taken.content()
        async with store.transaction(by=caller.actor) as session:
            row, made = await artifacts.put(
                session,
                sha=taken.id,
                kind=taken.kind,
                name=taken.name,
                content=content,
                files=taken.files,
                main=taken.main,
                by=caller.subject,
            )
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"{API}/artifacts/{row.id}"
    return views.artifact(row)


@router.get("")
async def list_artifacts(
    caller: Viewer, store: Store, limit: Limit = 50, starting_after: StartingAfter = None
) -> Page[Artifact]:
    """List artifacts, newest first."""
    async with store.reading() as session:
        found = await artifacts.page(session, limit=limit, starting_after=starting_after)
    return page(map(views.artifact, found.rows), found.next)


@router.get("/{sha}")
async def get_artifact(sha: Sha, caller: Viewer, store: Store) -> Artifact:
    """One artifact, without its bytes."""
    async with store.reading() as session:
        return views.artifact(await artifacts.get(session, sha))


@router.get("/{sha}/content", response_class=Response, responses=BYTES)
async def get_artifact_content(row: OwnCode, store: Store) -> Response:
    """The bytes of an artifact, for agents and for whoever uploaded it."""
    async with store.reading() as session:
        content = await artifacts.content(session, row.id)
    headers = {
        "ETag": f'"{row.id}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        # A browser must not show what somebody uploaded as a page of ours.
        "Content-Disposition": f'attachment; filename="{row.id}.{row.kind}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.delete("/{sha}", status_code=204, responses=problems(409))
async def delete_artifact(sha: Sha, caller: Admin, store: Store) -> None:
    """Delete an artifact that nothing needs."""
    async with store.transaction(by=caller.actor) as session:
        await artifacts.delete(session, sha)
