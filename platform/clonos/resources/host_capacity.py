"""What a host has, what is in use, and whether another driver or standby fits there."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from clonos.resources.base import Resource
from clonos.resources.figures import size


class HostCapacity(Resource):
    """What a host has, what is in use, and what a driver costs there, as its agent measures it every few seconds.

    Agents on the same machine report the same memory and cores.
    """

    cores: int = Field(ge=1, lt=2**20)
    """Processor cores."""
    busy_cores: float = Field(ge=0, lt=2**20)
    """Cores in use by all processes of the machine, mean over the last seconds."""
    memory_bytes: int = Field(ge=0, lt=2**53)
    """Memory of the machine."""
    available_bytes: int = Field(ge=0, lt=2**53)
    """Memory that new processes can get without swapping, less what young drivers will still take."""
    driver_bytes: int | None = Field(None, ge=0, lt=2**53)
    """Memory of a driver with its JVM and workers; None: no driver has run there yet."""
    standby_bytes: int | None = Field(None, ge=0, lt=2**53)
    """The same for a standby."""

    def cost_bytes(self, *, standby: bool) -> int | None:
        """Return what a driver or a standby takes on the host; None: none has run there yet."""
        return self.standby_bytes if standby else self.driver_bytes

    def less(self, size_bytes: int) -> HostCapacity:
        """Return the capacity once another process has taken `size_bytes`."""
        return self.model_copy(update={"available_bytes": max(0, self.available_bytes - size_bytes)})


def expected_bytes(host: HostCapacity, hosts: Iterable[HostCapacity], *, standby: bool) -> int | None:
    """Estimate what another driver or standby will take on `host`, in bytes; None: nothing has run anywhere.

    If none has run there, the highest cost on any host is expected; for a standby, else that of a driver.
    """
    hosts = list(hosts)
    for kind in (True, False) if standby else (False,):
        own = host.cost_bytes(standby=kind)
        if own is not None:
            return own
        costs = [cost for other in hosts if (cost := other.cost_bytes(standby=kind)) is not None]
        if costs:
            return max(costs)
    return None


def memory_shortage(host: HostCapacity, hosts: Iterable[HostCapacity], *, standby: bool) -> str:
    """Why a host has too little memory for another driver or standby; empty: it fits, or nothing has run anywhere.

    Example:
        "has 410.2 MiB of free memory, and a standby takes 1.0 GiB"
    """
    expected = expected_bytes(host, hosts, standby=standby)
    if expected is None or host.available_bytes >= expected:
        return ""
    what = "a standby" if standby else "a driver"
    return f"has {size(host.available_bytes)} of free memory, and {what} takes {size(expected)}"
