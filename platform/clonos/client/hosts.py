"""Hosts as people see them; how an agent talks is in `clonos.agent.client`."""

from __future__ import annotations

from collections.abc import Collection

from clonos.client.transport import Transport, decode
from clonos.resources.base import Page
from clonos.resources.hosts import Agent, Standby
from clonos.standby.states import StandbyState


class Hosts:
    """``/hosts``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, limit: int | None = None) -> Page[Agent]:
        """All hosts."""
        return self._transport.pages(Agent, "/hosts", limit=limit)

    def get(self, name: str) -> Agent:
        """One host."""
        return self._transport.get(Agent, f"/hosts/{name}")

    def drain(self, name: str) -> Agent:
        """Give it nothing new, and move what it has."""
        return decode(Agent, self._transport.post(f"/hosts/{name}/drain"))

    def undrain(self, name: str) -> Agent:
        """Use it again."""
        return decode(Agent, self._transport.post(f"/hosts/{name}/undrain"))

    def delete(self, name: str) -> None:
        """Forget it."""
        self._transport.send("DELETE", f"/hosts/{name}")


class Standbys:
    """``/standbys``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, states: Collection[StandbyState] | None = None, limit: int | None = None) -> Page[Standby]:
        """All warm drivers, also those that are over, or those in one of these states."""
        given = {"state": sorted(map(str, states or ())) or None}
        return self._transport.pages(Standby, "/standbys", given, limit=limit)
