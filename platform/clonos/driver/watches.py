"""What a driver observes beside its queries: whether Kafka answers, open transactions, the log's topic, executors, and
the progress of tasks. An outage of Kafka, however long, is not a failure of the job.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from clonos.driver.background import Watch
from clonos.errors import BrokerLimit, BrokerUnavailable, ClonosError
from clonos.kafka import await_brokers, client_config
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
_EXECUTORS_S: Final = 3.0  # the first poll is not part of a takeover
# Younger transactions usually belong to an epoch in progress.
_OLD_S: Final = 5.0
_LISTED: Final = 20  # an event is a line of a file that the control plane stores in part
# Without an answer for this time, Kafka is away. A shorter pause, such as for a new leader, is not reported.
OUTAGE_S: Final = 10.0
_KAFKA_S: Final = 1.0  # pause between two requests
_ANSWER_S: Final = 1.5
_RETRY_S: Final = 1.0
_MISSING_ANSWERS: Final = 3
# Errors of the client: no broker has answered.
_SILENT: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


def wait_for_kafka(kafka: KafkaSettings, *, stopped: Callable[[], bool]) -> bool:
    """Wait until a broker answers, without a limit; returns False once `stopped` returns True.

    Raises:
        KafkaAccessDenied: A broker refused access.
    """
    while not stopped():
        with contextlib.suppress(BrokerUnavailable):
            await_brokers(kafka, timeout_s=_RETRY_S)
            return True
    return False


class KafkaWatch(Watch):
    """Asks Kafka in the background whether it answers. Spark's own client waits for minutes before it reports.

    Args:
        kafka: The Kafka cluster.
        emit: Receives a ``kafka`` event for each change of what Kafka answers.
        log: Topic of the job's causal log, whose replicas are counted.
        every_s: Pause between two requests, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, emit: Emit | None = None, *, log: str, every_s: float = _KAFKA_S) -> None:
        super().__init__("clonos-kafka-watch", every_s, emit)
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._log = log
        self._answered_at = time.monotonic()
        self._silent_since: float | None = None
        self._outage_at = float("-inf")  # end of the newest outage
        self._brokers = 0
        self._under_replicated = 0
        self._claimed = False  # whether the job has claimed the log
        self._log_missing = 0  # consecutive answers without the log's topic, after a claim
        self._reported: tuple[bool, int, int] | None = None

    def note_claim(self) -> None:
        """Take notice of a claim: the log exists, and what Kafka answers is emitted again for the new generation."""
        self._claimed = True
        self._reported = None

    @property
    def is_away(self) -> bool:
        """Whether Kafka has not answered for `OUTAGE_S`."""
        since = self._silent_since
        return since is not None and time.monotonic() - since > OUTAGE_S

    @property
    def is_log_deleted(self) -> bool:
        """Whether several answers in a row lack the topic of the log, which the job has claimed; a broker may lag."""
        return self._log_missing >= _MISSING_ANSWERS

    def was_silent_within(self, seconds: float) -> bool:
        """Whether a request was not answered in these last seconds, so that other requests may have failed too."""
        return self._silent_since is not None or time.monotonic() - self._outage_at < seconds

    def poll_once(self) -> None:
        """Ask once, and report a change."""
        self._admin = self._admin or AdminClient(client_config(self._kafka))
        if self._request(self._admin):
            self._answered_at = time.monotonic()
            if self._silent_since is not None:
                self._outage_at, self._silent_since = self._answered_at, None
        else:
            self._silent_since = self._silent_since or self._answered_at
        self._report()

    def _request(self, admin: AdminClient) -> bool:
        """Request the metadata of the log's topic; returns whether a broker answered.

        Not `describe_cluster`: librdkafka aborts the process if the answer has no broker, as that of a broker whose
        controller has just lost it (an assertion in ``rd_kafka_admin_response_parse``).
        """
        try:
            metadata = admin.list_topics(self._log, timeout=_ANSWER_S)
        except KafkaException as failure:
            return failure.args[0].code() not in _SILENT
        self._brokers = len(metadata.brokers) or self._brokers
        topic = metadata.topics.get(self._log)
        missing = topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
        self._log_missing = self._log_missing + 1 if missing and self._claimed else 0
        if topic is not None and topic.error is None:  # before the first claim there is no log
            self._under_replicated = sum(len(part.isrs) < len(part.replicas) for part in topic.partitions.values())
        return True

    def _report(self) -> None:
        silent = self._silent_since
        state = (silent is not None, self._brokers, self._under_replicated)
        if state == self._reported:
            return
        self._reported = state
        since = None if silent is None else time.time() - (time.monotonic() - silent)
        self._emit(report.Kafka(silent_since=since, brokers=self._brokers, under_replicated=self._under_replicated))


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
        super().__init__("clonos-open-transactions", _TRANSACTIONS_S, emit)
        self._offsets = offsets
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
        if topics or self._reported:
            self._reported = bool(topics)
            self._emit(report.OpenTransactions({topic: time.time() - age for topic, age in topics.items()}))


class LogTopicWatch(Watch):
    """Reports settings of the causal log's topic that let Kafka lose records: another tool may change them.

    The job continues: nothing is lost yet. Its next start is refused.

    Args:
        kafka: The Kafka cluster.
        job: The job's name.
        emit: Receives a ``log-topic-unsafe`` event for each change of the finding.
        every_s: Pause between two polls, in seconds.
    """

    def __init__(self, kafka: KafkaSettings, job: str, emit: Emit, *, every_s: float = _LOG_TOPIC_S) -> None:
        super().__init__("clonos-log-topic", every_s, emit)
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._topic = log_topic(job)
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
        super().__init__("clonos-executors", every_s, emit)
        self._spark = spark
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
        if described != self._reported:
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
