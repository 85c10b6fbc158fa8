"""What is killed: drivers, whole hosts, standbys, or several at once; always with SIGKILL and from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import Final

import psutil

from bench.outages.platform import Platform
from bench.outages.processes import kill, of_home, with_children

# How often each is drawn in a run of mixed kills, of a hundred.
MIXTURE: Final = {"driver": 35, "leader": 10, "standby": 20, "host": 20, "both": 15}


@contextlib.contextmanager
def _nobody_helps(where: Platform, *, host: bool) -> Iterator[None]:
    """A host that is lost does not come back at once, as the agent of ``clonos up`` would."""
    supervisor = psutil.Process(where.stack()["supervisor"]["pid"])
    if host:
        supervisor.suspend()
    try:
        yield
    finally:
        if host:
            supervisor.resume()


@contextlib.contextmanager
def killed(kind: str, where: Platform) -> Iterator[float | None]:
    """Kill it; while the body runs, nobody starts a lost host again.

    Args:
        kind: ``driver``: the driver's process group; ``leader``: only its first process, so that the rest is for the
            agent to end; ``host``: an agent with all drivers of its host, whose folder goes too; ``standby``;
            ``both``: driver and standby at once.
        where: The platform.

    Yields:
        When; None: there was nothing of the kind.
    """
    with _nobody_helps(where, host=kind == "host"):
        yield _strike(kind, where)


def _strike(kind: str, where: Platform) -> float | None:
    if kind == "host":
        return _host(where)
    driver = where.primary() if kind != "standby" else None
    standby = where.standby() if kind in ("standby", "both") else None
    victims = [one for one in (driver, standby) if one is not None]
    if not victims or (kind == "both" and len(victims) < 2):
        return None
    if kind == "leader":
        moment = time.monotonic()
        victims[0].kill()
        return moment
    members = [one for victim in victims for one in with_children(victim)]
    moment = time.monotonic()
    kill([victim.pid for victim in victims], members)
    return moment


def _host(where: Platform) -> float | None:
    found = where.agent()
    if found is None:
        return None
    name, agent = found
    folder = where.home / "agent" / name
    runs = {one.name for one in (folder / "runs").iterdir()} if (folder / "runs").is_dir() else set()
    members = [process for process, run in of_home(where.home) if run in runs]
    groups = set()
    for one in members:
        with contextlib.suppress(ProcessLookupError):
            groups.add(os.getsid(one.pid))
    moment = time.monotonic()
    # The agent first, so that it has no moment to tell of the others.
    kill([agent.pid, *groups], [agent, *members])
    psutil.wait_procs([agent, *members], timeout=5)
    shutil.rmtree(folder)
    return moment
