"""What an agent is told at its start."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from clonos.resources.archives import LIMITS, Limits
from clonos.settings import Settings

TASK_COMMAND: Final = (sys.executable, "-m", "clonos.agent.savepoints")
RUN_COMMAND: Final = (sys.executable, "-m", "clonos", "run", "{spec}", "--events", "{events}", "-o", "json", "--plain")
SPARE_COMMAND: Final = (sys.executable, "-m", "clonos", "spare", "{folder}", "--agent", "{agent}")


class AgentSettings(BaseModel):
    """Settings of one agent.

    Attributes:
        api: Where the control plane is, such as ``https://control:8484``.
        name: Unique among the agents; the same after a restart.
        failure_domain: What fails together (rack, zone); default the host itself.
        slots: Drivers that it may run at once.
        spares: Warm drivers without a job, for those with ``standby: {mode: pool}``; they take no slots.
        token_file: Holds the agent's token; read again for each request, so that it may be replaced.
        ca: PEM file with the authorities to trust; default those of this machine.
        home: As ``CLONOS_HOME``: the agent keeps its files below ``agent/<name>``, its drivers their checkpoints.
        cache: As ``CLONOS_CACHE``.
        command: How a driver is started; the arguments ``{spec}`` and ``{events}`` are replaced.
        task_command: How a task is done: it gets the order on its standard input and prints the result.
        spare_command: How a spare is started; ``{folder}`` is its own, ``{agent}`` the agent's process id.
        driver_environment: What drivers get besides what they need.
        uid: User that drivers run as (the agent must be root then); default the agent's own.
        memory_limit_mb: Of one driver with all of its processes, where the host can (cgroup v2).
        cgroup: A delegated cgroup (v2) to make those of drivers in; default the agent's own.
        log_bytes: A driver's log is rotated at this size; one older file is kept.
        events_bytes: What was forwarded of an event file is given back to the disk in pieces of this size.
        stop_drivers: End the drivers when the agent is ended; otherwise they go on and the next agent adopts them.
        stop_grace_s: How long they may take then.
        silent_s: A driver that gives no sign of life for so long is frozen: it is killed, and another one goes on. It
            gives one each second; 0: never.
        measure_s: How often the sizes of checkpoints are looked at.
        archive: How large code may be.
        metrics: ``host:port`` at which Prometheus finds ``/metrics``; default: nowhere.
        secrets: Folder with a file for each secret that specifications may refer to; default below `home`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    api: str
    name: str = Field(default_factory=socket.gethostname, pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,98}[a-zA-Z0-9])?$")
    failure_domain: str = ""
    slots: int = Field(2, ge=1, le=1000)
    spares: int = Field(0, ge=0, le=100)
    labels: dict[str, str] = Field(default_factory=dict)
    token_file: Path | None = None
    ca: Path | None = None
    home: Path = Field(default_factory=lambda: Settings().home)
    cache: Path = Field(default_factory=lambda: Settings().cache)
    command: tuple[str, ...] = RUN_COMMAND
    task_command: tuple[str, ...] = TASK_COMMAND
    spare_command: tuple[str, ...] = SPARE_COMMAND
    driver_environment: dict[str, str] = Field(default_factory=dict)
    uid: int | None = Field(None, ge=1)
    gid: int | None = Field(None, ge=1)
    memory_limit_mb: int | None = Field(None, ge=64)
    cgroup: Path | None = None
    log_bytes: int = Field(16 << 20, ge=1 << 12)
    events_bytes: int = Field(16 << 20, ge=1 << 12)
    stop_drivers: bool = False
    stop_grace_s: float = Field(10.0, gt=0)
    silent_s: float = Field(10.0, ge=0)
    measure_s: float = Field(60.0, gt=0)
    archive: Limits = LIMITS
    metrics: str | None = Field(None, pattern=r"^.+:[0-9]{1,5}$")
    secrets: Path | None = None

    @property
    def secrets_folder(self) -> Path:
        """Where this host keeps secrets."""
        return self.secrets or self.home.absolute() / "secrets"

    @property
    def directory(self) -> Path:
        """Everything that the agent writes."""
        return self.home.absolute() / "agent" / self.name
