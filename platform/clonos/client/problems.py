"""Errors of the API as the typed errors that they were before they travelled."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from pydantic import ValidationError

from clonos.errors import ApiError, ClonosError
from clonos.resources.base import Problem
from clonos.resources.jobs import Failure


def _all(cls: type[ClonosError]) -> Iterator[type[ClonosError]]:
    yield cls
    for one in cls.__subclasses__():
        yield from _all(one)


def typed(slug: str, what: str, *, kept: str = "", hint: str = "") -> ClonosError:
    """The error with this slug; an `ApiError` that names it if this version knows none."""
    found = {one.slug: one for one in _all(ClonosError) if one.__module__ == ClonosError.__module__}.get(slug)
    if found is None or found is ClonosError:
        named = f"{slug}: {what}" if slug not in ("", ClonosError.slug) else what
        return ApiError(named, kept=kept, hint=hint)
    return found(what, kept=kept, hint=hint)


def of_response(response: httpx.Response) -> ClonosError:
    """The error that a response tells; its body must have been read."""
    asked = f"{response.request.method} {response.request.url.path}"
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return ApiError(f"{asked} was answered with {response.status_code} {response.reason_phrase}.")
    slug = problem.type.rpartition("/")[2] if problem.type != "about:blank" else ""
    what = problem.detail or problem.title or f"{asked} was answered with {problem.status}."
    wrong = "; ".join(": ".join(filter(None, (_where(one), _said(one)))) for one in problem.errors)
    if wrong and wrong not in what:
        what = f"{what.rstrip('.')}: {wrong}."
    return typed(slug, what, kept=problem.kept, hint=problem.hint)


def _where(error: dict[str, str]) -> str:
    return next((error[name] for name in ("field", "pointer", "loc", "where") if error.get(name)), "")


def _said(error: dict[str, str]) -> str:
    return next((error[name] for name in ("what", "detail", "msg", "message") if error.get(name)), "")


def of_failure(failure: Failure) -> ClonosError:
    """The error of a job or an operation that failed."""
    return typed(failure.error, failure.what, kept=failure.kept, hint=failure.hint)
