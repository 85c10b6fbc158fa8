"""Lists Kafka's transactions by its wire protocol: librdkafka has no call for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.settings import KafkaSettings

_T = TypeVar("_T")
_LIST_TRANSACTIONS: Final = 66
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


def _listed(connection: socket.socket) -> dict[str, str]:
    # Header 2: key, version, correlation id, client id, no tags. Body 0: no filters, no tags.
    header = struct.pack(">hhih", _LIST_TRANSACTIONS, 0, 1, len(_CLIENT)) + _CLIENT + b"\0"
    request = header + b"\1\1\0"
    connection.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    answer = _Answer(_exactly(connection, length))
    answer.skip(4)
    answer.tags()
    answer.skip(4)  # throttled for
    (error,) = struct.unpack(">h", answer.take(2))
    if error:
        raise RuntimeError(f"the broker does not list its transactions: error {error}")
    answer.array(answer.text)  # states unknown to the broker
    return dict(answer.array(answer.transaction))


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

    def text(self) -> str:
        return self.take(self.varint() - 1).decode()

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
