"""What is started, with which settings."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from clonos.errors import PortTaken
from clonos.local.state import Folder

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 8484
_PORTS: Final = 100
# What a person sets for the command line must not reach the services: agents have tokens of their own.
_NOT_PASSED_ON: Final = frozenset({"CLONOS_API", "CLONOS_TOKEN"})


class Plan(BaseModel):
    """One stack.

    Attributes:
        home: ``CLONOS_HOME``.
        port: Of the control plane; default the first free one from 8484 on.
        kafka: Whether jobs get a Kafka: that of the settings, else the embedded one.
        agents: How many hosts; each is a failure domain of its own.
        slots: Drivers that each host may run at once.
        spares: Warm drivers without a job on each host.
        control_plane: The command that starts the control plane.
        agent: The command that starts an agent.
        stop_grace_s: How long drivers may take to finish the epoch in flight.
        timeout_s: How long a part may take to answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path
    port: int | None = Field(None, ge=1, le=65_535)
    kafka: bool = True
    agents: int = Field(2, ge=0, le=20)
    slots: int = Field(2, ge=1, le=1000)
    spares: int = Field(0, ge=0, le=100)
    control_plane: tuple[str, ...] = (sys.executable, "-m", "clonos_api")
    agent: tuple[str, ...] = (sys.executable, "-m", "clonos", "agent")
    stop_grace_s: float = Field(10.0, gt=0)
    timeout_s: float = Field(60.0, gt=0)

    @property
    def folder(self) -> Folder:
        """Where the stack keeps what it writes."""
        return Folder.of(self.home)

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts."""
        return [f"host-{number + 1}" for number in range(self.agents)]

    @property
    def checkpoints(self) -> Path:
        """Where jobs keep checkpoints; all hosts are this machine, so jobs can move between them."""
        return self.home.absolute() / "jobs"

    @property
    def ready_file(self) -> Path:
        """Where the control plane writes its address."""
        return self.folder.path / "control-plane.json"

    @property
    def token_file(self) -> Path:
        """Where the control plane writes the token of its first administrator."""
        return self.home.absolute() / "admin.token"

    def environment(self, kafka: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
        """What all parts have in common."""
        own = os.environ if own is None else own
        return {
            **{name: value for name, value in own.items() if name not in _NOT_PASSED_ON},
            "CLONOS_HOME": str(self.home.absolute()),
            "CLONOS_KAFKA__BOOTSTRAP_SERVERS": kafka,
            "PYTHONUNBUFFERED": "1",
        }

    def control_plane_environment(self, kafka: str, port: int) -> dict[str, str]:
        """What the control plane gets."""
        return {
            **self.environment(kafka),
            "CLONOS_API__HOME": str(self.home.absolute()),
            "CLONOS_API__HOST": HOST,
            "CLONOS_API__PORT": str(port),
            "CLONOS_API__READY_FILE": str(self.ready_file),
            "CLONOS_API__SHARED_CHECKPOINTS": str(self.checkpoints),
        }

    def agent_command(self, name: str, api: str) -> list[str]:
        """The command of one agent."""
        options = {
            "--api": api,
            "--name": name,
            "--failure-domain": name,
            "--slots": str(self.slots),
            "--spares": str(self.spares),
            "--token-file": str(self.folder.tokens / name),
            "--stop-grace-s": str(self.stop_grace_s),
        }
        return [*self.agent, *(part for option in options.items() for part in option), "--stop-drivers"]


def free_port(wanted: int | None) -> int:
    """The port that was asked for, or the first free one.

    Raises:
        PortTaken: It is in use; or none is free.
    """
    if wanted is not None:
        if not _is_free(wanted):
            raise PortTaken(f"The port {wanted} is in use.", kept="nothing was started.")
        return wanted
    for port in range(FIRST_PORT, FIRST_PORT + _PORTS):
        if _is_free(port):
            return port
    raise PortTaken(f"No port from {FIRST_PORT} to {FIRST_PORT + _PORTS - 1} is free.", hint="name one with --port.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
        return True
