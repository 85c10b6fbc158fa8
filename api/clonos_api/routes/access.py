"""Who may call a route, as its parameter; and for whom the store then writes."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends

from clonos.resources.service import Role
from clonos_api.auth import Caller, require
from clonos_api.store.database import Actor

API: Final = "/api/v1"

Viewer = Annotated[Caller, Depends(require(Role.VIEWER))]
Operator = Annotated[Caller, Depends(require(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(require(Role.ADMIN))]
AgentCaller = Annotated[Caller, Depends(require(Role.AGENT))]
CodeReader = Annotated[Caller, Depends(require(Role.OPERATOR, Role.AGENT))]


def by(caller: Caller) -> Actor:
    """Whom the audit log names."""
    return Actor(caller.subject, caller.token)
