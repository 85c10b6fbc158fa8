"""Begins the checks of Spark clusters: selects the host, and creates its host task."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.errors import NoHost
from clonos.resources.failures import new_failure
from clonos.resources.hosts import HostState
from clonos.resources.jobs import Failure
from clonos_api.store import clusters, owners, tasks
from clonos_api.store.tables import ClusterRow, HostRow, OperationRow


def host_for(cluster: ClusterRow, hosts: Iterable[HostRow]) -> str | None:
    """Return the id of a host that reaches the cluster, and can execute its check; None: there is none."""
    listed = clusters.description(cluster).spec.hosts
    reaching = [host for host in hosts if host.state == HostState.READY and (not listed or host.name in listed)]
    return min(reaching, key=lambda host: host.name).id if reaching else None


async def begin(session: AsyncSession, cluster: ClusterRow, host: str, operation: OperationRow) -> None:
    """Create the host task of a check on `host` (id)."""
    cluster = await clusters.begin_check(session, cluster)
    arguments = {
        "cluster": cluster.id,
        "version": cluster.version,
        "spec": clusters.description(cluster),
        "timeout_s": clusters.CHECK_S,
    }
    number = await owners.number(session, cluster.created_by)
    await tasks.create(session, host, clusters.CHECK, arguments, operation=operation.id, owner_number=number)


def no_host(cluster: ClusterRow) -> Failure:
    """Return the reason why no check of a cluster can begin."""
    listed = clusters.description(cluster).spec.hosts
    which = f"None of its hosts ({', '.join(sorted(listed))})" if listed else "No host"
    return new_failure(
        NoHost,
        f"{which} is READY, so cluster {cluster.name} cannot be checked.",
        kept="jobs may use the cluster; they wait for a host that reaches it.",
        hint="start an agent, and request a check: clonos cluster check.",
    )
