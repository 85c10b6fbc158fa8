"""Writes the rows of an epoch to Kafka with a lane for each partition: the task that has the rows publishes the lane.

No row crosses into a Python worker. The Java side is `clonos.PartitionLanes` and `clonos.LaneTask`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from clonos.carried_errors import carrying, uncarry_failure
from clonos.spark.internals import jvm_of, start_callbacks
from clonos.spark.spooling import FORMAT, OPTION
from clonos.spark.user_session import check_classes

_MAX_INT: Final = 2**31 - 1

Reach = Callable[[str, int], None]


class TaskLane(msgspec.Struct, frozen=True, rename="camel"):
    """One lane, for its task.

    Attributes:
        name: For messages.
        publish: Whether its rows are published; else they are only counted, and their digest is computed.
        transactional_id: The transactional id of the lane's producers.
        producer_id: The newest producer of that id, which no later owner of the job can have opened.
        producer_epoch: The epoch of that producer.
        newest_offset: Offset of the newest claim or marker in the lane's log partition; -1 if it is not known.
        log_end: The end of the log partition after the owner's newest claim or marker; -1 if it is not known.
        log_partition: The lane's partition of the causal log.
        marker: The head of the lane's marker (`clonos.log.records.marker_head`).
    """

    name: str
    publish: bool
    transactional_id: str
    producer_id: int
    producer_epoch: int
    newest_offset: int
    log_end: int
    log_partition: int
    marker: bytes


class LanePass(msgspec.Struct, frozen=True, rename="camel"):
    """One pass over the rows of an epoch.

    Attributes:
        job: The job's name, for dead letters.
        epoch: Spark's batch id.
        topic: Topic of rows without one.
        log_topic: The causal log.
        transactional: False: rows are published at least once, without markers.
        kept: Whether a producer may serve more than one transaction (KIP-890).
        request_bytes: The largest batch that fits into a request.
        buffer_bytes: The largest batch that fits into a producer's buffer.
        connection: The options that Kafka's Java clients need to connect.
        producer: Further options of the producers.
        patient: Options that replace those for a lane of more than `patient_bytes`.
        patient_bytes: Bytes.
        topic_ids: The ids of the topics that may have records of the transactions, as far as they are known.
        lanes: By Spark's partition index.
    """

    job: str
    epoch: int
    topic: str | None
    log_topic: str
    transactional: bool
    kept: bool
    request_bytes: int
    buffer_bytes: int
    connection: dict[str, str]
    producer: dict[str, str]
    patient: dict[str, str]
    patient_bytes: int
    topic_ids: dict[str, str]
    lanes: tuple[TaskLane, ...]


class TaskOutcome(msgspec.Struct, frozen=True, rename="camel"):
    """What a task did with its rows.

    Attributes:
        task: Spark's partition index.
        records: Number of its records.
        digest: Multiset digest of the records, 16 bytes.
        dead_letters: Number of poison records among them.
        marker_offset: Offset of the lane's marker; -1 if the task wrote none.
    """

    task: int
    records: int
    digest: bytes
    dead_letters: int
    marker_offset: int


def write_lanes(frame: DataFrame, lane_pass: LanePass, reach: Reach | None) -> list[TaskOutcome]:
    """Run one pass over the rows of an epoch, with one task for each lane.

    Args:
        frame: The rows, with one partition for each lane.
        lane_pass: What to do with them.
        reach: Called with the name of a point of the protocol and the task that reached it, in tests with a local
            master; None: nothing is called.

    Returns:
        The outcomes, by Spark's partition index.

    Raises:
        ClonosError: A task raised it.
        SessionIncompatible: The session does not have the Java classes of Clonos.
    """
    spark = frame.sparkSession
    check_classes(spark)
    jvm = jvm_of(spark)
    points = None
    if reach is not None:
        start_callbacks(spark)
        points = _Points(reach)
    limited = msgspec.structs.replace(
        lane_pass,
        request_bytes=min(lane_pass.request_bytes, _MAX_INT),
        buffer_bytes=min(lane_pass.buffer_bytes, _MAX_INT),
    )
    lanes = jvm.clonos.PartitionLanes(msgspec.json.encode(limited).decode(), points)
    key = secrets.token_hex(8)
    jvm.clonos.LaneSink.register(key, lanes)
    try:
        frame.write.format(FORMAT).mode("append").option(OPTION, key).save()
    except (Py4JJavaError, CapturedException) as failure:
        carried = uncarry_failure(failure)
        if carried is None:
            raise
        raise carried from failure
    finally:
        jvm.clonos.LaneSink.unregister(key)
    outcomes = msgspec.json.decode(lanes.outcomes(), type=list[TaskOutcome])
    return sorted(outcomes, key=lambda outcome: outcome.task)


class _Points:
    """The Java interface that Py4J calls."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def reach(self, point: str, task: int) -> None:
        with carrying():
            self._reach(point, task)

    class Java:
        implements: Final[list[Any]] = ["clonos.LanePoints"]
