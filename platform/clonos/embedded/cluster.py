"""What is known of an embedded cluster: the record in its directory, and how it looks from outside."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clonos.embedded.layout import HOST, Ports
from clonos.embedded.processes import Recorded, State


@dataclass(frozen=True)
class BrokerStatus:
    """One broker.

    Attributes:
        node: Its id, counted from 0.
        state: What its process is doing.
        address: Where clients connect.
        pid: Its process id, if it is there.
        log: Its log file.
    """

    node: int
    state: State
    address: str
    pid: int | None
    log: Path


@dataclass(frozen=True)
class ClusterStatus:
    """All brokers of a directory."""

    directory: Path
    bootstrap_servers: str
    brokers: tuple[BrokerStatus, ...]

    @property
    def running(self) -> bool:
        """Whether any broker is there."""
        return any(broker.state != "stopped" for broker in self.brokers)


@dataclass
class Cluster:
    """What ``cluster.json`` holds.

    Attributes:
        cluster_id: Kafka's name for the cluster.
        ports: Of each broker.
        processes: Each broker's process, as of its last start.
    """

    cluster_id: str
    ports: list[Ports]
    processes: list[Recorded | None]

    def dump(self) -> str:
        """As text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def load(cls, text: str) -> Cluster:
        """From text; raises `ValueError`, `KeyError` or `TypeError` where it is not ours."""
        raw: dict[str, Any] = json.loads(text)
        return cls(
            cluster_id=raw["cluster_id"],
            ports=[Ports(**each) for each in raw["ports"]],
            processes=[Recorded(**each) if each else None for each in raw["processes"]],
        )


def addresses(ports: Sequence[Ports]) -> str:
    """Client addresses of the brokers with these `ports`."""
    return ",".join(f"{HOST}:{each.client}" for each in ports)


def random_id() -> str:
    """A new cluster's id."""
    # Kafka's own notation: sixteen bytes, URL-safe; it refuses one that starts with a dash.
    text = "-"
    while text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text
