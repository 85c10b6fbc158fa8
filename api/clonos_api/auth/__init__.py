"""Who asks, and what they may do: tokens, roles, owners. Nothing is allowed that no route declares."""

from clonos_api.auth.principal import Principal
from clonos_api.auth.requirements import require, require_agent, require_owner

__all__ = ["Principal", "require", "require_agent", "require_owner"]
