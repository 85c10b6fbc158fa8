"""``cluster.json``, which lists the brokers of an embedded cluster, and the status of the cluster."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clonos.embedded.layout import HOST, Ports
from clonos.embedded.processes import ProcessRecord, State


@dataclass(frozen=True)
class BrokerStatus:
    """The status of one broker of an embedded cluster."""

    node: int  # id of the broker, counted from 0
    state: State
    address: str  # address for clients, ``host:port``
    pid: int | None  # process id of a running broker
    log: Path  # output of the broker


@dataclass(frozen=True)
class ClusterStatus:
    """The status of all brokers of an embedded cluster."""

    directory: Path
    bootstrap_servers: str
    brokers: tuple[BrokerStatus, ...]

    @property
    def running(self) -> bool:
        """Whether any broker of the cluster runs."""
        return any(broker.state != "stopped" for broker in self.brokers)


@dataclass
class Cluster:
    """The ports and processes of an embedded cluster: the content of ``cluster.json``."""

    cluster_id: str
    ports: list[Ports]
    processes: list[ProcessRecord | None]  # newest process of each broker; None: not started yet


def addresses(ports: Sequence[Ports]) -> str:
    """Return the value of ``bootstrap.servers`` for brokers with these `ports`."""
    return ",".join(f"{HOST}:{broker.client}" for broker in ports)


def random_id() -> str:
    """Return a random Kafka cluster id."""
    # Kafka's notation: sixteen bytes in URL-safe base64, without a leading dash.
    text = "-"
    while text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text
