"""Writes determinants to the causal log, and reads them for a replay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clonos.carried_errors import own_work
from clonos.causal.epoch_scope import EpochScope
from clonos.deadline import Deadline
from clonos.errors import EpochFailed
from clonos.faults import reach
from clonos.kafka import client_config, produce, unanswered, undelivered
from clonos.log.reading import shared_reader
from clonos.log.records import Claim, Determinant, Determinants, Marker, Owner, encode
from clonos.settings import KafkaSettings

_RECORD_BYTES: Final = 512 * 1024
_ACKNOWLEDGE_S: Final = 30.0  # longest time without an acknowledgement
# A cluster that throttles its clients needs longer for a record behind many others.
_DELIVERY_S: Final = 900.0


class Recorder:
    """Collects the new determinants of one operator in one task, and writes them to the causal log.

    Args:
        kafka: Returns the connection settings of the cluster; called at the first flush.
        epoch: The epoch.
        operator: The operator's name.
        task: Spark's partition index.
    """

    def __init__(self, kafka: Callable[[], KafkaSettings], epoch: EpochScope, operator: str, task: int) -> None:
        self._kafka = kafka
        self._epoch = epoch
        self._operator = operator
        self._task = task
        self._new: list[Determinant] = []
        self._adding = threading.Lock()
        self._flushing = threading.Lock()
        self.bytes = 0  # bytes written so far

    def add(self, entry: Determinant) -> None:
        """Queue one determinant; safe to call from several threads."""
        with self._adding:
            self._new.append(entry)

    def flush(self) -> None:
        """Write the queued determinants and wait for the acknowledgement.

        The epoch's sharing depth (`EpochScope.depth`) decides which replicas of the partition must acknowledge.

        Raises:
            EpochFailed: The log did not acknowledge. No row that used the determinants may be published.
        """
        # One flush at a time: a second caller returns only after the entries of the first are acknowledged.
        with self._flushing:
            with self._adding:
                entries, self._new = self._new, []
            if not entries:
                return
            try:
                with own_work("Recording determinants"):
                    self._write(entries)
            except BaseException:
                with self._adding:
                    self._new = entries + self._new
                raise

    def _write(self, entries: list[Determinant]) -> None:
        epoch = self._epoch.identity
        partition = record_partition(self._epoch, self._task)
        producer = _producer(self._kafka(), self._epoch.depth)
        failures: list[str] = []
        unacknowledged = written = 0
        deadline = Deadline(_ACKNOWLEDGE_S)

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal unacknowledged, deadline
            unacknowledged -= 1
            deadline = Deadline(_ACKNOWLEDGE_S)
            if (failure := undelivered(error, message)) is not None:
                failures.append(failure)

        for chunk in _chunks(entries):
            record = Determinants(epoch.owner, epoch.query, epoch.epoch, self._operator, self._task, tuple(chunk))
            unacknowledged += 1
            value = encode(record)
            written += len(value)
            _send(producer, epoch.log_topic, value, partition, delivered)
        deadline = Deadline(_ACKNOWLEDGE_S)
        while unacknowledged and not failures and not deadline.passed():
            producer.poll(0.1)
        if failures or unacknowledged:
            _discard(producer)  # its records would wait in front of the next attempt's
            reason = failures[0] if failures else f"no acknowledgement in {_ACKNOWLEDGE_S:.0f} s"
            raise EpochFailed(f"Determinants of epoch {epoch.epoch} did not reach {epoch.log_topic}: {reason}.")
        self.bytes += written
        reach("determinants-acknowledged", query=epoch.query, epoch=epoch.epoch, task=self._task, replay=epoch.replay)


def _send(
    producer: Producer,
    topic: str,
    value: bytes,
    partition: int,
    delivered: Callable[[KafkaError | None, Message], None],
) -> None:
    deadline = Deadline(_ACKNOWLEDGE_S)
    while True:
        try:
            produce(producer, topic, value, partition=partition, on_delivery=delivered)
            return
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._UNKNOWN_PARTITION or deadline.passed():
                raise EpochFailed(
                    f"Determinants could not be written to {topic}: {failure.args[0].str()}."
                ) from failure
            # The log has more partitions than the producer's metadata: fetch it again.
            producer.list_topics(topic, timeout=5.0)


def record_partition(epoch: EpochScope, task: int) -> int:
    """Return the partition of the causal log to which the Spark task number `task` writes its determinants."""
    return epoch.log_partitions[task % len(epoch.log_partitions)]


def _chunks(entries: list[Determinant]) -> list[list[Determinant]]:
    chunks: list[list[Determinant]] = [[]]
    size = 0
    for entry in entries:
        if size > _RECORD_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(entry)
        size += len(entry.value) + len(entry.service) + 24
    return chunks


_producers: dict[tuple[str, str], Producer] = {}


def _producer(kafka: KafkaSettings, depth: str) -> Producer:
    """Return the worker's producer for determinants. It is not transactional, so tasks share it without fencing each
    other.
    """
    key = (kafka.bootstrap_servers, depth)
    producer = _producers.get(key)
    if producer is None:
        config = client_config(
            kafka,
            acks="1" if depth == "1" else "all",
            enable_idempotence=depth != "1",
            linger_ms=0,
            message_timeout_ms=int(_DELIVERY_S * 1000),
            message_max_bytes=8 * 1024 * 1024,
        )
        producer = _producers[key] = Producer(config)
    return producer


def connect_producer(kafka: KafkaSettings, depth: str, topic: str) -> None:
    """Connect the worker's producer for determinants, in a worker of a standby: it writes nothing.

    Args:
        kafka: The Kafka cluster.
        depth: The job's sharing depth.
        topic: The causal log.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        KafkaAccessDenied: Kafka refuses access.
    """
    try:
        _producer(kafka, depth).list_topics(topic, timeout=5.0)
    except KafkaException as failure:
        raise unanswered(
            f"{topic} cannot be written", failure.args[0], right=f"WRITE on the topic {topic}"
        ) from failure


def _discard(producer: Producer) -> None:
    for key in [key for key, kept in _producers.items() if kept is producer]:
        del _producers[key]
    producer.purge()


_Answers = dict[bytes, Determinant]
_loaded: dict[tuple[Owner, str, int, int], dict[tuple[str, int], _Answers]] = {}


def recorded_answers(kafka: KafkaSettings, epoch: EpochScope, operator: str, task: int) -> _Answers:
    """Return the determinants that earlier attempts at `epoch` recorded, for one operator of one task.

    The log is read up to the claim of the epoch's owner. A record is valid if its owner wrote the newest claim or
    marker before it (invariant 4). Of the valid records for a key, the first counts.

    Returns:
        Digest of service and arguments → determinant.
    """
    partition = record_partition(epoch, task)
    identity = epoch.identity
    key = (identity.owner, identity.query, identity.epoch, partition)
    answers = _loaded.get(key)
    if answers is None:
        for stale in [loaded for loaded in _loaded if loaded[0] != identity.owner]:
            del _loaded[stale]
        with own_work("Reading recorded determinants"):
            answers = _loaded[key] = _load(kafka, epoch, partition)
    return answers.get((operator, task), {})


def _load(kafka: KafkaSettings, epoch: EpochScope, partition: int) -> dict[tuple[str, int], _Answers]:
    answers: dict[tuple[str, int], _Answers] = {}
    owner: Owner | None = None
    identity = epoch.identity
    start = epoch.start_offsets.get(partition, 0)
    for _, record in shared_reader(kafka, identity.log_topic).read(partition, start, epoch.claim_offsets[partition]):
        if isinstance(record, Claim | Marker):
            owner = record.owner
        elif (
            isinstance(record, Determinants)
            and record.owner == owner
            and (record.query, record.epoch) == (identity.query, identity.epoch)
        ):
            of_task = answers.setdefault((record.operator, record.task), {})
            for entry in record.determinants:
                of_task.setdefault(entry.key, entry)
    return answers
