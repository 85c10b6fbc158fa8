"""What a test may do with a Kafka cluster, wherever its brokers run."""

from __future__ import annotations

from typing import Protocol

from clonos.settings import KafkaSettings

HEAP_MB = 384  # of each broker: three of them and a Spark session share a small machine


class KafkaCluster(Protocol):
    """A cluster whose brokers can be lost and brought back; they count from 0."""

    @property
    def description(self) -> str:
        """What runs it, for the report."""

    @property
    def kafka(self) -> KafkaSettings:
        """How clients reach it. The addresses stay the same when a broker comes back."""

    def start(self) -> None:
        """Start all brokers; returns when all of them answer."""

    def stop(self) -> None:
        """Stop what runs and remove what was made."""

    def kill(self, node: int) -> None:
        """End a broker with SIGKILL; returns when it is gone. What it had written stays."""

    def restart(self, node: int) -> None:
        """Start a killed broker; returns when it takes part again."""

    def pause(self, node: int) -> None:
        """Freeze a broker: it keeps its connections and answers nothing."""

    def unpause(self, node: int) -> None:
        """Let a frozen broker go on."""
