"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from clonos.errors import Forbidden
from clonos.resources.service import Role
from clonos_api.store.database import Actor

# Each may do what those before it may. An agent may do nothing of that, and nobody else what an agent may.
_RANK: Final = {Role.VIEWER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}


@dataclass(frozen=True, slots=True)
class Principal:
    """The token that a request came with.

    Attributes:
        token: Its id, which is no secret.
        subject: Whose it is; jobs belong to subjects.
        role: What it may do.
        agent: The only agent name that it may use; None for people.
        expires_at: When the token ends by itself.
    """

    token: str
    subject: str
    role: Role
    agent: str | None = None
    expires_at: datetime | None = None

    @property
    def actor(self) -> Actor:
        """As the store writes it into the audit log."""
        return Actor(self.subject, self.token)

    def may(self, role: Role) -> bool:
        """Whether this token may do what `role` may."""
        if Role.AGENT in (role, self.role):
            return role is self.role
        return _RANK[self.role] >= _RANK[role]

    def must(self, role: Role) -> None:
        """Refuse whoever may not do what `role` may.

        Raises:
            Forbidden: Not this token.
        """
        if not self.may(role):
            raise Forbidden(f"This needs the role {role}; the token has {self.role}.")

    def must_own(self, owner: str) -> None:
        """Refuse whoever is neither `owner` nor an admin.

        Raises:
            Forbidden: Not this token.
        """
        self.must(Role.OPERATOR)
        if self.role is not Role.ADMIN and self.subject != owner:
            raise Forbidden("This belongs to somebody else, and the token is no admin's.")

    def must_be_agent(self, name: str) -> None:
        """Refuse whoever is not the agent of this name.

        Raises:
            Forbidden: Not this token.
        """
        self.must(Role.AGENT)
        if self.agent is None or self.agent != name:
            raise Forbidden("The token is that of another agent.")
