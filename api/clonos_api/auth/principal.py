"""The principal of a request: a token with its subject and role."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from clonos.errors import Forbidden
from clonos.resources.service import Role
from clonos_api.store.db.database import Actor

# Each role includes the lower ones. The role agent is separate.
_RANK: Final = {Role.VIEWER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}


@dataclass(frozen=True, slots=True)
class Principal:
    """The user or agent that sent a request, as its token identifies it."""

    token: str  # id of the token, which is not secret
    subject: str  # the user or agent; jobs belong to subjects
    role: Role
    host: str | None = None  # the only host name that an agent's token may use; None for users
    expires_at: datetime | None = None  # when the token expires; None for never

    @property
    def actor(self) -> Actor:
        """The principal as the requester that the store writes to the audit log."""
        return Actor(self.subject, self.token)

    def may(self, role: Role) -> bool:
        """Whether the principal's role is `role` or a higher one; the role agent includes no other role."""
        if Role.AGENT in (role, self.role):
            return role is self.role
        return _RANK[self.role] >= _RANK[role]

    def must(self, role: Role) -> None:
        """Raise `Forbidden` unless the principal's role includes `role`."""
        if not self.may(role):
            raise Forbidden(f"This needs the role {role}; the token has {self.role}.")

    def must_own(self, owner: str) -> None:
        """Raise `Forbidden` unless the principal is an admin, or an operator with the subject `owner`."""
        self.must(Role.OPERATOR)
        if self.role is not Role.ADMIN and self.subject != owner:
            raise Forbidden("This belongs to another subject, and the token is not an admin's.")

    def must_be_agent(self, name: str) -> None:
        """Raise `Forbidden` unless the principal is the agent of the host `name`."""
        self.must(Role.AGENT)
        if self.host is None or self.host != name:
            raise Forbidden("The token belongs to another agent.")
