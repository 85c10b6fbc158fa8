"""A transactional Kafka producer that opens quickly and reports each commit as committed, aborted or unknown
(KIP-98).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clonos.deadline import Deadline
from clonos.errors import BrokerLimit, ClonosError, EpochFailed, RecordRejected
from clonos.kafka import REFUSALS, client_config, produce, unanswered, undelivered
from clonos.log.init_patience import InitPatience
from clonos.settings import KafkaSettings

DEFAULT_TIMEOUT_MS: Final = 60_000
# After it, a partition that no broker knows does not exist.
_PARTITION_S: Final = 3.0
_REFRESH_PAUSE_S: Final = 0.1
_MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
# An init may wait for a librdkafka timer. So the first attempts time out early and open another producer, and later
# ones wait longer. (A producer that its own successor here fences does not indicate a takeover.)
PATIENCE: Final = InitPatience()
# A connected producer is initialised within 5 ms, or not before that timer.
_CONNECTED_INIT_TIMEOUT_S: Final = 0.05
_DESTROY_S: Final = 0.2  # a producer is destroyed in 1 ms; in a second or so if a broker is unreachable


# Codes of librdkafka and of brokers for a producer whose transactional id a newer producer has initialised.
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class Unknown(Exception):
    """The outcome of a commit is unknown; only a read of the log can show it."""


class Aborted(EpochFailed):
    """Kafka or this producer aborted the transaction; no ``read_committed`` reader sees its records."""

    slug = "transaction-aborted"


class TransactionalProducer:
    """A producer for one transactional id that has fenced every earlier one (`init_transactions` done).

    It writes control and the claims of lanes; lanes are published with Kafka's Java client. librdkafka does not
    implement the epoch per transaction of KIP-890, so a delayed EndTxn of an older transaction could end a newer one:
    a driver that continues after a failure opens a new producer.

    Args:
        kafka: The Kafka cluster.
        transactional_id: The same id for all drivers that write to a log partition, because in Kafka the newest init
            fences the others.
        topic: The log topic; its metadata is fetched first.
        connected: Returns a producer with the configuration of `producer_config` for this id, connected and not used
            yet, or None. No caller may hold a reference to it: a producer that is replaced here must be destroyed.

    Raises:
        BrokerLimit: `DEFAULT_TIMEOUT_MS` is above the broker's maximum.
        BrokerUnavailable: No coordinator answered in time.
        KafkaAccessDenied: The user may not write transactions.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        transactional_id: str,
        topic: str,
        *,
        connected: Callable[[], Producer | None] | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self._begun_at = 0.0
        self._topics: set[str] = set()
        self.producer = self._open(producer_config(kafka, transactional_id), topic, connected)

    def _open(
        self,
        config: dict[str, Any],
        topic: str,
        connected: Callable[[], Producer | None] | None,
    ) -> Producer:
        producer = connected() if connected is not None else None
        for timeout_s in (*((_CONNECTED_INIT_TIMEOUT_S,) if producer is not None else ()), *PATIENCE.timeouts_s()):
            begun = time.monotonic()
            try:
                if producer is None:
                    producer = Producer(config)
                    connect(producer, topic, timeout_s)
                producer.init_transactions(timeout_s)
                PATIENCE.answered(time.monotonic() - begun)
                return producer
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                # Its init must not arrive after the next one's, which it would fence.
                doomed, producer = [producer], None
                _destroy(doomed).join(_DESTROY_S)
                if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise BrokerLimit(
                        f"The broker refuses transaction.timeout.ms={DEFAULT_TIMEOUT_MS}: {error.str()}.",
                        kept="nothing was published.",
                        hint="raise the broker's transaction.max.timeout.ms.",
                    ) from failure
                unopened = unanswered(
                    f"No transaction could be opened as {self.transactional_id}",
                    error,
                    right=f"WRITE on the transactional id {self.transactional_id}",
                )
                if error.code() in REFUSALS:
                    break
                if timeout_s > _CONNECTED_INIT_TIMEOUT_S:
                    PATIENCE.timed_out()
        raise unopened

    def begin(self) -> None:
        """Start a transaction.

        Raises:
            EpochFailed: Another producer fenced this one; the causal log shows whether another driver owns the job.
        """
        self._begun_at = time.monotonic()
        try:
            self.producer.begin_transaction()
        except KafkaException as failure:
            raise EpochFailed(f"{self.transactional_id}: {failure.args[0].str()}.") from failure

    def produce(self, topic: str, value: bytes, **options: Any) -> None:
        """Queue one record; waits while librdkafka's queue is full. `options` are as for `Producer.produce`.

        Raises:
            RecordRejected: The record is too large, or its partition does not exist.
            EpochFailed: The producer is fenced.
        """
        self._topics.add(topic)
        deadline = Deadline(_PARTITION_S)
        while True:
            try:
                produce(self.producer, topic, value, **options)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.code() == KafkaError._UNKNOWN_PARTITION and not deadline.passed():
                    self._refresh_metadata(topic)
                    continue
                permanent = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._UNKNOWN_PARTITION)
                kind: type[ClonosError] = RecordRejected if error.code() in permanent else EpochFailed
                raise kind(f"{self.transactional_id}: {topic}: {error.str()}.") from failure

    def _refresh_metadata(self, topic: str) -> None:
        """Request a topic's metadata again: the broker that was asked first may not have known a new partition."""
        with contextlib.suppress(KafkaException):
            self.producer.list_topics(topic, timeout=_PARTITION_S)
        time.sleep(_REFRESH_PAUSE_S)

    def commit(self) -> None:
        """Commit the transaction; returns only if the broker confirmed the commit.

        Raises:
            Aborted: The transaction is aborted.
            RecordRejected: The transaction is aborted because the broker refused the size of a record or batch.
            KafkaAccessDenied: The transaction is aborted because the user may not write to a topic.
            Unknown: The producer was fenced, timed out or failed: read the log to learn the outcome.
        """
        deadline = Deadline(DEFAULT_TIMEOUT_MS / 1000, since=self._begun_at)  # then the broker aborts it
        while True:
            try:
                self.producer.commit_transaction(max(1.0, deadline.left_s()))
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.retriable() and not deadline.passed():
                    continue
                if error.txn_requires_abort():
                    self.abort()
                    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                        raise RecordRejected(
                            f"{self.transactional_id}: {error.str()}.", hint="raise the log topic's max.message.bytes."
                        ) from failure
                    if error.code() in REFUSALS:
                        right = f"WRITE on {' and '.join(f'the topic {topic}' for topic in sorted(self._topics))}"
                        problem = f"{self.transactional_id} published nothing"
                        raise unanswered(problem, error, right=right) from failure
                    raise Aborted(f"{self.transactional_id}: {error.str()}.") from failure
                raise Unknown(error.str()) from failure

    def commit_all(self, topic: str, values: Sequence[bytes], partition: int) -> list[int]:
        """Commit one transaction with `values` as records of one partition.

        Returns:
            The offsets of the records.

        Raises:
            EpochFailed, Aborted, Unknown: As `begin`, `produce` and `commit`. Unknown too if a record has no offset.
        """
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if undelivered(error, message) is None:
                offsets.append(message.offset() or 0)

        self.begin()
        for value in values:
            self.produce(topic, value, partition=partition, on_delivery=delivered)
        self.commit()
        if len(offsets) < len(values):
            raise Unknown(f"{len(values) - len(offsets)} records were acknowledged without an offset")
        return offsets

    def abort(self) -> None:
        """Try to abort the transaction. If that fails, the next init of this transactional id aborts it."""
        try:
            self.producer.abort_transaction(5.0)
        except KafkaException:
            return

    def dispose(self) -> None:
        """Destroy the producer in the background. The next init of this transactional id aborts an open transaction."""
        dispose(self.producer)


