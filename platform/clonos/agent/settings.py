"""Settings of the agent."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clonos.resources.archives import LIMITS, Limits
from clonos.settings import Settings

TASK_COMMAND: Final = (sys.executable, "-m", "clonos.agent.task_process")
CLUSTER_CHECK_COMMAND: Final = (sys.executable, "-m", "clonos.driver.cluster_check")
RUN_COMMAND: Final = (
    *(sys.executable, "-m", "clonos", "run", "{spec}", "--events", "{events}"),
    *("-o", "json", "--plain", "--wait-for-kafka"),
)
ENDING_COMMAND: Final = (sys.executable, "-m", "clonos.agent.ending", "{job}", "{platform}")
POOL_DRIVER_COMMAND: Final = (sys.executable, "-m", "clonos", "pool-driver", "{folder}", "--agent", "{agent}")


class AgentSettings(BaseModel):
    """Settings of one agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api: str  # address of the control plane, such as ``https://control:8484``
    # Name of the agent and of its host, unique among the agents; the same after a restart.
    name: str = Field(default_factory=socket.gethostname, pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,98}[a-zA-Z0-9])?$")
    failure_domain: str = ""  # name shared by the hosts that fail together (rack, zone); default the host's own name
    slots: int = Field(2, ge=1, le=1000)  # maximum number of drivers at the same time
    # Number of warm drivers without a job, for recoveries, standbys and jobs with ``standby: {mode: pool}``; they take
    # no slots.
    pool_size: int = Field(0, ge=0, le=100)
    labels: dict[str, str] = Field(default_factory=dict)  # labels of the host, reported at its registration
    # Holds the agent's token. It is read for each request, so that a token can be replaced.
    token_file: Path | None = None
    ca: Path | None = None  # PEM file with the authorities to trust; default: this machine's
    # ``CLONOS_HOME``. The agent's files are below ``agent/<name>``, the checkpoints below ``jobs``.
    home: Path = Field(default_factory=lambda: Settings().home)
    # ``CLONOS_CACHE``, the directory of jars and start-up caches.
    cache: Path = Field(default_factory=lambda: Settings().cache)
    # Command of a driver; the arguments ``{spec}`` and ``{events}`` are replaced by paths.
    command: tuple[str, ...] = RUN_COMMAND
    # Command of a task: it reads the task from standard input and prints the result.
    task_command: tuple[str, ...] = TASK_COMMAND
    # Command of a check of a Spark cluster: it reads the cluster's description from standard input and prints a
    # `ClusterReport`.
    cluster_check_command: tuple[str, ...] = CLUSTER_CHECK_COMMAND
    # Command of a pool driver; ``{folder}`` is replaced by its directory, ``{agent}`` by the agent's process id.
    pool_driver_command: tuple[str, ...] = POOL_DRIVER_COMMAND
    # Command that ends the transactions of a killed driver; ``{job}`` is replaced by the job's name. Empty: they end
    # when they time out.
    ending_command: tuple[str, ...] = ENDING_COMMAND
    driver_environment: dict[str, str] = Field(default_factory=dict)  # additional environment variables of drivers
    # User that drivers run as; the agent must be root then. Default the agent's own user.
    uid: int | None = Field(None, ge=1)
    # Users of drivers, such as ``20000-20999``: each owner of jobs has one. The agent must be root then.
    uids: str | None = Field(None, pattern=r"^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")
    gid: int | None = Field(None, ge=1)  # group of `uid`; default the group with the number of the user
    # Limit of one driver with its child processes, in MiB, on hosts with cgroup v2.
    memory_limit_mb: int | None = Field(None, ge=64)
    # A delegated cgroup (v2) that contains the cgroups of the drivers; default the agent's own.
    cgroup: Path | None = None
    log_bytes: int = Field(16 << 20, ge=1 << 12)  # A driver's log is rotated at this size; one previous file remains
    # The disk space of events that the control plane has is freed in pieces of this size.
    events_bytes: int = Field(16 << 20, ge=1 << 12)
    # Stop the drivers when the agent stops; otherwise they keep running and the next agent adopts them.
    stop_drivers: bool = False
    stop_grace_s: float = Field(10.0, gt=0)  # drivers that do not stop within this time (seconds) are killed
    # A driver without a heartbeat for this time is killed and restarted; 0: never. Drivers send one each second.
    driver_heartbeat_timeout_s: float = Field(10.0, ge=0)
    measure_s: float = Field(60.0, gt=0)  # seconds between two measurements of checkpoint sizes
    archive: Limits = LIMITS  # limits of an artifact's size, packed and unpacked
    # ``host:port`` that serves ``/metrics`` for Prometheus; default none.
    metrics: str | None = Field(None, pattern=r"^.+:[0-9]{1,5}$")
    # Directory with a file for each secret that specifications refer to; default below `home`.
    secrets: Path | None = None

    @model_validator(mode="after")
    def _users_are_clear(self) -> Self:
        uids = self.uid_range
        if uids is not None and self.uid is not None:
            raise ValueError("uid and uids exclude each other")
        if uids is not None and self.gid is not None:
            raise ValueError("gid and uids exclude each other: owners with one group would read each other's code")
        if uids is not None and not uids:
            raise ValueError("uids needs a range FIRST-LAST")
        return self

    @property
    def uid_range(self) -> range | None:
        """The users of `uids`; None if there is no such setting."""
        if self.uids is None:
            return None
        first, last = map(int, self.uids.split("-"))
        return range(first, last + 1)

    @property
    def other_users(self) -> bool:
        """Whether drivers run as other users than the agent."""
        return self.uid is not None or self.uids is not None

    @property
    def secrets_folder(self) -> Path:
        """Directory of this host's secrets."""
        return self.secrets or self.home.absolute() / "secrets"

    @property
    def directory(self) -> Path:
        """Directory of all files that the agent writes."""
        return self.home.absolute() / "agent" / self.name
