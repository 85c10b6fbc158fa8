"""How many drivers this machine has room for, as ``clonos up`` assumes before one has run."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import psutil

from clonos.resources.figures import size

# Kafka, control plane and agents, with room for the system's cache.
_PLATFORM_BYTES: Final = 1 << 30
# A driver or standby with the default `driver.memory`, its JVM and workers.
_DRIVER_BYTES: Final = 1100 << 20
# Above this, a platform on one machine has another bottleneck: its one broker.
_MOST: Final = 8
_FEWEST: Final = 2


class Room(NamedTuple):
    """What fits on this machine.

    Attributes:
        slots: Slots of each agent.
        pool_size: Pool drivers of each agent: one if all slots and these fit into the free memory, otherwise none.
        note: A sentence if even the fewest slots may not fit; otherwise empty.
    """

    slots: int
    pool_size: int
    note: str = ""


def room_for(agents: int, requested: int | None = None, *, spark_workers: int = 0) -> Room:
    """Return the slots and pool drivers of each agent on this machine; `requested` are the slots that the user wants.

    An agent has a slot for each core as far as the free memory allows: at least two, at most eight. Fewer than two
    would leave no room for an upgrade beside a driver and its standby. With Spark workers there are no pool drivers:
    executors need the memory, and jobs on a cluster use none.
    """
    available = psutil.virtual_memory().available
    room = max(0, available - _PLATFORM_BYTES) // _DRIVER_BYTES
    fitting = room // max(1, agents)
    slots = requested or min(max(fitting, _FEWEST), max(os.cpu_count() or 1, _FEWEST), _MOST)
    if requested or fitting >= _FEWEST or not agents:
        return Room(slots, int(fitting > slots and not spark_workers))
    drivers = "one driver or standby" if room <= 1 else f"{room} drivers and standbys"
    return Room(slots, 0, f"This machine has {size(available)} of free memory: room for about {drivers}.")
