"""Determinants on their way to the causal log and back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from clonos.errors import EpochFailed
from clonos.faults import reach
from clonos.kafka import client_config
from clonos.log.reading import shared_reader
from clonos.log.records import Claim, Determinants, Entry, Marker, Owner, encode
from clonos.settings import KafkaSettings

if TYPE_CHECKING:
    from clonos.causal.scope import EpochScope

_RECORD_BYTES: Final = 512 * 1024
_ACKNOWLEDGE_S: Final = 30.0


class Recorder:
    """Collects one operator's new determinants and writes them, acknowledged, to the log.

    Attributes:
        bytes: What it has written.
    """

    def __init__(self, kafka: Callable[[], KafkaSettings], epoch: EpochScope, operator: str, task: int) -> None:
        self._kafka = kafka
        self._epoch = epoch
        self._operator = operator
        self._task = task
        self._new: list[Entry] = []
        self._adding = threading.Lock()
        self._flushing = threading.Lock()
        self.bytes = 0

    def add(self, entry: Entry) -> None:
        """Queue one entry (rows of a batch may run in threads)."""
        with self._adding:
            self._new.append(entry)

    def flush(self) -> None:
        """Write what is queued and wait until the log has it.

        How many replicas must have it is the determinant sharing depth: the leader (1) or all in sync (full).

        Raises:
            EpochFailed: Not acknowledged; nothing that used the entries may be published.
        """
        # One at a time, so that whoever waits here returns only when what the other took is in the log.
        with self._flushing:
            with self._adding:
                entries, self._new = self._new, []
            if not entries:
                return
            try:
                self._write(entries)
            except BaseException:
                with self._adding:
                    self._new = entries + self._new
                raise

    def _write(self, entries: list[Entry]) -> None:
        epoch = self._epoch
        partition = record_partition(epoch, self._task)
        producer = _producer(self._kafka(), epoch.depth)
        failures: list[KafkaError] = []
        unacknowledged = written = 0

        def delivered(error: KafkaError | None, _message: Message) -> None:
            nonlocal unacknowledged
            unacknowledged -= 1
            if error is not None:
                failures.append(error)

        for chunk in _chunks(entries):
            record = Determinants(epoch.owner, epoch.query, epoch.epoch, self._operator, self._task, tuple(chunk))
            unacknowledged += 1
            value = encode(record)
            written += len(value)
            _produce(producer, epoch.topic, value, partition, delivered)
        deadline = time.monotonic() + _ACKNOWLEDGE_S
        while unacknowledged and time.monotonic() < deadline:
            producer.poll(0.1)
        if failures or unacknowledged:
            why = failures[0].str() if failures else f"no acknowledgement in {_ACKNOWLEDGE_S:.0f} s"
            raise EpochFailed(f"Determinants of epoch {epoch.epoch} did not reach {epoch.topic}: {why}.")
        self.bytes += written
        reach("determinants-acknowledged", query=epoch.query, epoch=epoch.epoch, task=self._task, replay=epoch.replay)


def _produce(
    producer: Producer,
    topic: str,
    value: bytes,
    partition: int,
    delivered: Callable[[KafkaError | None, Message], None],
) -> None:
    deadline = time.monotonic() + _ACKNOWLEDGE_S
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.05)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                raise EpochFailed(
                    f"Determinants could not be written to {topic}: {failure.args[0].str()}."
                ) from failure
            # The log grew after this worker's producer learnt of it.
            producer.list_topics(topic, timeout=5.0)


def record_partition(epoch: EpochScope, task: int) -> int:
    """The log partition that holds the determinants of `task`."""
    return epoch.partitions[task % len(epoch.partitions)]


def _chunks(entries: list[Entry]) -> list[list[Entry]]:
    chunks: list[list[Entry]] = [[]]
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
    """This worker's producer for determinants; not transactional, so sharing it fences nobody."""
    key = (kafka.bootstrap_servers, depth)
    producer = _producers.get(key)
    if producer is None:
        config = client_config(
            kafka,
            acks="1" if depth == "1" else "all",
            enable_idempotence=depth != "1",
            linger_ms=0,
            message_timeout_ms=int(_ACKNOWLEDGE_S * 1000),
            message_max_bytes=8 * 1024 * 1024,
        )
        producer = _producers[key] = Producer(config)
    return producer


_Answers = dict[bytes, Entry]
_loaded: dict[tuple[Owner, str, int, int], dict[tuple[str, int], _Answers]] = {}


def recorded_answers(kafka: KafkaSettings, epoch: EpochScope, operator: str, task: int) -> _Answers:
    """What earlier attempts at `epoch` recorded for one operator of one task, up to this owner's claim.

    Of valid records the first value for a key wins; a record whose owner is not that of the newest claim or
    marker before it is void (invariant 4).
    """
    partition = record_partition(epoch, task)
    key = (epoch.owner, epoch.query, epoch.epoch, partition)
    found = _loaded.get(key)
    if found is None:
        for stale in [old for old in _loaded if old[0] != epoch.owner]:
            del _loaded[stale]
        found = _loaded[key] = _load(kafka, epoch, partition)
    return found.get((operator, task), {})


def _load(kafka: KafkaSettings, epoch: EpochScope, partition: int) -> dict[tuple[str, int], _Answers]:
    answers: dict[tuple[str, int], _Answers] = {}
    owner: Owner | None = None
    start = epoch.since.get(partition, 0)
    for _, record in shared_reader(kafka, epoch.topic).stretch(partition, start, epoch.until[partition]):
        if isinstance(record, Claim | Marker):
            owner = record.owner
        elif (
            isinstance(record, Determinants)
            and record.owner == owner
            and (record.query, record.epoch) == (epoch.query, epoch.epoch)
        ):
            mine = answers.setdefault((record.operator, record.task), {})
            for entry in record.entries:
                mine.setdefault(entry.key, entry)
    return answers
