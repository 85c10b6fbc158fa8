"""Outages of services: which exceptions show one, and what a call does then under each policy."""

from __future__ import annotations

import email.message
import errno
import http.client
import socket
import ssl
import threading
import urllib.error
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
import structlog
from scopes import counted, recorder, replaying, task

import clonos
from clonos.carried_errors import carry
from clonos.causal import service as services
from clonos.causal.outages import Outages, is_outage
from clonos.causal.scope import task_scope
from clonos.causal.service import OnOutage
from clonos.errors import ServiceError, ServiceTimedOut, ServiceUnavailable, SpecError

pytestmark = pytest.mark.usefixtures("fake_recorder")

_URL = "http://rates.example"


def of_httpx(status: int) -> Exception:
    request = httpx.Request("GET", _URL)
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, request=request))


def of_requests(status: int) -> Exception:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def of_urllib(status: int) -> Exception:
    return urllib.error.HTTPError(_URL, status, "x", email.message.Message(), None)


def untrusted() -> Exception:
    try:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except ssl.SSLError as error:
            raise httpx.ConnectError("certificate verify failed") from error
    except httpx.ConnectError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no"),
        ConnectionResetError(),
        TimeoutError("read"),
        socket.gaierror(socket.EAI_NONAME, "unknown name"),
        OSError(errno.EHOSTUNREACH, "no route"),
        ssl.SSLEOFError(),
        http.client.RemoteDisconnected(),
        http.client.IncompleteRead(b""),
        urllib.error.URLError(ConnectionRefusedError()),
        requests.ConnectionError(),
        requests.ReadTimeout(),
        httpx.ConnectError("x"),
        httpx.ReadTimeout("x"),
        *(of(status) for status in (429, 502, 503, 504) for of in (of_httpx, of_requests, of_urllib)),
    ],
    ids=repr,
)
def test_transport_errors_and_busy_answers_are_outages(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("score"),
        ZeroDivisionError(),
        FileNotFoundError("rates.csv"),
        PermissionError(),
        OSError("503"),
        urllib.error.URLError("unknown url type: ftpx"),
        requests.exceptions.MissingSchema(),
        httpx.UnsupportedProtocol("x").__cause__ or ValueError("x"),
        untrusted(),
        *(of(status) for status in (400, 401, 404, 500) for of in (of_httpx, of_requests, of_urllib)),
    ],
    ids=repr,
)
def test_errors_of_the_code_are_not_outages(error: Exception) -> None:
    assert not is_outage(error)


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: object) -> None:
        raise error

    return function


@pytest.mark.parametrize("on_outage", ["wait", "fail", "record"])
def test_an_error_of_the_code_is_neither_retried_nor_recorded(on_outage: OnOutage) -> None:
    ask, calls = counted(raising(KeyError("score")), retries=3, on_outage=on_outage)
    with task_scope(task()) as current:
        with pytest.raises(KeyError):
            ask("a")
        assert len(calls) == 1
        assert recorder(current).queued == []
        # The caller may have caught it: nothing that depends on it may leave the task.
        with pytest.raises(KeyError):
            current.flush()


def test_further_exceptions_count_as_outages() -> None:
    ask, calls = counted(raising(KeyError("score")), retries=1, on_outage="record", outages=(LookupError,))
    with task_scope(task()) as current:
        with pytest.raises(ServiceError, match="KeyError"):
            ask("a")
        current.flush()
    assert len(calls) == 2


def test_a_failure_that_is_not_recorded_cannot_decide_an_output() -> None:
    ask, _ = counted(raising(ConnectionError("refused")), on_outage="fail")

    @clonos.udf("string")
    def lenient(word: str) -> str:
        try:
            return str(ask(word))
        except ServiceError:
            return "unknown"

    with task_scope(task()) as current:
        assert lenient.function("a") == "unknown"
        with pytest.raises(ServiceError):
            current.flush()


def test_a_recorded_failure_has_no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, _ = counted(raising(ConnectionError("refused")), name="rates", on_outage="record")
    first = task()
    with task_scope(first), pytest.raises(ServiceError) as fresh:
        ask("a")
    with task_scope(replaying(first, monkeypatch)), pytest.raises(ServiceError) as replayed:
        ask("a")
    assert str(fresh.value) == str(replayed.value) == "The service rates failed: ConnectionError: refused."
    assert "on_outage" in str(ServiceError("x"))
    assert str(carry(fresh.value)).startswith("The service rates failed")


@pytest.fixture
def in_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "in_spark", lambda: True)
    monkeypatch.setattr(services, "pause", lambda _attempt: None)


@pytest.mark.usefixtures("in_spark")
def test_a_call_waits_for_the_end_of_an_outage_with_two_log_lines() -> None:
    left = [50]

    def flaky(_: object) -> str:
        left[0] -= 1
        if left[0]:
            raise ConnectionError("refused")
        return "yes"

    ask, calls = counted(flaky, retries=2, name="flaky")
    with structlog.testing.capture_logs() as lines, task_scope(task()):
        assert ask("a") == "yes"
    assert len(calls) == 50
    assert [(line["event"], line["service"]) for line in lines] == [
        ("the service does not answer", "flaky"),
        ("the service answers again", "flaky"),
    ]
    assert "ConnectionError: refused" in lines[0]["cause"]


@pytest.mark.usefixtures("in_spark")
def test_after_a_while_the_driver_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PATIENCE_S", 0.0)
    answered, _ = counted(lambda x: x)
    ask, calls = counted(raising(ConnectionError("refused")), name="rates")
    with task_scope(task()) as current:
        answered("a")
        with pytest.raises(ServiceUnavailable, match="The service rates failed: ConnectionError: refused"):
            ask("a")
        assert len(recorder(current).written) == 1, "what was answered is not asked again"
        with pytest.raises(ServiceUnavailable):
            ask("b")
        with pytest.raises(ServiceUnavailable):
            current.flush()
    assert len(calls) == 1
    assert ServiceUnavailable.outage


def test_outages_of_two_services_are_separate() -> None:
    outages = Outages()
    with structlog.testing.capture_logs() as lines:
        outages.answered("a")
        for name in ("a", "b", "a"):
            outages.seen(name, "x")
        outages.answered("b")
        outages.answered("b")
        outages.seen("b", "x")
    assert [line["service"] for line in lines] == ["a", "b", "b", "b"]


def test_map_returns_recorded_failures_at_their_place() -> None:
    def some(x: int) -> int:
        if x == 2:
            raise ConnectionError("refused")
        return x

    ask, _ = counted(some, name="rates", on_outage="record")
    with task_scope(task()):
        first, second, third = ask.map([1, 2, 3], return_errors=True)
        assert (first, third) == (1, 3)
        assert isinstance(second, ServiceError)
        with pytest.raises(ServiceError):
            ask.map([1, 2, 3])
    ask, _ = counted(some, on_outage="fail")
    with task_scope(task()), pytest.raises(ServiceError):
        ask.map([1, 2], return_errors=True)


def test_calls_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_MOST_HANGING", 2)
    monkeypatch.setattr(services, "pause", lambda _attempt: None)
    released = threading.Event()
    ask, calls = counted(lambda: released.wait(60), timeout=0.05, retries=5, on_outage="fail")
    with task_scope(task()), pytest.raises(ServiceTimedOut):
        ask()
    assert len(calls) == 2
    released.set()
    with task_scope(task()):
        assert ask() is True


def test_another_policy_is_refused() -> None:
    with pytest.raises(SpecError, match="on_outage='ignore'"):
        clonos.service(on_outage="ignore")(len)  # type: ignore[call-overload]
