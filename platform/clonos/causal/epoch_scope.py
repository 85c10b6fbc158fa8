"""The data about an epoch that its Spark tasks need. The driver sends it to them as a Spark local property."""

from __future__ import annotations

import functools
import os
from typing import Final

import msgspec

from clonos.errors import EnvironmentFault
from clonos.log.records import EpochIdentity
from clonos.settings import KafkaSettings

PROPERTY: Final = "clonos.epoch"
# Spark's local property with the ids of the topics that the epoch's plan reads (`clonos.TopicIds`).
TOPIC_IDS: Final = "clonos.topicIds"
# Python workers get the connection settings from their environment, so that no Spark property holds a password.
KAFKA_ENVIRONMENT: Final = "CLONOS_WORKER_KAFKA"
# The name of the job whose driver built the session.
JOB_ENVIRONMENT: Final = "CLONOS_WORKER_JOB"


class EpochScope(msgspec.Struct, frozen=True):
    """One epoch of one query, with the data that its tasks need for causal services."""

    identity: EpochIdentity
    timestamp_ms: int  # the epoch's time, from its plan
    seed: int  # seed of the derived services, from the plan
    # Replicas that acknowledge a determinant: ``0`` (nothing is recorded), ``1`` (the leader), ``full`` (all in sync).
    depth: str
    # The log partitions for determinants; a task writes to the one at its index modulo their number.
    log_partitions: tuple[int, ...]
    start_offsets: dict[int, int]  # log partition → first offset that may hold determinants of this epoch
    # Log partition → offset of the claim of the epoch's owner, where a replay stops reading determinants.
    claim_offsets: dict[int, int]
    params: dict[str, str]  # the job's parameters
    rehearsal: bool = False  # whether the epoch is a rehearsal, in which no user function may receive rows
    # The machine's monotonic clock at `timestamp_ms`, in nanoseconds; 0: the epoch is not live. Negative: on a cluster,
    # whose machines have clocks of their own, it only distinguishes epochs. A live epoch is never replayed, so nothing
    # is recorded. It lasts minutes, so functions use the time of their Arrow batch.
    live_since_ns: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(EpochScope)


def encode_scope(scope: EpochScope) -> str:
    """Encode the scope as the text of a Spark local property."""
    return _encoder.encode(scope).decode()


@functools.lru_cache(maxsize=16)
def decode_scope(text: str) -> EpochScope:
    """Decode the text of the Spark local property that `encode_scope` wrote."""
    return _decoder.decode(text)


def worker_environment(kafka: KafkaSettings) -> dict[str, str]:
    """Return the environment variables that a Python worker needs to connect to Kafka."""
    plain_text = kafka.model_dump(mode="json") | kafka.secrets()
    return {KAFKA_ENVIRONMENT: msgspec.json.encode(plain_text).decode()}


@functools.cache
def worker_kafka() -> KafkaSettings:
    """Return the Kafka settings of this Python worker, from its environment variables."""
    if KAFKA_ENVIRONMENT not in os.environ:
        raise EnvironmentFault(
            "A Python worker has no Kafka settings: its function was built before the session was prepared for Clonos.",
            kept="nothing was published.",
            hint="read with clonos.source(spark, topic) before UDFs are called on columns.",
        )
    return KafkaSettings.model_validate_json(os.environ[KAFKA_ENVIRONMENT])
