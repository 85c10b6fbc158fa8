"""The Kafka that a command uses: the configured one, else the embedded one of this machine."""

from __future__ import annotations

from clonos.embedded.broker import EmbeddedKafka
from clonos.errors import BrokerUnavailable
from clonos.kafka import await_brokers, unreachable_broker
from clonos.settings import KafkaSettings, Settings


def reachable_kafka(settings: Settings) -> KafkaSettings:
    """Return the configured Kafka, else the running embedded Kafka of `settings.home`; else `BrokerUnavailable`."""
    kafka = settings.kafka
    if not kafka.bootstrap_servers:
        embedded = EmbeddedKafka(settings.home / "kafka")
        if not embedded.status().running:
            raise BrokerUnavailable(
                "No Kafka is configured, and the embedded Kafka is not running.",
                kept="nothing was started.",
                hint="start it with `clonos kafka start`, or set CLONOS_KAFKA__BOOTSTRAP_SERVERS.",
            )
        kafka = kafka.model_copy(update={"bootstrap_servers": embedded.bootstrap_servers})
    unreachable = unreachable_broker(await_brokers(kafka, timeout_s=10.0), one_suffices=True)
    if unreachable is not None:
        raise unreachable
    return kafka
