"""HTTP connections with limits that apply before a token is known: bytes that are not body, time, and connections of
one address.

uvicorn's parser stores a header or trailer until it is complete, keeps all of them, and queues every pipelined request.
`docs/adr/0050-limits-of-connections.md` compares it with other servers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
# One read has up to 256 kB; what a piece of it adds is checked before the next one is parsed.
_PIECE_BYTES: Final = 16_384


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    # Largest head of a request: its first line and headers. Also the most bytes without a byte of body after it, such
    # as one trailer or chunk extension, and the most bytes of framing beyond the size of the body.
    header_bytes: ClassVar[int] = 65_536
    # Longest time from the connection, or from the first byte of a later request, to the end of the head.
    header_s: ClassVar[float] = 10.0
    refused_s: ClassVar[float] = 2.0  # time for which the connection of a refused request stays open, and unread
    queued: ClassVar[int] = 8  # pipelined requests that may wait for the response of an earlier one
    per_address: ClassVar[int] = 1_000  # open connections of one address
    # Networks without this limit: proxies, which have connections for many clients.
    proxies: ClassVar[Sequence[Network]] = ()
    _opened: ClassVar[Counter[str]] = Counter()

    _waiting: asyncio.TimerHandle | None = None  # while the head of a request arrives, or a refused connection ends
    _in_head = True  # otherwise in the body or the trailers
    _whole = True  # the newest request has arrived completely
    _keep_alive = True  # after the response to that request
    _refused = False
    _received = 0  # bytes of the request
    _body = 0  # the body's part of them
    _silent = 0  # bytes since the last byte of body
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request; refuse a connection beyond the limit of its address."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._opened[self._address] += 1
        self._await_head()
        if self._opened[self._address] > self.per_address and not is_within(self._address, self.proxies):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._stop_waiting()
        self._opened[self._address] -= 1
        if self._opened[self._address] <= 0:
            del self._opened[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, as long as the request keeps the limits."""
        for start in range(0, len(data), _PIECE_BYTES):
            if self._refused or self.transport.is_closing():
                return
            piece = data[start : start + _PIECE_BYTES]
            self._received += len(piece)
            self._silent += len(piece)
            super().data_received(piece)
            framing = self._received - self._body
            if self._silent > self.header_bytes or framing > self.header_bytes + self._body:
                self._refuse()

    def on_message_begin(self) -> None:
        """Begin the limits of a request at its first byte."""
        if self._waiting is None:
            self._await_head()
        self._received = self._body = self._silent = 0
        self._in_head, self._whole = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header; ignore trailers, because nothing here reads them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Accept the complete head of a request; its body has limits of its own (`clonos_api.guards.bodies`)."""
        if self._refused:
            return
        if len(self.pipeline) >= self.queued:
            self._refuse()
            return
        self._stop_waiting()
        self._in_head = False
        super().on_headers_complete()
        # A response before the end of a long body closes the connection, because the rest of the body is not read.
        self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, self.cycle.keep_alive and self._is_short()

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        if self._refused:
            return
        self._body += len(body)
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request that is complete with its trailers."""
        if self._refused:
            return
        self._whole = True
        self._stop_waiting()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the rest of a short body for as long as for a head."""
        super().on_response_complete()
        if self._refused:
            self.transport.pause_reading()
        if self.cycle.response_complete and not self._whole and self._waiting is None:
            self._await_head()

    def _is_short(self) -> bool:
        headers = dict(self.headers)
        return b"transfer-encoding" not in headers and int(headers.get(b"content-length", 0)) <= self.header_bytes

    def _refuse(self) -> None:
        """Read no more, answer if this was the head of the only request, and close soon."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_waiting()
        if self._in_head and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(_TOO_LARGE)
        # Closed later: a client that sends such requests all the time would have hundreds of connections a second.
        self.transport.pause_reading()
        self._waiting = self.loop.call_later(self.refused_s, self._too_late)

    def _await_head(self) -> None:
        self._waiting = self.loop.call_later(self.header_s, self._too_late)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_late(self) -> None:
        self._waiting = None
        self.transport.close()


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Whether an address is in one of the networks; an IPv4 address may be mapped into IPv6 (``::ffff:10.0.0.1``)."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return any((mapped or parsed) in network for network in networks)
