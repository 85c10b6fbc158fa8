"""What a page says when it cannot be shown: as people read it, where programs get ``application/problem+json``."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response

from clonos.resources.base import Problem
from clonos_api.auth.cookies import is_visit
from clonos_api.dashboard.rendering import Page, render

_AGAIN_S: Final = 5


def page_of(request: Request, problem: Problem) -> Response | None:
    """A problem as a page; None: not for a person."""
    if not is_visit(request):
        return None
    title = "The control plane cannot answer now" if problem.status >= 500 else "This cannot be shown"
    told = {"what": problem.detail, "kept": problem.kept, "hint": problem.hint}
    again_s = _AGAIN_S if problem.status == 429 or problem.status >= 500 else None
    return render(request, Page("error.html", title), {**told, "again_s": again_s}, status=problem.status)
