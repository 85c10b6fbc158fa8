"""Stops drivers that a killed agent left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clonos.agent.directories import AgentDirectory
from clonos.agent.process import kill_all
from clonos.agent.warm_pool import kill_pool_driver


def stop_drivers(home: Path, agents: Sequence[str]) -> int:
    """Stop the remaining drivers (pool drivers too) of the agents with these names, and all their child processes.

    Returns:
        The number of stopped processes.
    """
    stopped = 0
    for name in agents:
        folder = home.absolute() / "agent" / name
        if not folder.is_dir():
            continue
        place = AgentDirectory(folder)
        for run in place.runs():
            record = place.run(run).record()
            if record.open:
                stopped += kill_all(run, record.pid, record.identity)
        if place.pool_drivers.is_dir():
            names = [path.name for path in place.pool_drivers.iterdir()]
            stopped += sum(kill_pool_driver(place.pool_drivers, name) for name in names)
    return stopped
