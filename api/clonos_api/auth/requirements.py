"""What a route asks of its callers, as FastAPI dependencies; OpenAPI shows it as roles of the scheme ``token``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes

from clonos.errors import Forbidden, Unauthenticated
from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.store import agents
from clonos_api.store.database import Database

# For OpenAPI only: `authentication` has looked at the header before any route is.
_SCHEME: Final = HTTPBearer(scheme_name="token", description="`clonos_<id>_<secret>`", auto_error=False)
_NAMES_KEPT: Final = 10_000
AGENT_PARAMETER: Final = "agent"


def principal_of(request: Request) -> Principal:
    """Who asks.

    Raises:
        Unauthenticated: Nobody that is known.
    """
    principal = request.scope.get("clonos.principal")
    if not isinstance(principal, Principal):
        raise Unauthenticated("The request has no valid token.")
    return principal


async def _checked(request: Request, needed: SecurityScopes, _: Any = Security(_SCHEME)) -> Principal:
    principal = principal_of(request)
    roles = [Role(scope) for scope in needed.scopes]
    if not any(principal.may(role) for role in roles):
        raise Forbidden(f"This needs the role {' or '.join(roles)}; the token has {principal.role}.")
    return principal


def require(role: Role) -> Any:
    """A dependency: the caller may do what `role` may. Gives the `Principal`."""
    return require_agent() if role is Role.AGENT else Security(_checked, scopes=[role.value])


def require_agent() -> Any:
    """A dependency: the caller is an agent, and the one that the path names. Gives the `Principal`."""
    return Depends(_checked_agent)


def require_owner(find: Callable[..., Any], *, owner: str = "owner", or_agent: bool = False) -> Any:
    """A dependency: the caller is an operator who owns what `find` gives, or an admin. Gives what `find` gave.

    Args:
        find: A dependency that reads the row.
        owner: The attribute of the row that names the subject.
        or_agent: Any agent may, too.
    """
    roles = [Role.OPERATOR.value, *([Role.AGENT.value] if or_agent else [])]

    # The role comes first: whoever may not ask does not learn what there is.
    async def owned(principal: Principal = Security(_checked, scopes=roles), row: Any = Depends(find)) -> Any:
        if principal.role is not Role.AGENT:
            principal.must_own(getattr(row, owner))
        return row

    return Depends(owned)


async def _checked_agent(
    request: Request, principal: Principal = Security(_checked, scopes=[Role.AGENT.value])
) -> Principal:
    # `check_declared` sees to it that an agent's path with parameters has this one.
    agent = request.path_params.get(AGENT_PARAMETER)
    if agent is not None:
        principal.must_be_agent(await _name_of(request, agent))
    return principal


async def _name_of(request: Request, agent_id: str) -> str:
    """The name of an agent, which never changes; kept, for each agent asks each second."""
    known: OrderedDict[str, str] = request.app.state.agent_names
    name = known.get(agent_id)
    if name is None:
        database: Database = request.app.state.database
        async with database.reading() as session:
            name = known[agent_id] = (await agents.get(session, agent_id)).name
        if len(known) > _NAMES_KEPT:
            known.popitem(last=False)
    return name


# What `check_declared` looks for.
CHECKED: Final = _checked
CHECKED_AGENT: Final = _checked_agent
