"""Deny by default: a service with a route that does not say who may call it does not start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts

from clonos.resources.service import Role
from clonos_api.auth import requirements
from clonos_api.auth.authentication import EXEMPT

# Any valid token reads the description of the API.
ANY_TOKEN: Final = frozenset({"/api/v1/openapi.json"})


class Undeclared(RuntimeError):
    """Routes of the application do not say who may call them: a mistake in the application itself."""


def check_declared(app: FastAPI, *, any_token: Iterable[str] = ANY_TOKEN, open_paths: Iterable[str] = ()) -> None:
    """Refuse an application with a route that no role guards.

    Args:
        app: With all its routes.
        any_token: Exact paths that every valid token may read.
        open_paths: Paths of routes, as they are declared, that need no token, besides those of health.

    Raises:
        Undeclared: Naming the routes.
    """
    unguarded = EXEMPT | frozenset(any_token) | frozenset(open_paths)
    wrong = sorted(
        f"{' '.join(sorted(route.methods or {'?'}))} {route.path}"
        for route in iter_route_contexts(app.routes)
        if route.path not in unguarded and not _is_guarded(route)
    )
    if wrong:
        raise Undeclared(f"These routes do not say who may call them: {', '.join(wrong)}.")


def _is_guarded(route: RouteContext) -> bool:
    dependant = getattr(route, "dependant", None)
    if not isinstance(dependant, Dependant):
        return False  # a mount or a bare Starlette route, which has no dependencies
    found = list(_all(dependant))
    roles = [set(one.own_oauth_scopes or []) for one in found if one.call is requirements.CHECKED]
    if not roles or not all(roles):
        return False
    if {Role.AGENT.value} in roles and "{" in (route.path or ""):
        named = f"{{{requirements.AGENT_PARAMETER}}}" in (route.path or "")
        return named and any(one.call is requirements.CHECKED_AGENT for one in found)
    return True


def _all(dependant: Dependant) -> Iterator[Dependant]:
    for one in dependant.dependencies:
        yield one
        yield from _all(one)
