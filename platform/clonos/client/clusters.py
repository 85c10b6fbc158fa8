"""Spark clusters that jobs can use."""

from __future__ import annotations

from clonos.client.responses import decode
from clonos.client.transport import Routes
from clonos.errors import NotFound
from clonos.jobs.cluster import ClusterSpec
from clonos.resources.base import Page
from clonos.resources.clusters import Cluster
from clonos.resources.service import Operation


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
