"""FastAPI dependencies that require a role. OpenAPI shows them as roles of the scheme ``token``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from clonos.errors import Forbidden, Unauthenticated
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.store import hosts
from clonos_api.store.db.database import Database

# For OpenAPI only: the middleware `authentication` has already checked the header.
_SCHEME: Final = HTTPBearer(scheme_name="token", description="`clonos_<id>_<secret>`", auto_error=False)
_MAX_NAMES: Final = 10_000
AGENT_PARAMETER: Final = "host"
_OWNER_CHECKS: Final[set[object]] = set()


def principal_of(request: Request) -> Principal:
    """Return the principal of a request; it raises `Unauthenticated` if there is none."""
    principal = request.scope.get("clonos.principal")
    if not isinstance(principal, Principal):
        raise Unauthenticated("The request has no valid token.")
    return principal


# `check_declared` searches for this function and for `checked_agent`.
async def checked(request: Request, needed: SecurityScopes, _: Any = Security(_SCHEME)) -> Principal:
    """Return the principal of a request; `Forbidden` unless its role includes one of the scopes in `needed`."""
    principal = principal_of(request)
    roles = [Role(scope) for scope in needed.scopes]
    if not any(principal.may(role) for role in roles):
        raise Forbidden(f"This needs the role {' or '.join(roles)}; the token has {principal.role}.")
    return principal


def require(role: Role) -> Any:
    """Return a FastAPI dependency that requires a role and returns the `Principal`."""
    return require_agent() if role is Role.AGENT else Security(checked, scopes=[role.value])


def require_any() -> Any:
    """Return a FastAPI dependency that accepts each role, also an agent, and returns the `Principal`."""
    return Security(checked, scopes=[Role.VIEWER.value, Role.AGENT.value])


def require_agent() -> Any:
    """Return a FastAPI dependency that requires the agent of the host in the path, and returns the `Principal`."""
    return Depends(checked_agent)


def require_owner(find: Callable[..., Any], *, or_agent: bool = False) -> Any:
    """Return a FastAPI dependency that requires an admin, or the operator who owns a row, and returns the row.

    Args:
        find: A dependency that reads the row; the row's `created_by` is the owner's subject.
        or_agent: Whether any agent is allowed too.
    """
    roles = [Role.OPERATOR.value, *([Role.AGENT.value] if or_agent else [])]

    # The role is checked first, so that a refused caller does not learn whether the row exists.
    async def owned(principal: Principal = Security(checked, scopes=roles), row: Any = Depends(find)) -> Any:
        if principal.role is not Role.AGENT:
            principal.must_own(row.created_by)
        return row

    _OWNER_CHECKS.add(owned)
    return Depends(owned)


def requires_owner(call: object) -> bool:
    """Whether a function is a dependency that `require_owner` made."""
    return call in _OWNER_CHECKS


async def checked_agent(
    request: Request, principal: Principal = Security(checked, scopes=[Role.AGENT.value])
) -> Principal:
    """Return the principal of a request; `Forbidden` unless it is the agent of the host (id) in the path."""
    # `check_declared` ensures that an agent's path with parameters has this parameter.
    host = request.path_params.get(AGENT_PARAMETER)
    if host is not None:
        principal.must_be_agent(await _name_of(request, host))
    return principal


async def _name_of(request: Request, host_id: str) -> str:
    """Return the name of a host. It never changes and is cached, because each agent sends requests every second."""
    known: OrderedDict[str, str] = request.app.state.host_names
    name = known.get(host_id)
    if name is None:
        database: Database = request.app.state.database
        async with database.reading() as session:
            name = known[host_id] = (await hosts.get(session, host_id)).name
        if len(known) > _MAX_NAMES:
            known.popitem(last=False)
    return name
