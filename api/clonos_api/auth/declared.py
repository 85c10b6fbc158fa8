"""Deny by default: the service does not start if a route declares no role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts

from clonos.resources.service import Role
from clonos_api.auth import requirements
from clonos_api.auth.authentication import EXEMPT

# Readable with any valid token.
ANY_TOKEN: Final = frozenset({"/api/v1/openapi.json"})


class Undeclared(RuntimeError):
    """Routes declare no role: a bug in the application."""


def check_declared(app: FastAPI, *, open_paths: Iterable[str] = ()) -> None:
    """Check that every route of an application declares a role, except routes for any token (`ANY_TOKEN`).

    Args:
        app: The application with all its routes.
        open_paths: Paths, as declared by their routes, that need no token, besides the health routes.

    Raises:
        Undeclared: At least one route declares no role.
    """
    unguarded = EXEMPT | ANY_TOKEN | frozenset(open_paths)
    undeclared = sorted(
        f"{' '.join(sorted(route.methods or {'?'}))} {route.path}"
        for route in iter_route_contexts(app.routes)
        if route.path not in unguarded and not _is_guarded(route)
    )
    if undeclared:
        raise Undeclared(f"These routes declare no role: {', '.join(undeclared)}.")


def declares_owner(route: RouteContext) -> bool:
    """Whether only the owner of an object, or an admin, may use a route."""
    dependant = getattr(route, "dependant", None)
    return isinstance(dependant, Dependant) and any(requirements.requires_owner(each.call) for each in _all(dependant))


def _is_guarded(route: RouteContext) -> bool:
    dependant = getattr(route, "dependant", None)
    if not isinstance(dependant, Dependant):
        return False  # a mount or a bare Starlette route, which has no dependencies
    dependencies = list(_all(dependant))
    roles = [set(each.own_oauth_scopes or []) for each in dependencies if each.call is requirements.checked]
    if not roles or not all(roles):
        return False
    if {Role.AGENT.value} in roles and "{" in (route.path or ""):
        named = f"{{{requirements.AGENT_PARAMETER}}}" in (route.path or "")
        return named and any(each.call is requirements.checked_agent for each in dependencies)
    return True


def _all(dependant: Dependant) -> Iterator[Dependant]:
    for dependency in dependant.dependencies:
        yield dependency
        yield from _all(dependency)
