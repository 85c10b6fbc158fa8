"""The plan of a local platform: its processes and their settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from pydantic import BaseModel, ConfigDict, Field

from clonos.embedded.jars import Jars
from clonos.embedded.layout import HOST, port_is_free
from clonos.embedded.standalone_spark import StandaloneSpark
from clonos.errors import PortInUse
from clonos.local.spark_cluster import spark_cluster
from clonos.local.state import Folder
from clonos.resources.figures import size

FIRST_PORT: Final = 8484
_PORTS: Final = 100
# Settings of the command line that the processes must not inherit: agents have their own tokens.
_NOT_PASSED_ON: Final = frozenset({"CLONOS_API", "CLONOS_TOKEN"})
# Kafka, control plane and agents, with room for the system's cache.
_PLATFORM_BYTES: Final = 1 << 30
# A driver or standby with the default `driver.memory`, its JVM and workers.
_DRIVER_BYTES: Final = 1100 << 20
# Above this, a platform on one machine has another bottleneck: its one broker.
_MOST: Final = 8
_FEWEST: Final = 2


class Plan(BaseModel):
    """Description of the local platform that ``clonos up`` starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path  # ``CLONOS_HOME`` of all processes
    port: int | None = Field(None, ge=1, le=65_535)  # port of the control plane; default: the first free port from 8484
    kafka: bool = True  # whether jobs get a Kafka: the configured one, else the embedded one
    agents: int = Field(2, ge=0, le=20)  # number of agents; each is its own failure domain
    slots: int = Field(2, ge=1, le=1000)  # maximum number of concurrent drivers per agent
    pool_size: int = Field(0, ge=0, le=100)  # number of warm drivers without a job per agent
    spark_workers: int = Field(0, ge=0, le=20)  # number of workers of a Spark cluster; 0: no Spark cluster
    # Commands of the control plane and of an agent, without options.
    control_plane: tuple[str, ...] = (sys.executable, "-m", "clonos_api")
    agent: tuple[str, ...] = (sys.executable, "-m", "clonos", "agent")
    stop_grace_s: float = Field(10.0, gt=0)  # seconds for drivers to finish the running epoch
    timeout_s: float = Field(60.0, gt=0)  # seconds for a process to become ready

    @property
    def folder(self) -> Folder:
        """Directory of the platform's files."""
        return Folder.of(self.home)

    @property
    def hosts(self) -> list[str]:
        """Host names of the agents."""
        return [f"host-{number + 1}" for number in range(self.agents)]

    @property
    def workers(self) -> list[str]:
        """Names of the Spark workers' processes."""
        return [f"spark-worker-{number + 1}" for number in range(self.spark_workers)]

    def spark(self, jars: Jars) -> StandaloneSpark:
        """Return the Spark cluster."""
        return spark_cluster(self.folder.path / "spark", jars)

    @property
    def checkpoints(self) -> Path:
        """Directory that all agents share, so that jobs can move. Checkpoints are where `clonos run` keeps them."""
        return self.home.absolute()

    @property
    def ready_file(self) -> Path:
        """File to which the control plane writes its address."""
        return self.folder.path / "control-plane.json"

    @property
    def token_file(self) -> Path:
        """File to which the control plane writes the token of its first administrator."""
        return self.home.absolute() / "admin.token"

    def environment(self, kafka: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of all processes: those in `base` (default: this process's), and the own ones."""
        base = os.environ if base is None else base
        return {
            **{name: value for name, value in base.items() if name not in _NOT_PASSED_ON},
            "CLONOS_HOME": str(self.home.absolute()),
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka,
            "PYTHONUNBUFFERED": "1",
        }

    def control_plane_environment(self, kafka: str, port: int) -> dict[str, str]:
        """Return the environment variables of the control plane; `kafka` is the bootstrap servers, `port` its port."""
        return {
            **self.environment(kafka),
            "CLONOS_API__HOME": str(self.home.absolute()),
            "CLONOS_API__HOST": HOST,
            "CLONOS_API__PORT": str(port),
            "CLONOS_API__READY_FILE": str(self.ready_file),
            "CLONOS_API__SHARED_CHECKPOINTS": str(self.checkpoints),
        }

    def agent_command(self, name: str, api: str) -> list[str]:
        """Return the command line of the agent `name` for the control plane at the address `api`."""
        options = {
            "--api": api,
            "--name": name,
            "--failure-domain": name,
            "--slots": str(self.slots),
            "--pool-size": str(self.pool_size),
            "--token-file": str(self.folder.tokens / name),
            "--stop-grace-s": str(self.stop_grace_s),
        }
        return [*self.agent, *(part for option in options.items() for part in option), "--stop-drivers"]


def free_port(requested: int | None) -> int:
    """Return the requested port, or the first free port from 8484 on if `requested` is None."""
    if requested is not None:
        if not port_is_free(requested):
            raise PortInUse(f"The port {requested} is in use.", kept="nothing was started.")
        return requested
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS):
        if port_is_free(port):
            return port
    raise PortInUse(f"No port from {FIRST_PORT} to {FIRST_PORT + _PORTS - 1} is free.", hint="choose one with --port.")


class Room(NamedTuple):
    """What fits on this machine."""

    slots: int  # slots of each agent
    pool_size: int  # pool drivers of each agent: one if all slots and these fit into the free memory, otherwise none
    note: str = ""  # A sentence if even the fewest slots may not fit; otherwise empty


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
