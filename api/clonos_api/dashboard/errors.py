"""What a page says when it cannot be shown: as people read it, where programs get ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from clonos.errors import ClonosError, Forbidden
from clonos_api.auth.cookies import is_visit
from clonos_api.dashboard.rendering import Page, render
from clonos_api.problems import problem_of

_AGAIN_S: Final = 5


class PageRoute(APIRoute):
    """A route of a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route, and a page for what goes wrong on the way."""
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except ClonosError as error:
                if not is_visit(request):
                    raise
                if isinstance(error, Forbidden):
                    await request.app.state.denied(request, error)
                problem = problem_of(error)
                status, told = problem.status, {"what": problem.detail, "kept": problem.kept, "hint": problem.hint}
            except RequestValidationError:
                if not is_visit(request):
                    raise
                status, told = 422, {"what": "The address is not one of this dashboard's.", "kept": "", "hint": ""}
            except HTTPException as error:
                if not is_visit(request):
                    raise
                status, told = error.status_code, {"what": str(error.detail), "kept": "", "hint": ""}
            title = "The control plane cannot answer now" if status >= 500 else "This cannot be shown"
            again_s = _AGAIN_S if status in (429, 503) else None
            return render(request, Page("error.html", title), {**told, "again_s": again_s}, status=status)

        return shown
