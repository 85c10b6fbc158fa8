"""Shell completion of names: jobs, hosts, clusters and savepoints come from the control plane, contexts from a file.

Typer's own ``clonos --install-completion`` connects these functions to bash, zsh, fish and PowerShell. The shell waits
for them, so they ask once, for at most a second for each step, and offer nothing if that fails.
``CLONOS_COMPLETION_TIMEOUT`` sets another limit, such as ``5s``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from clonos.client import Client
    from clonos.resources.base import Page

_TIMEOUT: Final = "1s"
_MOST: Final = 200


def contexts(incomplete: str) -> list[str]:
    """Names of contexts that begin with `incomplete`."""
    from clonos.client.contexts import LOCAL, Contexts
    from clonos.errors import ClonosError

    try:
        names = [LOCAL, *sorted(Contexts.read().stored)]
    except ClonosError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _named(listed: Callable[[Client, typer.Context, str], Page[Any]]) -> Callable[[typer.Context, str], list[str]]:
    """Return the completion by the names in a list of the control plane; nothing if that does not answer."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        from clonos.client import Client
        from clonos.client.contexts import resolve
        from clonos.errors import ClonosError
        from clonos.settings import Settings
        from clonos.units import parse_duration

        address = {option: ctx.params.get(option) for option in ("api", "token", "context")}
        try:
            timeout_s = parse_duration(os.environ.get("CLONOS_COMPLETION_TIMEOUT") or _TIMEOUT)
            chosen = resolve(Settings(), **address)
            with Client(chosen.api, chosen.token, patience_s=0, timeout_s=timeout_s, ca=chosen.ca) as client:
                names = [row.name for row in listed(client, ctx, incomplete).data]
        except (ClonosError, ValueError):  # ValueError: invalid settings
            return []
        return [name for name in names if name.startswith(incomplete)]

    return offered


jobs = _named(lambda client, _, incomplete: client.jobs.list(name=incomplete or None, limit=_MOST))
hosts = _named(lambda client, *_: client.hosts.list(limit=_MOST))
clusters = _named(lambda client, *_: client.clusters.list(limit=_MOST))
# Of the job of ``--job``, else of all jobs.
savepoints = _named(lambda client, ctx, _: client.savepoints.list(job=ctx.params.get("job"), limit=_MOST))
