"""Hosts, standbys and Spark clusters. The requests of an agent are in `clonos.client.agent_api`."""

from __future__ import annotations

from collections.abc import Collection

from clonos.client.responses import decode
from clonos.client.transport import Routes
from clonos.errors import NotFound
from clonos.jobs.cluster import ClusterSpec
from clonos.resources.base import Page
from clonos.resources.clusters import Cluster
from clonos.resources.hosts import Host, Standby
from clonos.resources.service import Operation
from clonos.standby.states import StandbyState


class Hosts(Routes):
    """Calls of ``/hosts``: list, get, drain and remove hosts.

    `name` is the host's name; an unknown name raises `NotFound`.
    """

    def list(self, *, limit: int | None = None) -> Page[Host]:
        """List the hosts by name, at most `limit` (default: all)."""
        return self._transport.pages(Host, "/hosts", limit=limit)

    def get(self, name: str) -> Host:
        """Get a host by its name."""
        return self._transport.get(Host, f"/hosts/{name}")

    def drain(self, name: str) -> Host:
        """Drain a host: it gets no new drivers, and its drivers move to other hosts. Returns the changed host."""
        return decode(Host, self._transport.post(f"/hosts/{name}/drain"))

    def undrain(self, name: str) -> Host:
        """Allow new drivers on a drained host again. Returns the changed host."""
        return decode(Host, self._transport.post(f"/hosts/{name}/undrain"))

    def delete(self, name: str) -> None:
        """Remove a host that is lost for good; `StateConflict` if it has runs that are not lost.

        If its agent returns, the agent kills the remaining drivers and exits.
        """
        self._transport.send("DELETE", f"/hosts/{name}")


class Standbys(Routes):
    """Calls of ``/standbys``: the standbys of all jobs."""

    def list(self, *, states: Collection[StandbyState] | None = None, limit: int | None = None) -> Page[Standby]:
        """List standbys of all jobs, including ended ones, or those in one of `states`."""
        query = {"state": sorted(map(str, states or ())) or None}
        return self._transport.pages(Standby, "/standbys", query, limit=limit)


class Clusters(Routes):
    """Calls of ``/clusters``: add, list, get, change, check and remove Spark clusters.

    `name` is the cluster's name; an unknown name raises `NotFound`. Only an admin's token may change or check clusters.
    """

    def create(self, cluster: ClusterSpec) -> Cluster:
        """Add a cluster; a host that reaches it then checks it.

        Raises:
            NameTaken: There is a cluster with this name.
            SpecError: The description is invalid, or has a secret that is not a reference.
        """
        return decode(Cluster, self._transport.post("/clusters", cluster))

    def list(self, *, limit: int | None = None) -> Page[Cluster]:
        """List the clusters by name, at most `limit` (default: all)."""
        return self._transport.pages(Cluster, "/clusters", limit=limit)

    def get(self, name: str) -> Cluster:
        """Get a cluster: its description, its state, and what its last check saw."""
        return self._transport.get(Cluster, f"/clusters/{name}")

    def replace(self, cluster: ClusterSpec, *, version: int) -> Cluster:
        """Replace the description of a cluster; the next start of each driver uses it.

        Raises:
            VersionStale: `version` is not the newest `Cluster.version`.
        """
        headers = {"If-Match": f'"{version}"'}
        response = self._transport.send(
            "PUT", f"/clusters/{cluster.name}", body=cluster, headers=headers, repeat="unless sent"
        )
        return decode(Cluster, response.content)

    def add_or_replace(self, cluster: ClusterSpec) -> None:
        """Add a cluster, or replace its description if that differs; a host then checks it.

        Raises:
            SpecError: The description is invalid, or has a secret that is not a reference.
            VersionStale: The description was changed at the same time.
        """
        try:
            known = self.get(cluster.name)
        except NotFound:
            self.create(cluster)
        else:
            if known.spec != cluster.spec:
                self.replace(cluster, version=known.version)

    def check(self, name: str) -> Operation:
        """Begin a check of a cluster, or return the one in progress: pass it to `client.operations.wait`."""
        return decode(Operation, self._transport.post(f"/clusters/{name}/check"))

    def delete(self, name: str) -> None:
        """Remove a cluster; `StateConflict` if jobs run on it."""
        self._transport.send("DELETE", f"/clusters/{name}")
