"""Brokers as processes of this machine."""

from __future__ import annotations

from pathlib import Path

from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.settings import KafkaSettings, Settings
from support.brokers.interface import HEAP_MB


class EmbeddedCluster:
    """The embedded Kafka, as a test sees it."""

    description = "embedded"

    def __init__(self, directory: Path, *, brokers: int = 1, session_ms: int = 6_000) -> None:
        # A busy machine stops a process for seconds. Without its only broker a cluster has no leaders.
        properties = {"broker.session.timeout.ms": str(session_ms)} if brokers == 1 else None
        self._cluster = EmbeddedKafka(
            directory, brokers=brokers, jars=ensure_jars(Settings()), heap_mb=HEAP_MB, properties=properties
        )

    @property
    def kafka(self) -> KafkaSettings:
        return self._cluster.kafka

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def kill(self, node: int) -> None:
        self._cluster.kill(node)

    def restart(self, node: int) -> None:
        self._cluster.start_broker(node)

    def pause(self, node: int) -> None:
        self._cluster.pause(node)

    def unpause(self, node: int) -> None:
        self._cluster.resume(node)
