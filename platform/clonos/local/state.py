"""What `clonos up` has started, as written down below ``CLONOS_HOME``: any process can find it and end it again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from clonos.embedded.processes import Recorded

Status = Literal["starting", "ready", "ending", "failed"]
_FILE: Final = "state.json"


@dataclass(frozen=True)
class Folder:
    """The folder of the local stack.

    Attributes:
        path: ``CLONOS_HOME/local``.
    """

    path: Path

    @classmethod
    def of(cls, home: Path) -> Folder:
        """That of this ``CLONOS_HOME``."""
        return cls(home.absolute() / "local")

    def make(self) -> None:
        """Make it, for nobody else to read."""
        for folder in (self.path, self.logs, self.tokens):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def logs(self) -> Path:
        """One file for each part."""
        return self.path / "logs"

    @property
    def tokens(self) -> Path:
        """One file for each agent."""
        return self.path / "tokens"

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.path / "lock"

    def log(self, part: str) -> Path:
        """The log of a part."""
        return self.logs / f"{part}.log"


@dataclass
class State:
    """What runs.

    Attributes:
        supervisor: The process that looks after the others.
        api: Address of the control plane; empty until it answers.
        kafka: Bootstrap servers.
        kafka_started: Whether Kafka is ours to end.
        control_plane: Its process.
        agents: Name of the host → its agent.
        failure: The error that ended it while it started: slug, what, kept, hint.
    """

    status: Status
    supervisor: Recorded
    api: str = ""
    kafka: str = ""
    kafka_started: bool = False
    control_plane: Recorded | None = None
    agents: dict[str, Recorded] = field(default_factory=dict)
    failure: dict[str, str] | None = None

    @property
    def supervised(self) -> bool:
        """Whether the supervisor is there."""
        return self.supervisor.find() is not None

    @property
    def ready(self) -> bool:
        """Whether everything answered, and somebody looks after it."""
        return self.status == "ready" and self.supervised

    def write(self, folder: Folder) -> None:
        """Write it down."""
        draft = folder.path / f".{_FILE}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self), indent=2))
        draft.replace(folder.path / _FILE)

    @staticmethod
    def remove(folder: Folder) -> None:
        """Nothing runs any more."""
        (folder.path / _FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Folder) -> State | None:
        """What was written; None if there is nothing, or something that no supervisor of this version wrote."""
        try:
            raw: dict[str, Any] = json.loads((folder.path / _FILE).read_text())
            raw["supervisor"] = Recorded(**raw["supervisor"])
            raw["control_plane"] = Recorded(**raw["control_plane"]) if raw["control_plane"] else None
            raw["agents"] = {name: Recorded(**one) for name, one in raw["agents"].items()}
            return cls(**raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
