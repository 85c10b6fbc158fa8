"""The dashboard: server-rendered pages, updated by event streams.

Pages read the same store as the REST API, and their buttons call that API with the browser's session. `live` streams
the changes of the overview: rows as HTML, figures as text of single cells; `job_live` those of a job's page. After a
reconnect, also to another replica, a stream begins with the complete content. The server keeps no per-browser state;
the session cookie contains an API token.

`rendering` and `assets` are shared by all pages. `pages` has those that only show rows of the store.
`clonos_api.fleet` computes the overview. The dashboard must not import `clonos_api.reconcile`, and it never writes to
the store.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from clonos_api.dashboard import (
    assets,
    documentation,
    job,
    job_live,
    live,
    pages,
    recovery,
    session,
    single_sign_on,
)
from clonos_api.replica import Replica

# Open without a session: the sign-in pages, the assets and the documentation.
SIGN_IN: Final = session.SIGN_IN
OPEN: Final = frozenset(
    {
        session.SIGN_IN,
        session.SIGN_OUT,
        session.BY_LINK,
        single_sign_on.BEGIN,
        single_sign_on.END,
        documentation.ROOT,
    }
)
FILES: Final = (assets.BELOW, documentation.BELOW)
OPEN_ROUTES: Final = OPEN | {assets.ROUTE, documentation.ROUTE}


def install(app: FastAPI) -> None:
    """Add the dashboard's pages to the application."""
    replica: Replica = app.state.replica
    app.state.pulse = live.Pulse(replica.boards)
    app.state.page_of = pages.page_of
    replica.at_end.append(app.state.pulse.ring)
    for page in (pages, job, job_live, recovery, live, session, single_sign_on, assets, documentation):
        app.include_router(page.router)
