"""Outages of services: which exceptions show one, how long a call waits for its end, and one log line for each."""

from __future__ import annotations

import errno
import random
import socket
import ssl
import threading
import time
import urllib.error
from collections.abc import Iterator
from http.client import BadStatusLine, IncompleteRead
from typing import Final

import structlog

# A call that waits for the end of an outage waits this long; then the driver waits, and the job's state says so.
PATIENCE_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_STATUSES: Final = frozenset({429, 502, 503, 504})
_CODES: Final = frozenset(
    getattr(errno, name)
    for name in ("EADDRNOTAVAIL", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENOTCONN")
)
_TRANSPORT: Final = (
    ConnectionError,
    TimeoutError,
    socket.gaierror,
    socket.herror,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    BadStatusLine,
    IncompleteRead,
)
# Transport errors of HTTP libraries that Clonos does not import: package → class, which may be a base class.
_OF_LIBRARIES: Final = {
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "httpx": frozenset({"TransportError"}),
    "requests": frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError"}),
    "urllib3": frozenset({"MaxRetryError", "NewConnectionError", "ProtocolError", "TimeoutError"}),
}

_logger = structlog.get_logger(__name__)


def is_outage(error: BaseException) -> bool:
    """Whether an exception shows that a service is away, and not that the calling code is wrong.

    These are errors of connections and names, timeouts, and the answers 429, 502, 503 and 504 as exceptions of urllib,
    requests, httpx and aiohttp. A certificate that is not trusted is not an outage.
    """
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _chain(error)):
        return False
    status = _status(error)
    if status is not None:
        return status in _STATUSES
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, BaseException) and is_outage(error.reason)
    if isinstance(error, _TRANSPORT) or (isinstance(error, OSError) and error.errno in _CODES):
        return True
    return any(cls.__name__ in _OF_LIBRARIES.get(_package(cls), ()) for cls in type(error).__mro__)


def _package(cls: type[BaseException]) -> str:
    return cls.__module__.partition(".")[0]


def _status(error: BaseException) -> int | None:
    """Return the status of an HTTP answer that a library raised as an exception; None: it is none."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code
    if _package(type(error)) not in _OF_LIBRARIES:
        return None
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception with its causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        reason = getattr(cause, "reason", None)
        cause = cause.__cause__ or cause.__context__ or (reason if isinstance(reason, BaseException) else None)


def pause(attempt: int) -> None:
    """Sleep before the next attempt: from 0.05 s, doubled to 2 s, at least half of it by chance."""
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 10))
    time.sleep(longest * random.uniform(0.5, 1.0))


class Outages:
    """The outages that the calls of this process see at the moment: service → when it began.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._lock = threading.Lock()

    def seen(self, service: str, cause: str) -> float:
        """Note that a service does not answer; returns the seconds since its outage began. The first call logs it."""
        now = time.monotonic()
        with self._lock:
            began = self._began.get(service)
            if began is None:
                began = self._began[service] = now
                _logger.warning("the service does not answer", service=service, cause=cause)
        return now - began

    def answered(self, service: str) -> None:
        """Note that a service answers; the first answer after an outage is logged."""
        if service in self._began:
            with self._lock:
                began = self._began.pop(service, None)
                if began is not None:
                    _logger.warning("the service answers again", service=service, after_s=time.monotonic() - began)
