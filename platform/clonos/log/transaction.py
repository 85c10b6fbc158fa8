"""One transactional producer, opened quickly and closed with a known outcome or an honest "unknown"."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clonos.errors import BrokerLimit, ClonosError, CredentialsRefused, EpochFailed, RecordRefused
from clonos.kafka import REFUSALS, client_config, unanswered
from clonos.settings import KafkaSettings

DEFAULT_TIMEOUT_MS: Final = 60_000
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024  # a producer's queue: what it could not even hold
# An init can still wait for a librdkafka timer: give up early and open another, then be patient. (A hedge
# that is fenced says nothing about a takeover.)
_HEDGES_S: Final = (0.4, 1.0, 3.0, 10.0, 20.0)
# One that is connected answers in 5 ms, or not before that timer.
_READY_S: Final = 0.05
_COMMIT_S: Final = 30.0


class Unknown(Exception):
    """A commit may or may not have happened; only the log can tell."""


class Aborted(EpochFailed):
    """The transaction is aborted for certain; nothing of it is visible."""

    slug = "transaction-aborted"


class TransactionalProducer:
    """A producer for one transactional id that has fenced every earlier one (`init_transactions` done).

    A new one is opened for each attempt: Spark's Python workers are not pinned to partitions, so cached
    producers would fence each other, and librdkafka does not speak KIP-890's per-transaction epochs, so a
    delayed EndTxn of an older transaction could hit a newer one.

    Args:
        kafka: The cluster.
        transactional_id: Stable per log partition, without generation (Kafka fences "last init wins").
        topic: The log topic; its metadata is fetched first.
        timeout_ms: ``transaction.timeout.ms``.
        batch_bytes: ``batch.size``, for a caller that knows what topics take and refuses larger records itself.
        connected: A producer made with `producer_config` for this id, of which nothing was asked yet.

    Raises:
        BrokerLimit: `timeout_ms` is above the broker's maximum.
        BrokerUnavailable: No coordinator answered in time.
        CredentialsRefused: We may not write transactions.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        transactional_id: str,
        topic: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        batch_bytes: int | None = None,
        connected: Producer | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        config = producer_config(kafka, transactional_id, timeout_ms=timeout_ms, batch_bytes=batch_bytes)
        self.producer = self._open(config, topic, timeout_ms, connected)

    def _open(self, config: dict[str, Any], topic: str, timeout_ms: int, connected: Producer | None) -> Producer:
        for patience in (*((_READY_S,) if connected is not None else ()), *_HEDGES_S):
            producer = connected or Producer(config)
            try:
                if connected is None:
                    connect(producer, topic, patience)
                producer.init_transactions(patience)
                return producer
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                dispose(producer)
                connected = None
                if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise BrokerLimit(
                        f"The broker refuses transaction.timeout.ms={timeout_ms}: {error.str()}.",
                        kept="nothing was published.",
                        hint="lower the sink's transaction timeout or raise the broker's transaction.max.timeout.ms.",
                    ) from failure
                unopened = unanswered(f"No transaction could be opened as {self.transactional_id}", error)
                if error.code() in REFUSALS:
                    break
        raise unopened

    def begin(self) -> None:
        """Start a transaction.

        Raises:
            EpochFailed: Another producer fenced this one; the log tells whether that was a takeover.
        """
        try:
            self.producer.begin_transaction()
        except KafkaException as failure:
            raise EpochFailed(f"{self.transactional_id}: {failure.args[0].str()}.") from failure

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, **where: Any) -> None:
        """Queue one record; waits while librdkafka's queue is full. `where` is what `Producer.produce` takes.

        Raises:
            RecordRefused: Too large, or no such partition.
            EpochFailed: The producer is fenced.
        """
        while True:
            try:
                self.producer.produce(topic, value, key, **where)
                return
            except BufferError:
                self.producer.poll(0.05)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                never = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._UNKNOWN_PARTITION)
                kind: type[ClonosError] = RecordRefused if error.code() in never else EpochFailed
                raise kind(f"{self.transactional_id}: {topic}: {error.str()}.") from failure

    def commit(self) -> None:
        """Commit; returns only if the broker said so.

        Raises:
            Aborted: Aborted for certain.
            RecordRefused: The same, because the broker found a record or batch too large.
            CredentialsRefused: The same, because we may not write to a topic.
            Unknown: Fenced, timed out or fatal: read the log.
        """
        deadline = time.monotonic() + _COMMIT_S
        while True:
            try:
                self.producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                if error.txn_requires_abort():
                    self.abort()
                    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                        # A replay would meet the same limit; what was known of it is older than the broker's.
                        raise RecordRefused(
                            f"{self.transactional_id}: {error.str()}.",
                            hint="raise the topic's max.message.bytes; if it was just changed, run the job again.",
                        ) from failure
                    if error.code() in REFUSALS:
                        raise CredentialsRefused(f"{self.transactional_id}: {error.str()}.") from failure
                    raise Aborted(f"{self.transactional_id}: {error.str()}.") from failure
                raise Unknown(error.str()) from failure

    def commit_one(self, topic: str, value: bytes, partition: int) -> int:
        """A whole transaction of one record.

        Returns:
            The record's offset.

        Raises:
            EpochFailed, Aborted, Unknown: As `begin`, `produce` and `commit`.
        """
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(message.offset() or 0)

        self.begin()
        self.produce(topic, value, partition=partition, on_delivery=delivered)
        self.commit()
        return offsets[-1]

    def abort(self) -> None:
        """Abort as well as can be; whoever opens the id next does it otherwise."""
        try:
            self.producer.abort_transaction(5.0)
        except KafkaException:
            return

    def dispose(self) -> None:
        """Let the producer go without waiting for it."""
        dispose(self.producer)


def producer_config(
    kafka: KafkaSettings,
    transactional_id: str,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    batch_bytes: int | None = None,
) -> dict[str, Any]:
    """The configuration of a transactional producer; the arguments are those of `TransactionalProducer`."""
    config = client_config(
        kafka,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        message_timeout_ms=timeout_ms,
        partitioner="murmur2_random",  # as Java's clients and Spark's own sink place keys
        linger_ms=5,
        message_max_bytes=8 * 1024 * 1024 if batch_bytes is None else MAX_RECORD_BYTES,
        queue_buffering_max_messages=500_000,
        queue_buffering_max_kbytes=MAX_RECORD_BYTES // 1024,
    )
    if batch_bytes is not None:
        config["batch.size"] = batch_bytes
    return config


def connect(producer: Producer, topic: str, timeout_s: float) -> None:
    """Have a producer know the brokers of `topic`; it fences nobody.

    Otherwise the init races librdkafka's change from bootstrap to real broker and in 3 of 10 cases loses: 500 ms until
    its coordinator timer asks again. The second answer comes from the real broker; measured 0 of 120 slow, the median
    unchanged.

    Raises:
        KafkaException: No answer in time.
    """
    for _ in range(2):
        producer.list_topics(topic, timeout=timeout_s)


def dispose(producer: Producer) -> None:
    """Destroy a producer in the background: librdkafka may take a while to end its threads."""
    box = [producer]
    threading.Thread(target=box.clear, daemon=True, name="clonos-dispose").start()
