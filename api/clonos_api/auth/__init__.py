"""Authentication and authorisation: tokens, roles and owners. A request is denied unless its route declares a role.

- `authentication`: middleware that resolves the token of each request to a `Principal`, or responds 401.
- `requirements`: dependencies of routes: a role, an agent, or the owner of a resource.
- `declared`: a start-up check that every route declares its role.
- `rates`: token buckets per principal and per address; 429 with ``Retry-After``.
- `turns`: requests of a token in progress at once; a token that uses most of its rate comes after the others.
- `recent_tokens`, `valid_tokens`: tokens of an address with too many failures, without a query for each.
- `known_agents`: a cache of agents' tokens for five seconds, which a revocation clears.
- `bootstrap`: the first admin token. `cookies`: tokens of browsers. `denials`: refused requests in the audit log.

Roles: viewer < operator < admin; the role agent is separate. Operators change only the jobs of their own subject.
This package must not import routes, guards or the dashboard.
"""

from clonos_api.auth.principal import Principal
from clonos_api.auth.requirements import require, require_agent, require_any, require_owner

__all__ = ["Principal", "require", "require_agent", "require_any", "require_owner"]
