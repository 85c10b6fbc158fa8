"""Converts every error to a problem (``application/problem+json``, RFC 9457), the body of all error responses.

A body never contains a stack trace, a refused value, or anything that looks like a secret. An unexpected error has only
its request id; the log has the details.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope

from clonos import errors
from clonos.documents import describe_problem, model_in
from clonos.errors import ClonosError
from clonos.resources.base import Problem
from clonos.resources.failures import SpecRefused
from clonos.resources.service import FieldProblem
from clonos.telemetry.redaction import redact_text

MEDIA_TYPE: Final = "application/problem+json"
# A problem's type is the address of its page in the documentation (`docs/generate/error_pages.py`).
_TYPE: Final = "/docs/errors/"
_SHOWN: Final = 100  # limits the response to a body with many wrong fields

# The nearest base class of an error decides.
HTTP_STATUS: Final[Mapping[type[ClonosError], int]] = {
    ClonosError: 500,
    errors.UserError: 422,
    errors.CausalLogMissing: 404,
    errors.EnvironmentFault: 503,
    errors.ConsistencyError: 409,
    errors.Superseded: 409,
    errors.AgentReplaced: 409,
    errors.ControlPlaneError: 409,
    errors.NotFound: 404,
    errors.VersionStale: 412,
    errors.IdempotencyKeyReused: 422,
    errors.RequestRejected: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.OriginNotAllowed: 403,
    errors.VersionMissing: 428,
    errors.RequestTooLarge: 413,
    errors.TooManyRequests: 429,
}
# Problems that no `ClonosError` describes: slug → what happened, what was kept safe, what to do.
FRAMEWORK_PROBLEMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "internal": (
        "An unexpected error occurred.",
        "changes are applied completely or not at all.",
        "search the service's log for the request id, and report it to the operator.",
    ),
    "method-not-allowed": (
        "The path exists, but does not support the request's method.",
        "nothing was changed.",
        "use a method that the header `Allow` of the response names.",
    ),
}
# Default seconds to wait, where the error has none.
_RETRY_AFTER: Final = {429: "1", 503: "1"}


class BodyInvalid(RequestValidationError):
    """A body that is not the document of `model`."""

    def __init__(self, errors: Sequence[Any], model: type[BaseModel]) -> None:
        super().__init__(errors)
        self.model = model


Denied = Callable[[Request, ClonosError], Awaitable[None]]
_log = structlog.get_logger(__name__)


def http_status(error: ClonosError) -> int:
    """Return the HTTP status of the response to an error."""
    return next(HTTP_STATUS[cls] for cls in type(error).__mro__ if cls in HTTP_STATUS)


def problem_of(error: ClonosError, *, instance: str | None = None) -> Problem:
    """Return an error as the body of a problem response; `instance` is the path of the request."""
    return Problem(
        type=_TYPE + error.slug,
        title=error.slug.replace("-", " ").capitalize(),
        status=http_status(error),
        detail=redact_text(error.what),
        instance=instance,
        kept=redact_text(error.kept),
        hint=redact_text(error.hint),
        errors=[problem.model_dump() for problem in error.problems[:_SHOWN]] if isinstance(error, SpecRefused) else [],
    )


def problem_response(
    error: ClonosError, *, instance: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the problem response for an error."""
    return _response(problem_of(error, instance=instance), headers)


def answer(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response with a problem: an HTML page for browsers (`app.state.page_of`, set by the dashboard), else
    JSON.
    """
    page_of: Callable[[Request, Problem], Response | None] | None = getattr(request.app.state, "page_of", None)
    return (page_of and page_of(request, problem)) or _response(problem, headers)


def http_response(error: HTTPException, path: str) -> Response:
    """Return the problem response for an error of the web framework, such as an unknown path."""
    return _response(_of_status(error, path), error.headers)


def unexpected_response(scope: Scope) -> Response:
    """Return the response to a request that failed with an unexpected error."""
    return _response(_unexpected(scope["path"], scope.get("clonos.request_id")))


def install(app: FastAPI) -> None:
    """Respond to every error of a route with a problem (RFC 9457).

    For a request that lacks a permission, or of an agent that another process has replaced,
    `app.state.denied` is called first; it writes the audit log.
    """

    async def on_typed(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClonosError)
        denied: Denied | None = getattr(request.app.state, "denied", None)
        if denied is not None and isinstance(error, (errors.Forbidden, errors.AgentReplaced)):
            await denied(request, error)
        if http_status(error) == 500:
            _log.error("a request failed", error=error.slug, what=error.what)
        return answer(request, problem_of(error, instance=request.url.path))

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        field = getattr(request.scope.get("route"), "body_field", None)
        model = error.model if isinstance(error, BodyInvalid) else model_in(field and field.field_info.annotation)
        problems = [_field_problem(detail, model) for detail in list(error.errors())[:_SHOWN]]
        return answer(request, problem_of(SpecRefused(problems), instance=request.url.path))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            # The framework lists the methods of only one of the path's routes.
            error.headers = {**(error.headers or {}), "Allow": _allowed(app, request.url.path)}
        return answer(request, _of_status(error, request.url.path), error.headers)

    async def on_unexpected(request: Request, error: Exception) -> Response:
        return answer(request, _unexpected(request.url.path, request.scope.get("clonos.request_id")))

    app.add_exception_handler(ClonosError, on_typed)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_unexpected)


def _allowed(app: FastAPI, path: str) -> str:
    """Return the methods that a path has."""
    if not hasattr(app.state, "patterns"):
        routes = iter_route_contexts(app.routes)
        app.state.patterns = [(compile_path(route.path or "")[0], route.methods or ()) for route in routes]
    return ", ".join(
        sorted({method for pattern, methods in app.state.patterns if pattern.match(path) for method in methods})
    )


def _field_problem(error: Mapping[str, Any], model: type[BaseModel] | None) -> FieldProblem:
    # Never `input` or `ctx`: they contain the value, which may be a secret.
    place = error["loc"][1:] if error["loc"][:1] == ("body",) else error["loc"]
    what = describe_problem({**error, "loc": place}, model if place != error["loc"] else None)
    field = ".".join(str(part) for part in place)
    return FieldProblem(field=redact_text(field[:200]), what=redact_text(what[:500]))


def _of_status(error: HTTPException, path: str) -> Problem:
    status = HTTPStatus(error.status_code)
    slug = {404: "not-found", 405: "method-not-allowed", 413: "request-too-large"}.get(status, "")
    return Problem(
        type=_TYPE + slug if slug else "about:blank",
        title=status.phrase,
        status=error.status_code,
        detail=redact_text(str(error.detail)),
        instance=path,
    )


def _unexpected(path: str, request_id: str | None) -> Problem:
    what, kept, hint = FRAMEWORK_PROBLEMS["internal"]
    return Problem.model_validate(
        {
            "type": _TYPE + "internal",
            "title": "Internal error",
            "status": 500,
            "detail": what,
            "instance": path,
            "kept": kept,
            "hint": hint,
            "request_id": request_id,
        }
    )


def _response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    sent = {
        **({"Retry-After": _RETRY_AFTER[problem.status]} if problem.status in _RETRY_AFTER else {}),
        **(headers or {}),
    }
    if problem.status == 401:
        sent.setdefault("WWW-Authenticate", "Bearer")
    return Response(
        problem.model_dump_json(exclude_none=True), status_code=problem.status, media_type=MEDIA_TYPE, headers=sent
    )
