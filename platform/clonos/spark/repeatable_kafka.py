"""Spark's Kafka source with a fixed order of partitions and a long poll.

A replay reads the ranges of an epoch in the same order (`docs/adr/0023-ordered-partitions.md`). A query without input
waits at the broker and sends no other requests: Spark's own source is asked for its newest offsets a hundred times a
second. The Java side is `clonos.RepeatableKafka` (`clonos.spark.java`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.errors import SpecError
from clonos.spark.internals import has_class, jvm_of, local_property

FORMAT: Final = "clonos.RepeatableKafka"
_OPTION: Final = "longPollMs"
# Longest wait in ms. New partitions are found, and timers of processing time fire, within this time.
_SETTING: Final = "spark.clonos.longPollMs"
_WAIT_MS: Final = 200
_MAX_WAIT_MS: Final = 600_000
_BOUND: Final = "clonos.epochBound"  # a local property
_FINISHED: Final = "clonos.finishedTopics"  # a local property
_LIVE_TASKS: Final = "clonos.liveTasks"  # a local property


@contextlib.contextmanager
def long_polls(spark: SparkSession) -> Iterator[None]:
    """Let the sources that are loaded inside the context wait at the broker. The user's setting has priority."""
    before = spark.conf.get(_SETTING, None)
    spark.conf.set(_SETTING, before or str(_WAIT_MS))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_SETTING)
        else:
            spark.conf.set(_SETTING, before)


def long_poll_option(spark: SparkSession) -> dict[str, str]:
    """Return the option of a source of `FORMAT` with its longest wait, in ms; 0: the source does not wait.

    Raises:
        SpecError: The user's setting is not a number of milliseconds.
    """
    setting = spark.conf.get(_SETTING, None) or "0"
    digits = setting.isascii() and setting.isdigit() and len(setting) <= len(str(_MAX_WAIT_MS))
    if not digits or int(setting) > _MAX_WAIT_MS:
        raise SpecError(
            f"{_SETTING}={setting!r} is invalid.", hint=f"set milliseconds from 0 to {_MAX_WAIT_MS}, without a unit."
        )
    return {_OPTION: setting}


def first_bound(spark: SparkSession, records: int) -> AbstractContextManager[None]:
    """Bound the epochs of queries that start inside the context: `records` for each source without a limit."""
    return local_property(spark, _BOUND, str(records))


def deleted_topics(spark: SparkSession, topics: Collection[str]) -> AbstractContextManager[None]:
    """Let queries that start inside the context continue without `topics`, which were read to their end and deleted."""
    return local_property(spark, _FINISHED, ",".join(sorted(topics)) or None)


def most_live_tasks(spark: SparkSession, tasks: int) -> AbstractContextManager[None]:
    """Let each epoch of live queries that start inside the context have at most this many tasks."""
    return local_property(spark, _LIVE_TASKS, str(tasks))


def finished_topics(spark: SparkSession, run_id: str) -> frozenset[str]:
    """Return the topics of patterns that the newest planned epoch of a running query reads to the end.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
    """
    topics: str = jvm_of(spark).clonos.RepeatableKafka.finishedTopics(run_id)
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
        text: str = jvm_of(spark).clonos.RepeatableKafka.takeLatencies(run_id)
    except Py4JError:
        return {}
    counts = (count.split(":") for count in text.split(",") if count)
    return {int(number): int(records) for number, records in counts}


def set_bound(spark: SparkSession, run_id: str, records: int) -> None:
    """Bound the next epochs of a running query that started inside `first_bound`.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
        records: Maximum number of records that each source reads in an epoch.
    """
    jvm_of(spark).clonos.RepeatableKafka.setBound(run_id, records)


def forget_consumers(spark: SparkSession) -> None:
    """Let queries that start later use new consumers: earlier ones may keep records of a topic that was deleted."""
    jvm_of(spark).clonos.RepeatableKafka.forgetConsumers()


def stop_waiting(spark: SparkSession, run_id: str) -> None:
    """End the wait of a query's sources, and let none of them wait again.

    Args:
        spark: The session of the query.
        run_id: ``StreamingQuery.runId``.
    """
    if has_class(spark, FORMAT):
        jvm_of(spark).clonos.RepeatableKafka.stopWaiting(run_id)
