"""The operations that tests use on a Kafka cluster, on any backend."""

from __future__ import annotations

from typing import Protocol

from clonos.settings import KafkaSettings

HEAP_MB = 384  # of each broker: three of them and a Spark session share a small machine


class KafkaCluster(Protocol):
    """A cluster whose brokers can be killed and restarted; broker numbers start at 0."""

    @property
    def description(self) -> str:
        """The backend, for the report."""

    @property
    def kafka(self) -> KafkaSettings:
        """Client settings. The addresses stay the same when a broker restarts."""

    def start(self) -> None:
        """Start all brokers; return when all of them respond."""

    def stop(self) -> None:
        """Stop all brokers and remove their data."""

    def kill(self, node: int) -> None:
        """Send SIGKILL to a broker; return when its process has exited. Its data stays."""

    def restart(self, node: int) -> None:
        """Start a killed broker; return when it has rejoined the cluster."""

    def pause(self, node: int) -> None:
        """Freeze a broker: it keeps its connections and does not respond."""

    def unpause(self, node: int) -> None:
        """Resume a frozen broker."""
