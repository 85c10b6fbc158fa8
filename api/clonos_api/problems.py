"""Errors as ``application/problem+json`` (RFC 9457): one mapping for all of them.

A body never holds a stack trace, the value that was refused, or what looks like a secret. What nobody expected is told
by its request id only; the log has the rest.
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
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope

from clonos import errors
from clonos.errors import ClonosError
from clonos.redaction import redact_text
from clonos.resources.base import Problem
from clonos.resources.service import FieldProblem

MEDIA_TYPE: Final = "application/problem+json"
_TYPE: Final = "https://clonos.dev/problems/"
_SHOWN: Final = 100  # wrong fields told of; a body of a million wrong items gets no answer of its size

# The nearest class of an error's tree counts.
HTTP_STATUS: Final[Mapping[type[ClonosError], int]] = {
    ClonosError: 500,
    errors.UserError: 422,
    errors.JobUnknown: 404,
    errors.EnvironmentFault: 503,
    errors.ConsistencyError: 409,
    errors.Superseded: 409,
    errors.AgentReplaced: 409,
    errors.StoreError: 409,
    errors.NotFound: 404,
    errors.VersionStale: 412,
    errors.KeyMisused: 422,
    errors.RequestRefused: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.HostRefused: 403,
    errors.VersionMissing: 428,
    errors.TooLarge: 413,
    errors.TooMany: 429,
}
# So that a client knows how long to wait, where the error itself does not.
_RETRY_AFTER: Final = {429: "1", 503: "1"}

Denied = Callable[[Request, errors.RequestRefused], Awaitable[None]]
_log = structlog.get_logger(__name__)


class SpecRefused(errors.SpecError):
    """Fields of a request are not usable; the answer names each.

    Args:
        problems: What is wrong, at least one.
    """

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0].field} cannot be taken, {problems[0].what}{more}.", hint=problems[0].hint)
        self.problems = tuple(problems)


def http_status(error: ClonosError) -> int:
    """The status that an error is answered with."""
    return next(HTTP_STATUS[cls] for cls in type(error).__mro__ if cls in HTTP_STATUS)


def problem_of(error: ClonosError, *, instance: str | None = None) -> Problem:
    """An error as a body."""
    return Problem(
        type=_TYPE + error.slug,
        title=error.slug.replace("-", " ").capitalize(),
        status=http_status(error),
        detail=redact_text(error.what),
        instance=instance,
        kept=redact_text(error.kept),
        hint=redact_text(error.hint),
        errors=[one.model_dump() for one in error.problems[:_SHOWN]] if isinstance(error, SpecRefused) else [],
    )


def problem_response(
    error: ClonosError, *, instance: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as an answer."""
    return _response(problem_of(error, instance=instance), headers)


def answer(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """A problem as whoever asked reads it: `app.state.page_of` gives a page for people (`clonos_api.dashboard`)."""
    page_of: Callable[[Request, Problem], Response | None] | None = getattr(request.app.state, "page_of", None)
    return (page_of and page_of(request, problem)) or _response(problem, headers)


def http_response(error: HTTPException, path: str) -> Response:
    """An error of the framework as an answer."""
    return _response(_of_status(error, path), error.headers)


def unexpected_response(scope: Scope) -> Response:
    """The answer to a request that failed as nobody expected."""
    return _response(_unexpected(scope["path"], scope.get("clonos.request_id")))


def install(app: FastAPI) -> None:
    """Answer every error of `app` as a problem.

    Refusals for want of rights are told to `app.state.denied` first, if there is one (`clonos_api.guards` sets it).
    """

    async def on_typed(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClonosError)
        denied: Denied | None = getattr(request.app.state, "denied", None)
        if denied is not None and isinstance(error, errors.Forbidden):
            await denied(request, error)
        if http_status(error) == 500:
            _log.error("a request failed", error=error.slug, what=error.what)
        return answer(request, problem_of(error, instance=request.url.path))

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [_field_problem(one) for one in list(error.errors())[:_SHOWN]]
        return answer(request, problem_of(SpecRefused(problems), instance=request.url.path))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            # The framework names the methods of one of the path's routes only.
            error.headers = {**(error.headers or {}), "Allow": _allowed(app, request.url.path)}
        return answer(request, _of_status(error, request.url.path), error.headers)

    async def on_unexpected(request: Request, error: Exception) -> Response:
        return answer(request, _unexpected(request.url.path, request.scope.get("clonos.request_id")))

    app.add_exception_handler(ClonosError, on_typed)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_unexpected)


def _allowed(app: FastAPI, path: str) -> str:
    """The methods that a path has."""
    if not hasattr(app.state, "patterns"):
        routes = iter_route_contexts(app.routes)
        app.state.patterns = [(compile_path(one.path or "")[0], one.methods or ()) for one in routes]
    return ", ".join(sorted({one for pattern, methods in app.state.patterns if pattern.match(path) for one in methods}))


def _field_problem(error: Mapping[str, Any]) -> FieldProblem:
    # Never `input` or `ctx`: they hold the value, which may be a secret.
    where = ".".join(str(part) for part in error["loc"] if part != "body")
    return FieldProblem(field=redact_text(where[:200]), what=redact_text(str(error["msg"])[:500]))


def _of_status(error: HTTPException, path: str) -> Problem:
    status = HTTPStatus(error.status_code)
    slug = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(status, "")
    return Problem(
        type=_TYPE + slug if slug else "about:blank",
        title=status.phrase,
        status=error.status_code,
        detail=redact_text(str(error.detail)),
        instance=path,
    )


def _unexpected(path: str, request_id: str | None) -> Problem:
    return Problem.model_validate(
        {
            "type": _TYPE + "internal",
            "title": "Internal error",
            "status": 500,
            "detail": "Something went wrong that nobody expected.",
            "instance": path,
            "kept": "what was changed was changed whole or not at all.",
            "hint": "look into the service's log for the request id, and tell whoever runs it.",
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
