"""Error pages for browsers; programs get ``application/problem+json``."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from clonos.resources.base import Problem
from clonos_api.auth.cookies import is_visit
from clonos_api.dashboard.rendering import Page, render

_RETRY_S: Final = 5


def page_of(request: Request, problem: Problem) -> Response | None:
    """Return a problem (RFC 9457) as an HTML page; None if the client is not a browser."""
    if not is_visit(request):
        return None
    title = "The control plane is unavailable" if problem.status >= 500 else "This page is not available"
    more = problem.type[1:] if problem.type.startswith("/") else None  # its page in the documentation
    texts = {"what": problem.detail, "kept": problem.kept, "hint": problem.hint, "more": more}
    again_s = _RETRY_S if problem.status == 429 or problem.status >= 500 else None
    return render(request, Page("error.html", title), {**texts, "again_s": again_s}, status=problem.status)
