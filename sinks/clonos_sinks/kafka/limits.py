"""The size limits of a Kafka cluster, as the sink reads them when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from clonos.errors import BrokerUnavailable

_TIMEOUT_S: Final = 15.0
_BATCH_BYTES: Final = 1_000_000
# Bytes of a produce request besides the batch, such as the topic's name.
_REQUEST_OVERHEAD: Final = 1024
_UNLIMITED: Final = 2**31 - 1
_BROKER_SETTINGS: Final = ("transaction.max.timeout.ms", "socket.request.max.bytes")


class Limits(msgspec.Struct, frozen=True):
    """Size limits of the cluster in bytes."""

    # ``socket.request.max.bytes`` of the brokers, which close the connection on larger requests.
    request: int = _UNLIMITED
    record: int = _UNLIMITED  # ``max.message.bytes`` of the sink's default topic

    @property
    def batch(self) -> int:
        """The value of ``batch.size`` for a lane's producer, in bytes."""
        return max(1, min(_BATCH_BYTES, self.record, self.largest))

    @property
    def largest(self) -> int:
        """The largest size of a batch that fits into a request, in bytes."""
        return self.request - _REQUEST_OVERHEAD


def broker_settings(admin: AdminClient, broker: int) -> dict[str, int]:
    """Return the settings of a broker that limit a sink; empty if the cluster does not show them, as managed ones.

    Raises:
        KafkaException: The broker did not answer, or refused for another reason.
        BrokerUnavailable: The client did not report the answer in time.
    """
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        entries = _described(admin, resource)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            return {}
        raise
    return {name: int(entry.value) for name in _BROKER_SETTINGS if (entry := entries.get(name)) and entry.value}


def read_limits(admin: AdminClient, broker: Mapping[str, int], topic: str | None) -> Limits:
    """Read the size limits of the cluster and of the sink's default topic; `broker` has the settings of one broker."""
    record = _max_message_bytes(admin, topic) if topic is not None else _UNLIMITED
    return Limits(broker.get("socket.request.max.bytes", _UNLIMITED), record)


def _described(admin: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    try:
        entries: dict[str, Any] = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource].result(
            2 * _TIMEOUT_S
        )
    except TimeoutError as error:
        raise BrokerUnavailable(f"Kafka did not return the settings of {resource.name} in time.") from error
    return entries


def _max_message_bytes(admin: AdminClient, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        return int(_described(admin, resource)["max.message.bytes"].value)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return _UNLIMITED  # a client may write without the right to describe; the broker refuses larger records
        raise
