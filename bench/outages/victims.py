"""The processes that a benchmark kills: drivers, whole hosts, standbys, or several at once; always with SIGKILL."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Final

import psutil

from bench.outages.subject import Platform
from clonos.testing.harness import processes_of_home
from clonos.testing.harness.processes import kill_together

# The weights of the kinds in a run of mixed kills, in percent.
MIXTURE: Final = {"driver": 35, "leader": 10, "standby": 20, "host": 20, "both": 15}


@contextlib.contextmanager
def killed(kind: str, deployment: Platform) -> Iterator[float | None]:
    """Kill processes; a lost host is not started again before the body has ended.

    Args:
        kind: ``driver``: the driver with everything it started; ``leader``: only its first process, so that the agent
            has to end the rest; ``host``: an agent with all drivers of its host, and the host's directory;
            ``standby``; ``both``: driver and standby at once; ``executor``: one executor on a Spark cluster.
        deployment: The platform.

    Yields:
        The moment (monotonic clock); None if no such process ran.
    """
    # `clonos up` would start the agent of a lost host again at once.
    supervisor = psutil.Process(deployment.state()["supervisor"]["pid"])
    if kind == "host":
        supervisor.suspend()
    try:
        yield _kill(kind, deployment)
    finally:
        if kind == "host":
            supervisor.resume()


def _kill(kind: str, deployment: Platform) -> float | None:
    if kind == "host":
        return _kill_host(deployment)
    if kind == "executor":
        return deployment.job.kill_executor().at
    driver = deployment.job.driver() if kind != "standby" else None
    standby = deployment.standby() if kind in ("standby", "both") else None
    victims = [group for group in (driver, standby) if group is not None]
    if not victims or (kind == "both" and len(victims) < 2):
        return None
    if kind == "leader":
        moment = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(victims[0].pid).kill()
        return moment
    return kill_together(*victims).at


def _kill_host(deployment: Platform) -> float | None:
    current = deployment.agent()
    if current is None:
        return None
    host, agent = current
    folder = deployment.home / "agent" / host
    runs = {run.name for run in (folder / "runs").iterdir()} if (folder / "runs").is_dir() else set()
    members = [process for process, run in processes_of_home(deployment.home) if run in runs]
    # Drivers that were pool drivers keep another name. While the agent runs, they are its children.
    members += [process for process in agent.members() if process not in members]
    # The agent is killed in the same moment, so that it cannot report its drivers' exits.
    moment = time.monotonic()
    psutil.Process(agent.pid).kill()
    kill_together(agent, also=members)
    shutil.rmtree(folder)
    return moment
