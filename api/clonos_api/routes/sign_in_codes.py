"""REST route for the links that sign a browser in (`clonos open`)."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from clonos.resources.service import SignInCode
from clonos_api.guards.idempotency import refuse_key
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import API, Viewer
from clonos_api.routes.documented import problems
from clonos_api.store import sign_in_codes

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/sign-in-codes", tags=["tokens"])


@router.post("", status_code=201, dependencies=[Depends(refuse_key)], responses=problems(404, 409))
async def create_sign_in_code(caller: Viewer, database: DatabaseDep, response: Response) -> SignInCode:
    """Create a code for the link `/signin#code=…`, which signs a browser in once, within a minute.

    The browser's session has the rights of the token with which this request was sent, and ends with it.
    """
    async with database.transaction(by=caller.actor) as session:
        code, expires_at = await sign_in_codes.create(session, caller.token)
    response.headers["Cache-Control"] = "no-store"
    return SignInCode(code=code, expires_at=expires_at)
