"""REST routes for the sessions of browsers that are signed in to the dashboard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from clonos.resources.base import Page
from clonos.resources.service import EndedSessions, Session
from clonos_api.http.bodies import TEXT
from clonos_api.http.checked_json import CheckedRoute
from clonos_api.replica import DatabaseDep
from clonos_api.routes.access import API, Admin, WindowDep
from clonos_api.store import sessions, views

router = APIRouter(route_class=CheckedRoute, prefix=f"{API}/sessions", tags=["tokens"])

SessionPath = Annotated[
    str, Path(alias="session", min_length=1, max_length=16, pattern=TEXT, description="Id of a session.")
]
_SUBJECT = Query(min_length=1, max_length=100, pattern=TEXT, description="Only sessions of this subject.")


@router.get("")
async def list_sessions(
    caller: Admin, database: DatabaseDep, window: WindowDep, subject: Annotated[str | None, _SUBJECT] = None
) -> Page[Session]:
    """List the browsers that are signed in, newest first."""
    async with database.reading() as session:
        return views.page(Session, await sessions.page(session, window, subject=subject))


@router.delete("")
async def end_sessions(caller: Admin, database: DatabaseDep, subject: Annotated[str, _SUBJECT]) -> EndedSessions:
    """End all sessions of a subject at once. Its API tokens remain valid."""
    async with database.transaction(by=caller.actor) as session:
        return EndedSessions(ended=await sessions.end_all(session, subject))


@router.delete("/{session}", status_code=204)
async def end_session(session_id: SessionPath, caller: Admin, database: DatabaseDep) -> None:
    """End a session at once."""
    async with database.transaction(by=caller.actor) as session:
        await sessions.end(session, session_id)
