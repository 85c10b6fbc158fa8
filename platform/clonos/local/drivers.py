"""Drivers that an agent left behind: it was killed, so that it could not end them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clonos.agent.place import Place
from clonos.agent.pool import end_spare
from clonos.agent.process import end_all


def end_drivers(home: Path, agents: Sequence[str]) -> int:
    """End what is left of the drivers of these agents, with all that they started.

    Returns:
        How many processes that were.
    """
    ended = 0
    for name in agents:
        folder = home.absolute() / "agent" / name
        if not folder.is_dir():
            continue
        place = Place(folder)
        for run in place.runs():
            record = place.run(run).record()
            if record.open:
                ended += end_all(run, record.pid, record.identity)
        if place.spares.is_dir():
            ended += sum(end_spare(place.spares, one.name) for one in list(place.spares.iterdir()))
    return ended
