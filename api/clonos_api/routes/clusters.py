"""REST routes for Spark clusters: add, list, get, change, check and remove them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.jobs.cluster import ClusterSpec
from clonos.resources.base import Page
from clonos.resources.clusters import Cluster
from clonos.resources.service import Operation
from clonos_api.admission import clusters as checks
from clonos_api.admission import spec_checks
from clonos_api.guards.idempotency import OnceDep
from clonos_api.http.bodies import TEXT, IfMatch, check_version, document_of, etag, matched_version
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import API, Admin, NameWindowDep, ReadingDep, Viewer, changing
from clonos_api.routes.documented import ETAG, LOCATION, document_body, problems
from clonos_api.routes.operations import accepted
from clonos_api.store import clusters, views

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/clusters", tags=["clusters"])

ClusterPath = Annotated[str, Path(min_length=1, max_length=100, pattern=TEXT, description="Name of a cluster.")]
ClusterBody = Annotated[ClusterSpec, Depends(document_of(ClusterSpec))]


@router.post(
    "", status_code=201, response_model=Cluster, openapi_extra=document_body(ClusterSpec), responses=problems(415)
)
async def create_cluster(caller: Admin, database: DatabaseDep, body: ClusterBody, once: OnceDep) -> Response:
    """Add a Spark cluster. A host that reaches it then checks it."""
    spec_checks.refuse(checks.check_description(body))
    async with database.transaction(by=caller.actor) as session:
        created = views.cluster(await clusters.create(session, body, by=caller.subject), [])
        headers = {"Location": f"{API}/clusters/{created.name}", "ETag": etag(created)}
        return await once.answer(session, 201, created, headers=headers)


@router.get("")
async def list_clusters(caller: Viewer, session: ReadingDep, window: NameWindowDep) -> Page[Cluster]:
    """List the Spark clusters that jobs can use, by name."""
    page, users = await clusters.page(session, window), await clusters.users(session)
    return views.listed((views.cluster(row, users.get(row.name, [])) for row in page.rows), page.next)


@router.get("/{cluster}", responses=ETAG)
async def get_cluster(cluster: ClusterPath, caller: Viewer, session: ReadingDep, response: Response) -> Cluster:
    """Get one Spark cluster: its description, and what its last check saw."""
    row = await clusters.get(session, cluster)
    shown = views.cluster(row, await clusters.jobs_using(session, cluster))
    response.headers["ETag"] = etag(shown)
    return shown


@router.put("/{cluster}", openapi_extra=document_body(ClusterSpec), responses={**ETAG, **problems(412, 415, 428)})
async def update_cluster(
    cluster: ClusterPath,
    caller: Admin,
    database: DatabaseDep,
    body: ClusterBody,
    response: Response,
    if_match: IfMatch = None,
) -> Cluster:
    """Replace the description of a Spark cluster. The next start of each driver uses it; a host checks it at once."""
    spec_checks.refuse(checks.check_description(body))

    async def change(session: AsyncSession) -> Cluster:
        row = await clusters.get(session, cluster)
        version = matched_version(if_match, row.version)
        row = await clusters.change(session, row, body, version=version, by=caller.subject)
        return views.cluster(row, await clusters.jobs_using(session, cluster))

    shown = await changing(database, caller.actor, change)
    response.headers["ETag"] = etag(shown)
    return shown


@router.delete("/{cluster}", status_code=204, responses=problems(409, 412))
async def delete_cluster(cluster: ClusterPath, caller: Admin, database: DatabaseDep, if_match: IfMatch = None) -> None:
    """Remove a Spark cluster that no running job uses."""

    async def change(session: AsyncSession) -> None:
        row = await clusters.get(session, cluster)
        check_version(if_match, row.version)
        await clusters.remove(session, row)

    await changing(database, caller.actor, change)


@router.post("/{cluster}/check", status_code=202, response_model=Operation, responses=LOCATION)
async def check_cluster(cluster: ClusterPath, caller: Admin, database: DatabaseDep, once: OnceDep) -> Response:
    """Check a Spark cluster from a host that reaches it. A check in progress is returned, and no other one begins."""

    async def change(session: AsyncSession) -> Response:
        row = await clusters.get(session, cluster)
        return await accepted(session, await clusters.request_check(session, row, by=caller.subject), once)

    return await changing(database, caller.actor, change)
