"""HTTP connections with limits that apply before a token is known: header bytes, time, and connections of one address.

uvicorn's parser stores a header until it is complete, however long that takes and however large it becomes.
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


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        header_bytes: Largest head of a request: its first line and headers.
        header_s: Longest time from the connection, or from the first byte of a later request, to the end of the head.
        refused_s: Time for which the connection of a refused head stays open, and unread.
        per_address: Open connections of one address.
        proxies: Networks without this limit: proxies, which have connections for many clients.
    """

    header_bytes: ClassVar[int] = 65_536
    header_s: ClassVar[float] = 10.0
    refused_s: ClassVar[float] = 2.0
    per_address: ClassVar[int] = 1_000
    proxies: ClassVar[Sequence[Network]] = ()
    _opened: ClassVar[Counter[str]] = Counter()

    _waiting: asyncio.TimerHandle | None = None  # while the head of a request arrives
    _received = 0  # bytes of that head
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
        self._head_is_over()
        self._opened[self._address] -= 1
        if self._opened[self._address] <= 0:
            del self._opened[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on bytes, as long as the head of the request is not too large."""
        if self.transport.is_closing() or (self._received > self.header_bytes and self._waiting is not None):
            return  # refused already
        self._received += len(data)
        super().data_received(data)
        if self._waiting is not None and self._received > self.header_bytes:
            self._head_is_over()
            self.transport.write(_TOO_LARGE)
            # Closed later: a client that sends such heads all the time would have hundreds of connections a second.
            self.transport.pause_reading()
            self._waiting = self.loop.call_later(self.refused_s, self._too_late)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._waiting is None:
            self._received = 0
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head of a request is complete; its body has limits of its own (`clonos_api.guards.bodies`)."""
        self._head_is_over()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._waiting = self.loop.call_later(self.header_s, self._too_late)

    def _head_is_over(self) -> None:
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
