"""Requests and answers: who asks, what is asked again, what an answer means."""

from __future__ import annotations

import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import httpx
import stamina
from pydantic import BaseModel, TypeAdapter, ValidationError

from clonos.client.problems import of_response
from clonos.errors import ApiError, ClonosError, ControlPlaneAway, RequestUnderWay, StoreAway
from clonos.resources.base import Page

T = TypeVar("T")
Params = Mapping[str, str | int | float | bool | list[str] | None]
Repeat = Literal["always", "unless sent"]

ROOT: Final = "/api/v1"
_TOO_MANY: Final = 429
_AWAY: Final = frozenset({502, 503, 504})
_LONGEST_WAIT_S: Final = 5.0
_FIRST_PATIENCE_S: Final = 5.0


class _Busy(Exception):
    """An answer that another attempt may better."""

    def __init__(self, error: ClonosError, after_s: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


_adapters: dict[Any, TypeAdapter[Any]] = {}


def decode(kind: type[T], content: bytes | str) -> T:
    """A body of the API; fields that a newer control plane added are left out.

    Raises:
        ApiError: It is something else.
    """
    try:
        adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
        found: T = adapter.validate_json(content, extra="ignore")
    except ValidationError as error:
        raise ApiError(
            f"The answer is not what the API promises: {error.errors()[0]['msg']}.",
            hint="see whether the address is that of a Clonos control plane, of this client's version.",
        ) from error
    return found


class Transport:
    """One control plane and who we are there.

    Args:
        api: Its address, without ``/api/v1``.
        token: Sent with each request.
        patience_s: For so long a control plane that is away or busy is asked again.
        timeout_s: For one answer.
        ca: PEM file with the authorities to trust; default those of this machine.
    """

    def __init__(
        self, api: str, token: str | None, *, patience_s: float = 5.0, timeout_s: float = 30.0, ca: Path | None = None
    ) -> None:
        self.api = api.rstrip("/")
        self._patience_s = patience_s
        self._met = False
        self._http = httpx.Client(
            base_url=self.api + ROOT,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            verify=ssl.create_default_context(cafile=str(ca)) if ca else self.api.startswith("https"),
            follow_redirects=False,  # a token goes to the address that it was given for, and nowhere else
            trust_env=not _loopback(self.api),  # no proxy for this very machine
        )

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get(self, kind: type[T], path: str, params: Params | None = None, *, timeout_s: float | None = None) -> T:
        """The resource at `path`."""
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
        """A list, as many pages of it as `limit` entries (default: all) take.

        Args:
            kind: Of the entries.
            path: Of the list.
            params: Of the list.
            limit: So many entries at the most.
            cursor: The parameter that goes on with the next page.
            first: Its value for the first one.
        """
        data: list[T] = []
        after = first
        while True:
            size = 200 if limit is None else min(200, limit - len(data))
            asked = {**(params or {}), "limit": size, cursor: after}
            page: Page[T] = self.get(Page[kind], path, asked)  # type: ignore[valid-type]
            data += page.data
            after = page.next
            if not page.has_more or after is None or (limit is not None and len(data) >= limit):
                return Page(data=data, has_more=page.has_more, next=page.next)

    def post(self, path: str, body: BaseModel | None = None, **options: Any) -> bytes:
        """Ask for something; under a key of its own, so that asking again does nothing twice."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self.send("POST", path, body=body, headers=headers, **options).content

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
        """The answer to one request.

        Args:
            method: Of HTTP.
            path: Below ``/api/v1``.
            params: Of the path; those that are None are left out.
            body: A resource.
            headers: Besides those of each request.
            files: Instead of `body`: a multipart upload.
            timeout_s: For the answer.
            repeat: ``unless sent``: ask again only where the control plane cannot have got it.

        Raises:
            ControlPlaneAway: There was none.
            ClonosError: It was an error.
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
        asked = 0
        try:
            for attempt in self._attempts(repeat):
                with attempt:
                    asked += 1
                    return self._once(request, again=asked > 1)
        except _Busy as busy:
            raise busy.error from None
        except httpx.TransportError as error:
            raise self._away(error) from error
        raise AssertionError("stamina gives up by raising")

    def _attempts(self, repeat: Repeat) -> Any:
        begun = time.monotonic()

        def wait(error: Exception) -> bool | float:
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                if self._met:
                    return True
                # The control plane may be starting again, and has got nothing; a wrong name or address stays wrong.
                return _refused(error) and time.monotonic() - begun < _FIRST_PATIENCE_S
            if repeat == "unless sent":
                return False
            if isinstance(error, _Busy):
                return error.after_s if error.after_s is not None else True
            return isinstance(error, httpx.TransportError)

        return stamina.retry_context(
            on=wait,
            attempts=None if self._patience_s else 1,
            timeout=self._patience_s or None,
            wait_initial=0.05,
            wait_max=1.0,
            wait_jitter=0.1,
        )

    def _once(self, request: httpx.Request, *, again: bool) -> httpx.Response:
        response = self._http.send(request)
        self._met = True
        if response.is_success:
            return response
        error = of_response(response)
        # 409 to a request of ours that is still being worked on; any other conflict is an answer.
        under_way = again and isinstance(error, RequestUnderWay)
        if response.status_code in _AWAY or response.status_code == _TOO_MANY or under_way:
            raise _Busy(error if not _plain(error, response) else self._away(error), _after(response))
        raise error

    def _away(self, error: Exception) -> ControlPlaneAway:
        reason = str(error) or type(error).__name__
        return ControlPlaneAway(f"The control plane at {self.api} does not answer: {reason.rstrip('.')}.")

    @contextmanager
    def stream(
        self, path: str, params: Params, headers: Mapping[str, str], *, read_s: float
    ) -> Iterator[Iterator[str]]:
        """Lines of a body that does not end, as they come.

        Raises:
            httpx.TransportError: The connection was lost, or nothing came for `read_s` seconds.
            ClonosError: The answer was an error.
        """
        given = {name: value for name, value in params.items() if value is not None}
        timeout = httpx.Timeout(read_s, connect=5.0)
        with self._http.stream("GET", path, params=given, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                error = of_response(response)
                if response.status_code in _AWAY or response.status_code == _TOO_MANY:
                    raise httpx.ReadError(str(error))
                raise error
            yield response.iter_lines()


def _refused(error: BaseException | None) -> bool:
    """Whether the machine is there, and nobody listens."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _plain(error: ClonosError, response: httpx.Response) -> bool:
    """Whether something before the control plane (a proxy) said that it is away."""
    return response.status_code in _AWAY and not isinstance(error, StoreAway)


def _after(response: httpx.Response) -> float | None:
    given = response.headers.get("Retry-After", "")
    return min(float(given), _LONGEST_WAIT_S) if given.isdigit() else None


def _loopback(api: str) -> bool:
    return httpx.URL(api).host in {"127.0.0.1", "localhost", "::1"}
