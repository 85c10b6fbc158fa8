"""What a driver observes beside its queries: open transactions, the log's topic, executors, the progress of tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Final

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.driver.background import Watch
from clonos.errors import BrokerLimit, ClonosError
from clonos.kafka import client_config
from clonos.log.control import lane_id
from clonos.log.topic import check_log_topic, log_topic
from clonos.partition_offsets import OffsetClient
from clonos.settings import KafkaSettings
from clonos.spark.executors import executor_ids, registered_executors, wanted_executors
from clonos.spark.internals import jvm_of
from clonos.telemetry import driver_events as report
from clonos.telemetry.events import Emit

# Pauses between two polls, in seconds.
_TRANSACTIONS_S: Final = 3.0
_LOG_TOPIC_S: Final = 60.0
_EXECUTORS_S: Final = 3.0  # the first poll is no part of a takeover
# Younger transactions usually belong to an epoch in progress.
_OLD_S: Final = 5.0
_LISTED: Final = 20  # an event is a line of a file that the control plane stores in part


class OpenTransactions(Watch):
    """Reports transactions that stay open in the topics that a job reads or writes; once more when none is left.

    Consumers that read committed records wait behind them. In a source topic the job itself waits, although its lag,
    which ends at the transaction, is 0.

    Python clients cannot list a broker's transactions (KIP-664). Instead this compares a partition's last stable
    offset, which is the end for ``read_committed``, with its end. As long as a smaller last stable offset does not
    move, the transaction at that offset is open. Its producer is unknown.

    Args:
        offsets: Reads offsets of the Kafka cluster.
        emit: Receives ``open-transactions`` events: topic → time (seconds since 1970) since which its readers wait.
        old_s: Minimum age of a reported transaction, in seconds.
    """

    def __init__(self, offsets: OffsetClient, emit: Emit, *, old_s: float = _OLD_S) -> None:
        super().__init__("clonos-open-transactions", _TRANSACTIONS_S)
        self._offsets = offsets
        self._emit = emit
        self._old_s = old_s
        self._topics: frozenset[str] = frozenset()
        self._blocked: dict[
            tuple[str, int], tuple[int, float]
        ] = {}  # last stable offset, and the time of its first poll
        self._reported = False

    def watch(self, *, read: Collection[str], written: Collection[str]) -> None:
        """Set the topics to check, instead of the previous ones: those that the job reads, and that it writes."""
        self._topics = frozenset(read) | frozenset(written)

    def poll_once(self) -> None:
        """Poll Kafka once and report open transactions. If Kafka does not answer, nothing is reported."""
        try:
            partitions = [partition for topic in self._topics for partition in self._offsets.partitions(topic)]
            stable = self._offsets.ends(partitions)
            # Read last: a transaction that commits in between looks open now, and has moved at the next poll.
            ends = self._offsets.ends(partitions, IsolationLevel.READ_UNCOMMITTED)
        except ClonosError:
            return
        now = time.monotonic()
        blocked = {}
        for partition, offset in stable.items():
            if offset < ends.get(partition, offset):
                previous = self._blocked.get(partition)
                blocked[partition] = previous if previous is not None and previous[0] == offset else (offset, now)
        self._blocked = blocked
        topics: dict[str, float] = {}
        for (topic, _), (_, since) in blocked.items():
            if now - since >= self._old_s:
                topics[topic] = max(now - since, topics.get(topic, 0.0))
        # Repeated at each poll, because receivers discard earlier reports at a claim.
        if (topics or self._reported) and not self._stopped.is_set():
            self._reported = bool(topics)
            self._emit(report.OpenTransactions({topic: time.time() - age for topic, age in topics.items()}))


class LogTopicWatch(Watch):
    """Reports settings of the causal log's topic with which Kafka could lose records: another tool may change them.

    The job continues: nothing is lost yet. Its next start is refused.

    Args:
        kafka: The Kafka cluster.
        job: The job's name.
        emit: Receives a ``log-topic-unsafe`` event for each change of the finding.
        every_s: Pause between two polls, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, job: str, emit: Emit, *, every_s: float = _LOG_TOPIC_S) -> None:
        super().__init__("clonos-log-topic", every_s)
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._topic = log_topic(job)
        self._emit = emit
        self._reported = ""

    def poll_once(self) -> None:
        """Poll once, and report a change. If Kafka does not answer, nothing is reported."""
        self._admin = self._admin or AdminClient(client_config(self._kafka))
        finding: BrokerLimit | None = None
        with contextlib.suppress(ClonosError):
            try:
                check_log_topic(self._admin, self._topic)
            except BrokerLimit as error:
                finding = error
            if finding is not None and finding.what != self._reported:
                self._emit(report.LogTopicUnsafe.of(finding, kept="the job continues."))
            self._reported = finding.what if finding is not None else ""


class ExecutorWatch(Watch):
    """Reports the executors of a session on a Spark cluster. Pages and commands link to their logs.

    Args:
        spark: The session.
        emit: Receives an ``executors`` event for each change.
        every_s: Pause before the first poll, and between two polls, in seconds.
    """

    def __init__(self, spark: SparkSession, emit: Emit, *, every_s: float = _EXECUTORS_S) -> None:
        super().__init__("clonos-executors", every_s)
        self._spark = spark
        self._emit = emit
        self._reported: frozenset[str] | None = None

    def poll_once(self) -> None:
        """Poll once, and report a change. If the JVM does not answer, nothing is reported."""
        try:
            if executor_ids(self._spark) == self._reported:
                return
            executors = registered_executors(self._spark)
            wanted = wanted_executors(self._spark)
        except Py4JError:  # the JVM ends; the driver reports that
            return
        # Spark's list may be a moment older than its ids: the next poll then compares and reads it again.
        described = frozenset(executor.id for executor in executors)
        if described != self._reported and not self._stopped.is_set():
            self._reported = described
            listed = [report.Executor(**asdict(executor)) for executor in executors[:_LISTED]]
            self._emit(report.Executors(wanted, len(executors), listed))


class TaskProgress:
    """Compares how far the tasks of queries are: whether an epoch in progress makes progress, however long it takes.

    Args:
        spark: The session.
        job: The job's name.
        run_of: Returns the run id of a query (``StreamingQuery.runId``); None: the query does not run.
    """

    def __init__(self, spark: SparkSession, job: str, run_of: Callable[[str], str | None]) -> None:
        self._spark = spark
        self._job = job
        self._run_of = run_of
        self._seen: dict[str, str] = {}

    def moved(self, query: str) -> bool:
        """Whether a task of the query has ended, or rows were read or published, since the previous call.

        Executors report the rows of running tasks every 10 s (``spark.executor.heartbeatInterval``).
        """
        run = self._run_of(query)
        if run is None:
            return False
        try:
            context, lane = self._spark.sparkContext._jsc.sc(), lane_id(self._job, query, 0)
            seen = str(jvm_of(self._spark).clonos.TaskProgress.of(context, run, lane))
        except Py4JError:  # the JVM ends
            return False
        before, self._seen[query] = self._seen.get(query), seen
        return seen != before
