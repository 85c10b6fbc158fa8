"""The blocking transport: requests with retries, pages of lists, and event streams.

A request is repeated only where that does no harm: it is idempotent or has an idempotency key, or the control plane
cannot have received it.
"""

from __future__ import annotations

import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self

import httpx
import stamina
from httpx_sse import EventSource, ServerSentEvent
from pydantic import BaseModel

from clonos.client.responses import (
    RETRYABLE,
    T,
    decode,
    error_of_response,
    on_this_machine,
    reason_of,
    refuse_plain_http,
    retry_after_s,
    tls_context,
)
from clonos.errors import (
    CertificateUntrusted,
    ClonosError,
    ControlPlaneUnavailable,
    DatabaseUnavailable,
    RequestInProgress,
)
from clonos.resources.base import Page

Params = Mapping[str, str | int | float | bool | list[str] | None]
Repeat = Literal["always", "unless sent"]

ROOT: Final = "/api/v1"
_LONGEST_WAIT_S: Final = 5.0
_FIRST_PATIENCE_S: Final = 5.0


class _Retryable(Exception):
    """An error response to a request that may succeed when it is repeated."""

    def __init__(self, error: ClonosError, retry_after_s: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = min(retry_after_s, _LONGEST_WAIT_S) if retry_after_s is not None else None


class Transport:
    """A connection to one control plane with one token; `clonos.client.Client` describes the arguments."""

    def __init__(
        self, api: str, token: str | None, *, patience_s: float = 5.0, timeout_s: float = 30.0, ca: Path | None = None
    ) -> None:
        self.api = api.rstrip("/")
        if token:
            refuse_plain_http(self.api)
        self._patience_s = patience_s
        self._responded = False
        self._http = httpx.Client(
            base_url=self.api + ROOT,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
            verify=tls_context(ca) if ca else httpx.URL(self.api).scheme != "http",
            follow_redirects=False,  # the token is for this address only
            trust_env=not on_this_machine(self.api),  # no proxy for this machine
        )

    def close(self) -> None:
        """Close all connections to the control plane."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def get(self, kind: type[T], path: str, params: Params | None = None, *, timeout_s: float | None = None) -> T:
        """Fetch the resource at `path` and parse it as `kind`."""
        return decode(kind, self.send("GET", path, params=params, timeout_s=timeout_s).content)

    def pages(
        self,
        kind: type[T],
        path: str,
        params: Params | None = None,
        *,
        limit: int | None = None,
        cursor: str = "starting_after",
        first: str | None = None,
    ) -> Page[T]:
        """Fetch the list at `path`, at most `limit` entries, with one request for each of its pages.

        `cursor` is the query parameter for the position of a page, `first` the position of the first one.
        """
        data: list[T] = []
        after = first
        while True:
            size = 200 if limit is None else min(200, limit - len(data))
            query = {**(params or {}), "limit": size, cursor: after}
            page: Page[T] = self.get(Page[kind], path, query)  # type: ignore[valid-type]
            data += page.data
            after = page.next
            if not page.has_more or after is None or (limit is not None and len(data) >= limit):
                return Page(data=data, has_more=page.has_more, next=page.next)

    def post(
        self, path: str, body: BaseModel | None = None, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> bytes:
        """Send a POST request with a new idempotency key, so that a retry executes nothing twice; else as `send`."""
        keyed = {**(headers or {}), "Idempotency-Key": uuid.uuid4().hex}
        return self.send("POST", path, body=body, headers=keyed, **options).content

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: BaseModel | None = None,
        headers: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,
        repeat: Repeat = "always",
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Send a request and retry it for `patience_s` seconds. Parameters with the value None are left out.

        `repeat`: ``always`` retries after every error that may pass; ``unless sent`` only if the control plane cannot
        have received the request.

        Raises:
            ControlPlaneUnavailable: The control plane did not respond.
            CertificateUntrusted: Its certificate is not trusted, or for another name.
            ClonosError: The control plane returned an error.
        """
        request = self._http.build_request(
            method,
            path,
            params={name: value for name, value in (params or {}).items() if value is not None},
            content=body.model_dump_json(by_alias=True, exclude_unset=True) if body is not None else None,
            headers={**({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})},
            files=files,
            timeout=httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s, connect=5.0),
        )
        attempts = 0
        try:
            for attempt in self._attempts(repeat):
                with attempt:
                    attempts += 1
                    return self._once(request, is_retry=attempts > 1)
        except _Retryable as retryable:
            raise retryable.error from None
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        raise AssertionError("stamina raises after the last attempt")

    def _attempts(self, repeat: Repeat) -> Any:
        started = time.monotonic()

        def delay(error: Exception) -> bool | float:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                if self._responded:
                    return True
                # A refused connection may be a control plane that is starting; a wrong address stays wrong.
                return _is_refused(error) and time.monotonic() - started < _FIRST_PATIENCE_S
            if repeat == "unless sent":
                return False
            if isinstance(error, _Retryable):
                return error.retry_after_s if error.retry_after_s is not None else True
            return isinstance(error, httpx.TransportError)

        return stamina.retry_context(
            on=delay,
            attempts=None if self._patience_s else 1,
            timeout=self._patience_s or None,
            wait_initial=0.05,
            wait_max=1.0,
            wait_jitter=0.1,
        )

    def _once(self, request: httpx.Request, *, is_retry: bool) -> httpx.Response:
        response = self._http.send(request)
        self._responded = True
        if response.is_success:
            return response
        error = error_of_response(response)
        # The first attempt of this request is in progress; any other conflict is final.
        in_progress = is_retry and isinstance(error, RequestInProgress)
        if response.status_code in RETRYABLE or in_progress:
            from_proxy = _is_from_proxy(error, response)
            raise _Retryable(self._unavailable(error) if from_proxy else error, retry_after_s(response))
        raise error

    def _unavailable(self, error: Exception) -> ClonosError:
        untrusted = _certificate_error(error)
        if untrusted is not None:
            return CertificateUntrusted(f"The certificate of {self.api} is not accepted: {untrusted.verify_message}.")
        reason = reason_of(error).rstrip(".")
        return ControlPlaneUnavailable(f"The control plane at {self.api} does not respond: {reason}.")

    @contextmanager
    def stream(
        self, path: str, params: Params, headers: Mapping[str, str], *, read_timeout_s: float
    ) -> Iterator[Iterator[ServerSentEvent]]:
        """Open a stream of server-sent events; one attempt, without retries.

        Raises:
            httpx.TransportError: The connection was lost, or nothing arrived for `read_timeout_s` seconds.
            SSEError: The response is not an event stream.
            ClonosError: The control plane refused the request.
        """
        query = {name: value for name, value in params.items() if value is not None}
        timeout = httpx.Timeout(read_timeout_s, connect=5.0)
        headers = {"Accept": "text/event-stream", **headers}
        with self._http.stream("GET", path, params=query, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                error = error_of_response(response)
                if response.status_code in RETRYABLE:
                    raise httpx.ReadError(str(error))
                raise error
            yield EventSource(response).iter_sse()


class Routes:
    """The calls for one resource of the API; `Client` has an attribute for each."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


def _is_refused(error: BaseException) -> bool:
    """Whether the machine is reachable and no process listens on the port."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in _causes(error))


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of the server's certificate that caused `error`; None if that has another cause."""
    return next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLCertVerificationError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()  # causes can form a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_from_proxy(error: ClonosError, response: httpx.Response) -> bool:
    """Whether a proxy in front of the control plane reports that it is unavailable."""
    return response.status_code >= 500 and not isinstance(error, DatabaseUnavailable)
