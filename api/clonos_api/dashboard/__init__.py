"""The dashboard: pages that are rendered here, kept up to date by one stream, and right after any restart.

A page is whole without its scripts, apart from what it cannot know: it reads the same store as the REST API, and its
buttons call that API. `live` sends what changes, as text of single cells; whoever comes back after a restart gets the
whole page's figures anew. Nothing is kept for a browser here but its cookie, which holds a token of the API.

`rendering` and `assets` are what all pages use; `board` is what the overview shows; one module for each page.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from clonos_api.dashboard import assets, errors, events, hosts, job, live, overview, recovery, session, submit
from clonos_api.dashboard.board import Boards
from clonos_api.services import Services

# Whoever is to sign in sees these, and the files.
SIGN_IN: Final = session.SIGN_IN
OPEN: Final = frozenset({session.SIGN_IN, session.SIGN_OUT})
FILES: Final = assets.BELOW
OPEN_ROUTES: Final = OPEN | {assets.ROUTE}


def install(app: FastAPI) -> None:
    """Add the pages."""
    services: Services = app.state.services
    app.state.pulse = live.Pulse(Boards(services.database))
    app.state.page_of = errors.page_of
    services.at_end.append(app.state.pulse.ring)
    for one in (overview, job, recovery, hosts, events, submit, live, session, assets):
        app.include_router(one.router)
