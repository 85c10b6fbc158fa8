"""Middleware that every request passes before its route, cheapest check first.

1. `envelope`: request id and security headers.
2. `hosts`: rejects foreign ``Host`` (DNS rebinding) and ``Origin`` (cross-site requests); then CORS, if configured.
3. `clonos_api.auth`: authentication, then rate limits.
4. `bodies`: limits of size and time. A body is never read before authentication.

`idempotency` stores the response of a POST with its work. `installing` installs the middleware in this order. This
package must not import routes or the dashboard.
"""

from clonos_api.guards.installing import install

__all__ = ["install"]
