"""How many drivers this machine has room for, as ``clonos up`` assumes before one has run."""

from __future__ import annotations

import os
from typing import Final

import psutil

from clonos.resources.figures import size

# Kafka, control plane and agents, with room for the system's cache.
_PLATFORM_BYTES: Final = 1 << 30
# A driver or standby with the default `driver.memory`, its JVM and workers.
_DRIVER_BYTES: Final = 1100 << 20
# Above this, a platform on one machine has another bottleneck: its one broker.
_MOST: Final = 8
_USUAL: Final = 2


def fitting_slots(agents: int) -> tuple[int, str]:
    """The number of slots of each agent, and why it is smaller than usual.

    The free memory limits it to what fits, and the number of cores to a slot for each (at least two, at most eight).
    There is always one.

    Args:
        agents: Number of agents on this machine.

    Returns:
        The slots of each agent, and a sentence; the sentence is empty unless memory is short.

    Example:
        slots, memory_is_short = fitting_slots(2)
    """
    available = psutil.virtual_memory().available
    fitting = max(0, available - _PLATFORM_BYTES) // _DRIVER_BYTES // max(1, agents)
    if fitting < _USUAL:
        why = f"This machine has {size(available)} of free memory, so each host has 1 slot"
        return 1, f"{why}: a driver or standby takes about {size(_DRIVER_BYTES)}."
    return min(fitting, max(_USUAL, os.cpu_count() or 1), _MOST), ""
