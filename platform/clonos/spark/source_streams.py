"""What the driver sets and reads of the sources of a query. In Java they extend `clonos.RepeatableStream`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.errors import SpecError
from clonos.extend.source import Progress
from clonos.spark.internals import has_class, jvm_of, local_property

_STREAM: Final = "clonos.RepeatableStream"
# Longest wait in ms. New partitions are found, and timers of processing time fire, within this time.
_SETTING: Final = "spark.clonos.longPollMs"
_WAIT_MS: Final = 200
_MAX_WAIT_MS: Final = 600_000
_BOUND: Final = "clonos.epochBound"  # a local property
_FINISHED: Final = "clonos.finishedTopics"  # a local property
_LIVE_TASKS: Final = "clonos.liveTasks"  # a local property


class LiveTasks(NamedTuple):
    """The numbers of tasks of an epoch of a live query; no epoch has more tasks than partitions."""

    least: int = 1  # without a backlog
    most: int = 1  # with a backlog


_progress = msgspec.json.Decoder(Progress, strict=False)


@contextlib.contextmanager
def long_polls(spark: SparkSession) -> Iterator[None]:
    """Let the sources that are loaded inside the context wait for input. The user's setting has priority."""
    before = spark.conf.get(_SETTING, None)
    spark.conf.set(_SETTING, before or str(_WAIT_MS))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_SETTING)
        else:
            spark.conf.set(_SETTING, before)


def longest_wait_ms(spark: SparkSession) -> int:
    """Return how long a source without input may wait, in ms; 0: it does not wait.

    Raises:
        SpecError: The user's setting is not a number of milliseconds.
    """
    setting = spark.conf.get(_SETTING, None) or "0"
    digits = setting.isascii() and setting.isdigit() and len(setting) <= len(str(_MAX_WAIT_MS))
    if not digits or int(setting) > _MAX_WAIT_MS:
        raise SpecError(
            f"{_SETTING}={setting!r} is invalid.", hint=f"set milliseconds from 0 to {_MAX_WAIT_MS}, without a unit."
        )
    return int(setting)


def first_bound(spark: SparkSession, records: int) -> AbstractContextManager[None]:
    """Bound the epochs of queries that start inside the context: `records` for each source without a limit."""
    return local_property(spark, _BOUND, str(records))


def deleted_topics(spark: SparkSession, topics: Collection[str]) -> AbstractContextManager[None]:
    """Let queries that start inside the context continue without `topics`, which were read to their end and deleted."""
    return local_property(spark, _FINISHED, ",".join(sorted(topics)) or None)


def live_tasks(spark: SparkSession, tasks: LiveTasks) -> AbstractContextManager[None]:
    """Let the epochs of live queries that start inside the context have these tasks."""
    return local_property(spark, _LIVE_TASKS, f"{tasks.least},{tasks.most}")


def set_live_tasks(spark: SparkSession, run_id: str, tasks: LiveTasks) -> None:
    """Let the later epochs of a running live query have these tasks; `run_id` is ``StreamingQuery.runId``."""
    jvm_of(spark).clonos.RepeatableStream.setLiveTasks(run_id, tasks.least, tasks.most)


def finished_topics(spark: SparkSession, run_id: str) -> frozenset[str]:
    """Return the topics of patterns that the newest planned epoch of a running query reads to the end.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
    """
    topics: str = jvm_of(spark).clonos.RepeatableStream.finishedTopics(run_id)
    return frozenset(filter(None, topics.split(",")))


def take_latencies(spark: SparkSession, run_id: str) -> dict[int, int]:
    """Return the end-to-end latencies of the records that a running query has read since the previous call.

    A latency is the time from a record's timestamp in Kafka until this call, by the clock of the driver's host.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.

    Returns:
        Class of a latency → number of records. The longest latency of class *n* is 2^(n/4) ms. A latency counts as at
        most 1/16 longer than it is. Empty if no record has a timestamp, or if they cannot be read: the epoch is
        published, and must not fail for its figures.
    """
    try:
        text: str = jvm_of(spark).clonos.RepeatableStream.takeLatencies(run_id)
    except Py4JError:
        return {}
    counts = (count.split(":") for count in text.split(",") if count)
    return {int(number): int(records) for number, records in counts}


def first_offsets(spark: SparkSession, run_id: str) -> Progress:
    """Return the offsets at which the newest live epoch of a running query begins: topic → partition → offset."""
    return _progress.decode(jvm_of(spark).clonos.RepeatableStream.liveStarts(run_id))


def connect_live(spark: SparkSession, run_id: str) -> None:
    """Connect what reads a live epoch whose tasks are not started, or keep it connected."""
    jvm_of(spark).clonos.RepeatableStream.connectLive(run_id)


def move_live(spark: SparkSession, run_id: str, starts: Progress, tasks: LiveTasks) -> None:
    """Let a live epoch whose tasks are not started begin at other offsets.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
        starts: The offset of each partition of the epoch.
        tasks: Those of each later epoch.
    """
    # As text: Py4J would ask the JVM for each entry of a map.
    text = msgspec.json.encode(starts).decode()
    jvm_of(spark).clonos.RepeatableStream.moveLive(run_id, text, tasks.least, tasks.most)


def needs_live_tasks(spark: SparkSession, run_id: str) -> bool:
    """Return whether the newest live epoch of a running query would have more tasks if it began now."""
    return bool(jvm_of(spark).clonos.RepeatableStream.needsLiveTasks(run_id))


def set_bound(spark: SparkSession, run_id: str, records: int) -> None:
    """Bound the next epochs of a running query that started inside `first_bound`.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
        records: Maximum number of records that each source reads in an epoch.
    """
    jvm_of(spark).clonos.RepeatableStream.setBound(run_id, records)


def forget_consumers(spark: SparkSession) -> None:
    """Let queries that start later use new consumers: earlier ones may keep records of a topic that was deleted."""
    jvm_of(spark).clonos.RepeatableStream.forgetConsumers()


def stop_waiting(spark: SparkSession, run_id: str) -> None:
    """End the wait of a query's sources, and let none of them wait again.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
    """
    if has_class(spark, _STREAM):
        jvm_of(spark).clonos.RepeatableStream.stopWaiting(run_id)
