"""Spark's Kafka source with a long poll: a query without input waits at the broker and sends no other requests.

Spark's own source is asked for its newest offsets a hundred times a second while there is no input. The Java side is
`clonos.LongPollingKafka` (`clonos.spark.java`). It reads what Spark's source reads, in the same order.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from clonos.spark.internals import has_class

FORMAT: Final = "clonos.LongPollingKafka"
SPARK_FORMAT: Final = "kafka"
_OPTION: Final = "longPollMs"
# Longest wait in ms. New partitions are found, and timers of processing time fire, within this time.
_SETTING: Final = "spark.clonos.longPollMs"
_WAIT_MS: Final = 200


def use_long_polls(spark: SparkSession, *, interval_ms: int) -> None:
    """Let sources that are loaded from now on wait at the broker, unless the user's configuration sets the wait.

    Args:
        spark: The session of the job.
        interval_ms: Minimum time between the starts of two epochs. With one, Spark asks rarely enough, and a wait would
            move the start of the next epoch.
    """
    if not spark.sparkContext.getConf().contains(_SETTING):
        spark.conf.set(_SETTING, "0" if interval_ms else str(_WAIT_MS))


def kafka_format(spark: SparkSession) -> tuple[str, dict[str, str]]:
    """The format of a Kafka source, and its additional options: Spark's own if the session does not use long polls."""
    wait_ms = spark.conf.get(_SETTING, "0")
    if wait_ms in (None, "0") or not has_class(spark, FORMAT):
        return SPARK_FORMAT, {}
    return FORMAT, {_OPTION: wait_ms}
