"""Hosts and standbys. The requests of an agent are in `clonos.client.agent_api`."""

from __future__ import annotations

from collections.abc import Collection

from clonos.client.responses import decode
from clonos.client.transport import Routes
from clonos.resources.base import Page
from clonos.resources.hosts import Host, Standby
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