def was_fenced(error: BaseException) -> bool:
    """Whether `error` was raised because a newer `TransactionalProducer` has the same transactional id."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KafkaException) and cause.args[0].code() in _FENCED:
            return True
        cause = cause.__cause__
    return False


def producer_config(kafka: KafkaSettings, transactional_id: str) -> dict[str, Any]:
    """Return the configuration of a transactional producer."""
    return client_config(
        kafka,
        transactional_id=transactional_id,
        transaction_timeout_ms=DEFAULT_TIMEOUT_MS,
        message_timeout_ms=DEFAULT_TIMEOUT_MS,
        linger_ms=5,
        message_max_bytes=_MAX_RECORD_BYTES,
    )


def connect(producer: Producer, topic: str, timeout_s: float) -> None:
    """Connect a producer to the brokers of `topic` before its init; this fences no other producer.

    Without this call, the init races librdkafka's change from the bootstrap to the real broker. In 3 of 10 cases it
    then waits 500 ms for librdkafka's coordinator timer. Of two metadata requests, the real broker answers the second;
    after it none of 120 inits was slow.
    """
    for _ in range(2):
        producer.list_topics(topic, timeout=timeout_s)


def dispose_opened(opening: Future[TransactionalProducer]) -> None:
    """Destroy the producer of a completed `opening`, unless that failed; for `Future.add_done_callback`."""
    if opening.exception() is None:
        opening.result().dispose()


def dispose(producer: Producer) -> None:
    """Destroy a producer in the background: librdkafka may take a while to stop its threads."""
    _destroy([producer])


def _destroy(producers: list[Producer | None]) -> threading.Thread:
    """Drop the references of the list in a thread, and return the thread."""
    thread = threading.Thread(target=producers.clear, daemon=True, name="clonos-dispose")
    thread.start()
    return thread
