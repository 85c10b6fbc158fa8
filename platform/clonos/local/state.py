"""The state file of a local platform in ``CLONOS_HOME``. It lets any process find and stop the platform."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from clonos.embedded.processes import ProcessRecord
from clonos.private_folders import create_private

Status = Literal["starting", "ready", "stopping", "failed"]
_FILE: Final = "state.json"


@dataclass(frozen=True)
class Folder:
    """The directory of a local platform: state file, lock, logs and tokens."""

    path: Path  # ``CLONOS_HOME/local``

    @classmethod
    def of(cls, home: Path) -> Folder:
        """Return the directory of the local platform below `home` (``CLONOS_HOME``)."""
        return cls(home.absolute() / "local")

    def create(self) -> None:
        """Create the directories, readable by this user only."""
        for folder in (self.path, self.logs, self.tokens):
            create_private(folder)

    @property
    def logs(self) -> Path:
        """Directory of the logs, one file per process."""
        return self.path / "logs"

    @property
    def tokens(self) -> Path:
        """Directory of the tokens, one file per agent."""
        return self.path / "tokens"

    @property
    def lock(self) -> Path:
        """Lock file, locked by a running supervisor."""
        return self.path / "lock"

    def log(self, part: str) -> Path:
        """Return the log file of a process, such as ``supervisor``."""
        return self.logs / f"{part}.log"


@dataclass
class State:
    """The state of a local platform, as its state file stores it."""

    status: Status
    supervisor: ProcessRecord
    api: str = ""  # address of the control plane; empty until it is ready
    kafka: str = ""  # bootstrap servers
    kafka_started: bool = False  # whether the platform started Kafka, and so stops it
    control_plane: ProcessRecord | None = None
    agents: dict[str, ProcessRecord] = field(default_factory=dict)  # process of each agent, by host name
    spark_master: str = ""  # URL of the Spark cluster's master; empty: there is no Spark cluster
    spark_ui: str = ""  # address of the master's web UI
    spark: dict[str, ProcessRecord] = field(default_factory=dict)  # processes of the Spark cluster, by name
    failure: dict[str, str] | None = None  # error of a failed start: slug, what, kept, hint

    @property
    def supervised(self) -> bool:
        """Whether the platform's supervisor process runs."""
        return self.supervisor.find() is not None

    @property
    def ready(self) -> bool:
        """Whether the platform is ready and supervised."""
        return self.status == "ready" and self.supervised

    def write(self, folder: Folder) -> None:
        """Write the state file, which lets other processes find and stop the platform; it is replaced atomically."""
        draft = folder.path / f".{_FILE}.{os.getpid()}"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        draft.replace(folder.path / _FILE)

    @staticmethod
    def remove(folder: Folder) -> None:
        """Delete the state file."""
        (folder.path / _FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Folder) -> State | None:
        """Read the state file; None if it is missing or has another format."""
        try:
            return msgspec.json.decode((folder.path / _FILE).read_bytes(), type=cls)
        except (OSError, ValueError):
            return None
