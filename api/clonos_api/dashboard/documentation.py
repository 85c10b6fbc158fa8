"""Serves the documentation site below ``/docs``, if it was built (`make docs`); it needs no session.

The site has a content security policy of its own. Its build moves inline scripts to files (`docs/generate`), so this
policy permits none either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from clonos.errors import BY_SLUG
from clonos_api.dashboard.rendering import Page, render
from clonos_api.replica import ReplicaDep

ROOT: Final = "/docs"
BELOW: Final = "/docs/"
ROUTE: Final = BELOW + "{path:path}"
_ERRORS: Final = "errors/"
# Search runs in a worker, and reads its index with a request.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",  # a browser asks whether its copy is still the newest one
}
router = APIRouter(include_in_schema=False)


@router.get(ROOT)
async def redirect_to_site() -> Response:
    """Redirect to the first page, whose links are relative."""
    return RedirectResponse(BELOW, 308)


@router.get(ROUTE)
async def get_page(path: str, request: Request, replica: ReplicaDep) -> Response:
    """Serve a file of the site; the suffix ``.html`` may be omitted. Without a site, say how to build it."""
    site = replica.settings.docs
    file = _file(site, path)
    if file is not None:
        response = FileResponse(file, headers=_HEADERS, stat_result=file.stat())
        if request.headers.get("if-none-match") == response.headers["etag"]:
            return Response(status_code=304, headers={**_HEADERS, "ETag": response.headers["etag"]})
        return response
    built = (site / "index.html").is_file()
    error = BY_SLUG.get(path.removeprefix(_ERRORS).removesuffix(".html")) if path.startswith(_ERRORS) else None
    status = 404 if error is None else 200  # the page describes the error
    return render(request, Page("documentation.html", "Documentation"), {"built": built, "error": error}, status=status)


def _file(site: Path, path: str) -> Path | None:
    """Return the file of a path below ``/docs/``; None if the site does not have it."""
    root = site.resolve()
    for name in (path or "index.html", f"{path}.html"):
        try:
            file = (root / name).resolve()
            if file.is_relative_to(root) and file.is_file():
                return file
        except (OSError, ValueError):  # a name that no file can have
            return None
    return None
