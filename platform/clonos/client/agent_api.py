"""The agent's asynchronous connection to the control plane: one attempt for each request.

The agent itself retries, for as long as it runs. `clonos.client.responses` converts the error responses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel

from clonos.client.agent_token import AgentToken
from clonos.client.responses import (
    RETRYABLE,
    decode,
    error_of_response,
    reason_of,
    refuse_plain_http,
    retry_after_s,
    tls_context,
)
from clonos.errors import AgentReplaced, ApiError, ArtifactUnavailable, ClonosError, ControlPlaneUnavailable, SpecError
from clonos.resources.hosts import (
    Heartbeat,
    HeartbeatResponse,
    HostRegister,
    HostRegistered,
    Push,
    PushResult,
    TaskResult,
    Work,
)
from clonos.resources.service import Token, TokenCreated

_M = TypeVar("_M", bound=BaseModel)
_TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)
_POLL_MARGIN_S: Final = 10.0


class ApiUnavailable(ControlPlaneUnavailable):
    """The control plane is unreachable, overloaded or failing, or rejects the agent's token: retry later.

    `what` is what happened, `kept` what was kept safe, `hint` what to do next.

    Attributes:
        retry_after_s: Wait at least this long before the next request.
    """

    kept_default = "drivers keep running with their last run specifications."
    hint_default = "start the control plane, or correct --api."

    def __init__(self, what: str, *, kept: str = "", hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.retry_after_s = retry_after_s


class ApiRejected(ClonosError):
    """The control plane rejects a request; it would reject the same request again.

    `what` is what happened, `kept` what was kept safe, `hint` what to do next.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, what: str, *, kept: str = "", hint: str = "", status: int = 0) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.status = status


class HostUnknown(ApiRejected):
    """The control plane has no such host: the agent must register again."""


class HostRemoved(ApiRejected):
    """A user removed the host: the agent must end its drivers."""


class AgentApi:
    """The REST routes that an agent uses, as methods; `host` is the host's id. Other arguments as for `Client`."""

    def __init__(self, url: str, token: AgentToken | None = None, ca: Path | None = None) -> None:
        if token is not None:
            refuse_plain_http(url)
        self._token = token
        self._http = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1/",
            timeout=_TIMEOUT,
            # A context costs time, and plain HTTP needs none. A scheme may be in upper case.
            verify=False if httpx.URL(url).scheme == "http" else tls_context(ca),
            # An agent and its control plane are in one network, without a proxy between them.
            trust_env=False,
            limits=httpx.Limits(max_connections=64, keepalive_expiry=60.0),
        )

    async def close(self) -> None:
        """Close all connections to the control plane."""
        await self._http.aclose()

    async def register(self, host: HostRegister) -> HostRegistered:
        """Register the host, instead of an earlier agent of the same name; returns its id and the lease's times."""
        return await self._request("POST", "hosts", HostRegistered, host)

    async def heartbeat(self, host: str, heartbeat: Heartbeat, *, timeout_s: float) -> HeartbeatResponse:
        """Renew the host's lease and report the state of all its runs; returns the host's work revision.

        Raises:
            HostUnknown: The agent must register again.
            AgentReplaced: A newer agent registered under the same name.
            HostRemoved: A user removed the host.
            ApiUnavailable: The control plane did not respond, or refuses requests at the moment.
        """
        return await self._request("POST", f"hosts/{host}/heartbeat", HeartbeatResponse, heartbeat, timeout=timeout_s)

    async def work(self, host: str, after: int, wait_s: float) -> Work:
        """Poll for the host's work; returns once `Work.revision` differs from `after`, or after `wait_s` seconds."""
        return await self._request(
            "GET",
            f"hosts/{host}/work",
            Work,
            params={"after": after, "wait_s": wait_s},
            timeout=httpx.Timeout(wait_s + _POLL_MARGIN_S, connect=3.0),
        )

    async def push(self, host: str, push: Push) -> PushResult:
        """Send events and log text of drivers; returns for each batch the offset stored so far, or the refusal."""
        return await self._request("POST", f"hosts/{host}/push", PushResult, push)

    async def task(self, host: str, task: str, result: TaskResult) -> None:
        """Report the result of the host task with the id `task`."""
        await self._send("POST", f"hosts/{host}/tasks/{task}", result)

    async def leave(self, host: str) -> None:
        """Report that the agent and its drivers exit: the control plane need not wait until the lease expires."""
        await self._send("POST", f"hosts/{host}/leave")

    async def own_token(self) -> Token:
        """Describe the agent's token: its lifetime."""
        return await self._request("GET", "tokens/self", Token)

    async def renew_token(self, *, overlap_s: int) -> TokenCreated:
        """Replace the agent's token; the old one remains valid for `overlap_s` seconds, or until it expires."""
        params = {"overlap_s": overlap_s, "renewal": "true"}
        return await self._request("POST", "tokens/self/rotate", TokenCreated, params=params)

    async def artifact(self, sha256: str) -> AsyncIterator[bytes]:
        """Download an artifact in pieces."""
        try:
            async with self._http.stream("GET", f"artifacts/{sha256}/content", headers=self._headers()) as response:
                if response.status_code != 200:
                    raise ArtifactUnavailable(
                        f"The artifact {sha256} cannot be downloaded: status {response.status_code}."
                    )
                async for piece in response.aiter_bytes(1 << 16):
                    yield piece
        except httpx.HTTPError as error:
            raise ArtifactUnavailable(f"The artifact {sha256} cannot be downloaded: {reason_of(error)}.") from error

    async def _request(
        self, method: str, path: str, kind: type[_M], body: BaseModel | None = None, **options: Any
    ) -> _M:
        response = await self._send(method, path, body, **options)
        try:
            return decode(kind, response.content)
        except ApiError as error:
            raise ApiUnavailable(f"{method} {path}: {error.what}") from error

    async def _send(self, method: str, path: str, body: BaseModel | None = None, **options: Any) -> httpx.Response:
        content = None if body is None else body.model_dump_json(by_alias=True, exclude_defaults=True)
        headers = {**self._headers(), **({"Content-Type": "application/json"} if content else {})}
        try:
            response = await self._http.request(method, path, content=content, headers=headers, **options)
        except httpx.HTTPError as error:
            raise ApiUnavailable(f"The control plane does not respond: {reason_of(error)}.") from error
        if response.is_success:
            return response
        raise _agent_error(response)

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token.text()}"}
        except SpecError as error:
            raise ApiUnavailable(error.what, hint=error.hint) from error  # a user may correct the file


def _agent_error(response: httpx.Response) -> ClonosError:
    """Return the error of a response, by what the agent must do about it."""
    error, status = error_of_response(response), response.status_code
    if isinstance(error, AgentReplaced):
        return error
    what = f"{response.request.method} {response.request.url.path}: {status} {error.what}"
    if status in RETRYABLE or status >= 500:
        return ApiUnavailable(what, retry_after_s=retry_after_s(response) or 0.0)
    if status in (401, 403):
        # A user may replace the token in its file; until then the drivers keep running.
        return ApiUnavailable(what, hint="put a valid token into the token file.")
    if status == 410:
        return HostRemoved(what, status=status)
    return (HostUnknown if status == 404 else ApiRejected)(what, status=status)
