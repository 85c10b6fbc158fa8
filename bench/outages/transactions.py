"""Lists Kafka's transactions and producers by its wire protocol: librdkafka has no calls for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_T = TypeVar("_T")
_LIST_TRANSACTIONS: Final = 66
_DESCRIBE_PRODUCERS: Final = 61
_CLIENT: Final = b"bench"
_TIMEOUT_S: Final = 15.0
SETTLED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


def transactions(kafka: KafkaSettings) -> dict[str, str]:
    """Every transactional id of the brokers → its state (plaintext listeners only).

    Raises:
        RuntimeError: A broker refuses the request.
    """
    states: dict[str, str] = {}
    for broker in AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).brokers.values():
        with socket.create_connection((broker.host, broker.port), _TIMEOUT_S) as connection:
            states |= _listed(connection)
    return states


def producers(kafka: KafkaSettings, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], int]:
    """The number of idempotent producers that the broker remembers for each partition that it leads (KIP-664).

    Args:
        kafka: A cluster of one broker, with a plaintext listener.
        partitions: Topic → partitions.

    Raises:
        RuntimeError: The broker refuses the request.
    """
    body = _varint(len(partitions) + 1)
    for topic, numbers in partitions.items():
        body += _varint(len(topic) + 1) + topic.encode() + _varint(len(numbers) + 1)
        body += struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
    (broker,) = AdminClient(client_config(kafka)).list_topics(timeout=_TIMEOUT_S).brokers.values()
    with socket.create_connection((broker.host, broker.port), _TIMEOUT_S) as connection:
        answer = _answer(connection, _DESCRIBE_PRODUCERS, body + b"\0")
    return {key: count for topic in answer.array(answer.producers_of_topic) for key, count in topic}


def _listed(connection: socket.socket) -> dict[str, str]:
    answer = _answer(connection, _LIST_TRANSACTIONS, b"\1\1\0")  # no filters, no tags
    _check(answer.number(">h"))
    answer.array(answer.text)  # states unknown to the broker
    return dict(answer.array(answer.transaction))


def _answer(connection: socket.socket, key: int, body: bytes) -> _Answer:
    # Header 2: key, version, correlation id, client id, no tags.
    request = struct.pack(">hhih", key, 0, 1, len(_CLIENT)) + _CLIENT + b"\0" + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    answer = _Answer(_exactly(connection, length))
    answer.skip(4)  # correlation id
    answer.tags()
    answer.skip(4)  # throttled for
    return answer


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"the broker refuses the request: error {error}")


def _varint(value: int) -> bytes:
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, count: int) -> None:
        self._at += count

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def text(self) -> str:
        """A string; empty for null."""
        return self.take(max(0, self.varint() - 1)).decode()

    def array(self, element: Callable[[], _T]) -> list[_T]:
        return [element() for _ in range(self.varint() - 1)]

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())

    def transaction(self) -> tuple[str, str]:
        name = self.text()
        self.skip(8)  # producer id
        state = self.text()
        self.tags()
        return name, state

    def producers_of_topic(self) -> list[tuple[tuple[str, int], int]]:
        topic = self.text()
        counts = self.array(self.producers_of_partition)
        self.tags()
        return [((topic, partition), count) for partition, count in counts]

    def producers_of_partition(self) -> tuple[int, int]:
        partition = self.number(">i")
        _check(self.number(">h"))
        self.text()  # the error's message
        count = len(self.array(self.producer))
        self.tags()
        return partition, count

    def producer(self) -> int:
        producer_id = self.number(">q")
        self.skip(4 + 4 + 8 + 4 + 8)  # epoch, last sequence and time, coordinator's epoch, start of the transaction
        self.tags()
        return producer_id
