"""A link to a broker that delays the end of one transaction beyond the client's retry of it."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from typing import Final

from support.brokers.severed import Link

_END_TXN: Final = 26  # Kafka's API key
_HEADER: Final = struct.Struct(">ihhih")  # length; API key, version, correlation id, length of the client id


class DelayingLink(Link):
    """Relays requests one by one, and can hold one EndTxn back, as a slow network does.

    After `hold` the next EndTxn of the client stays here and its connection breaks, so that the client sends it again
    over another connection. `deliver` then sends the old request to the broker.
    """

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._client = b""
        self._held: tuple[socket.socket, bytes] | None = None
        self._responses: queue.Queue[bytes] = queue.Queue()
        self.held = threading.Event()

    def hold(self, client_id: str) -> None:
        """Hold back the next EndTxn of the client with this ``client.id``."""
        self.held.clear()
        self._client = client_id.encode()

    def deliver(self) -> int:
        """Send the request that was held back to the broker; returns the error code of its response."""
        assert self._held is not None
        (far, request), self._held = self._held, None
        correlation = request[8:12]
        far.sendall(request)
        responses = b""
        while True:
            responses += self._responses.get(timeout=30)
            while len(responses) >= (end := 4 + int.from_bytes(responses[:4], "big")):
                response, responses = responses[:end], responses[end:]
                if response[4:8] == correlation:
                    # A flexible version: tagged fields, throttle time, error code.
                    _close(far)
                    code: int = struct.unpack_from(">h", response, 8 + 1 + 4)[0]
                    return code

    def _pump_requests(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                request = _exactly(near, 4)
                request += _exactly(near, *struct.unpack(">i", request))
                if self._is_wanted(request):
                    self._client = b""
                    self._held = far, request
                    _close(near)
                    self.held.set()
                    return
                far.sendall(request)
        _close(near)
        _close(far)

    def _pump_responses(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                try:
                    near.sendall(data)
                except OSError:  # the client's end of a request that was held back
                    self._responses.put(data)
        _close(near)

    def _is_wanted(self, request: bytes) -> bool:
        if not self._client:
            return False
        _, key, _, _, length = _HEADER.unpack_from(request)
        return key == _END_TXN and request[_HEADER.size : _HEADER.size + length] == self._client


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
