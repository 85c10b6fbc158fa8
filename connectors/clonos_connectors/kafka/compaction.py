"""Compacted source topics: Kafka may remove a record of an epoch before its replay reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from clonos.errors import BrokerUnavailable, SourceNotRepeatable
from clonos.kafka import client_config, unanswered
from clonos.settings import KafkaSettings

_TIMEOUT_S: Final = 15.0
# No epoch is in doubt for longer, unless nobody starts its job again.
_SAFE_LAG_MS: Final = 24 * 60 * 60 * 1000
_HIDDEN: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


def check_compaction(kafka: KafkaSettings, topics: Iterable[str]) -> None:
    """Refuse topics that Kafka compacts within a day. A cluster that does not show its settings is accepted.

    Args:
        kafka: The Kafka cluster.
        topics: Existing topics.

    Raises:
        SourceNotRepeatable: A topic is compacted.
        BrokerUnavailable: Kafka did not answer.
    """
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
    if not resources:
        return
    admin = AdminClient(client_config(kafka))
    for resource, future in admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
        try:
            settings = future.result(2 * _TIMEOUT_S)
        except TimeoutError as failure:
            raise BrokerUnavailable(f"Kafka did not return the settings of {resource.name} in time.") from failure
        except KafkaException as failure:
            if failure.args[0].code() in _HIDDEN:
                continue
            raise unanswered(f"Kafka did not return the settings of {resource.name}", failure.args[0]) from failure
        compacted = "compact" in str(settings["cleanup.policy"].value)
        if compacted and int(settings["min.compaction.lag.ms"].value) < _SAFE_LAG_MS:
            raise SourceNotRepeatable(
                f"The source topic {resource.name} is compacted: a replay would not read the records that Kafka has "
                "removed since.",
                kept="nothing was started.",
                hint="set min.compaction.lag.ms=86400000 on the topic, or accept that: compacted=True of the source.",
            )
