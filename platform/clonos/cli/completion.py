"""Shell completion of names: jobs, hosts, clusters and savepoints come from the control plane, contexts from a file.

Typer's own ``clonos --install-completion`` connects these functions to bash, zsh, fish and PowerShell. The shell waits
for them, so they ask once, for at most a second for each step, and offer nothing if that fails.
``CLONOS_COMPLETION_TIMEOUT`` sets another limit, such as ``5s``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from clonos.client import Client

_TIMEOUT: Final = "1s"
_MOST: Final = 200


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that begin with `incomplete`."""

    def names(client: Client) -> list[str]:
        return [job.name for job in client.jobs.list(name=incomplete or None, limit=_MOST).data]

    return _offered(ctx, incomplete, names)


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of hosts that begin with `incomplete`."""
    return _offered(ctx, incomplete, lambda client: [host.name for host in client.hosts.list(limit=_MOST).data])


def clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of Spark clusters that begin with `incomplete`."""
    return _offered(ctx, incomplete, lambda client: [row.name for row in client.clusters.list(limit=_MOST).data])


def savepoints(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of savepoints that begin with `incomplete`: of the job of ``--job``, else of all jobs."""

    def names(client: Client) -> list[str]:
        return [row.name for row in client.savepoints.list(job=ctx.params.get("job"), limit=_MOST).data]

    return _offered(ctx, incomplete, names)


def contexts(incomplete: str) -> list[str]:
    """Names of contexts that begin with `incomplete`."""
    from clonos.client.contexts import LOCAL, Contexts
    from clonos.errors import ClonosError

    try:
        names = [LOCAL, *sorted(Contexts.read().stored)]
    except ClonosError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _offered(ctx: typer.Context, incomplete: str, names: Callable[[Client], list[str]]) -> list[str]:
    """Return the names that begin with `incomplete`; none if the control plane does not answer."""
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
            return [name for name in names(client) if name.startswith(incomplete)]
    except (ClonosError, ValueError):  # ValueError: invalid settings
        return []
