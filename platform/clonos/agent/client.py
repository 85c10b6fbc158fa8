"""The routes of the control plane that an agent uses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from clonos.errors import AgentReplaced, ArtifactUnavailable, ClonosError, EnvironmentFault
from clonos.resources.hosts import (
    AgentRegister,
    AgentRegistered,
    Heartbeat,
    HeartbeatAnswer,
    Pushes,
    PushesTaken,
    TaskResult,
    Work,
)

_M = TypeVar("_M", bound=BaseModel)
_TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)
_POLL_MARGIN_S: Final = 10.0
# What passes by itself.
_AWAY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class ApiAway(EnvironmentFault):
    """The control plane does not answer, or cannot for now."""

    retry = True
    kept_default = "drivers go on with the last orders."
    hint_default = "start the control plane, or correct --api."

    def __init__(self, what: str, *, kept: str = "", hint: str = "", after_s: float = 0.0) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.after_s = after_s


class ApiRefused(ClonosError):
    """The control plane refused a request; the same one will be refused again."""

    def __init__(self, what: str, *, kept: str = "", hint: str = "", status: int = 0) -> None:
        super().__init__(what, kept=kept, hint=hint)
        self.status = status


class AgentUnknown(ApiRefused):
    """The control plane does not know the agent (any more): it must register."""


class AgentRemoved(ApiRefused):
    """Somebody removed the host: its drivers are to end."""


class AgentApi:
    """A connection to the control plane.

    Args:
        url: Where it is.
        token_file: Holds the token.
        ca: Authorities to trust.
    """

    def __init__(self, url: str, token_file: Path | None = None, ca: Path | None = None) -> None:
        self._token_file = token_file
        self._http = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1/",
            timeout=_TIMEOUT,
            verify=ssl.create_default_context(cafile=ca),
            # An agent and its control plane are in one network: no proxy between them.
            trust_env=False,
            limits=httpx.Limits(max_connections=64, keepalive_expiry=60.0),
        )

    async def close(self) -> None:
        """End all connections."""
        await self._http.aclose()

    async def register(self, agent: AgentRegister) -> AgentRegistered:
        """Tell that an agent starts."""
        return await self._ask("POST", "agents", AgentRegistered, agent)

    async def heartbeat(self, agent: str, heartbeat: Heartbeat, *, timeout_s: float) -> HeartbeatAnswer:
        """Tell that it lives, and how its runs are.

        Args:
            agent: Its id.
            heartbeat: What it tells.
            timeout_s: So long the answer is waited for.

        Raises:
            AgentUnknown: It must register.
            AgentReplaced: A newer one has its name.
            AgentRemoved: The host was removed.
        """
        return await self._ask("POST", f"agents/{agent}/heartbeat", HeartbeatAnswer, heartbeat, timeout=timeout_s)

    async def work(self, agent: str, after: int, wait_s: float) -> Work:
        """What there is to do, as soon as its revision is another one than `after`; or after `wait_s`."""
        return await self._ask(
            "GET",
            f"agents/{agent}/work",
            Work,
            params={"after": after, "wait_s": wait_s},
            timeout=httpx.Timeout(wait_s + _POLL_MARGIN_S, connect=3.0),
        )

    async def push(self, agent: str, pushes: Pushes) -> PushesTaken:
        """Tell what drivers wrote; what became of each piece."""
        return await self._ask("POST", f"agents/{agent}/pushes", PushesTaken, pushes)

    async def task(self, agent: str, task: str, result: TaskResult) -> None:
        """Tell how a task went."""
        await self._send("POST", f"agents/{agent}/tasks/{task}", result)

    async def leave(self, agent: str) -> None:
        """Tell that the agent ends and its drivers with it."""
        await self._send("DELETE", f"agents/{agent}")

    async def artifact(self, sha256: str) -> AsyncIterator[bytes]:
        """The bytes of an artifact.

        Raises:
            ArtifactUnavailable: They cannot be had.
        """
        try:
            async with self._http.stream("GET", f"artifacts/{sha256}/content", headers=self._headers()) as answer:
                if answer.status_code != 200:
                    raise ArtifactUnavailable(f"The artifact {sha256} cannot be had: status {answer.status_code}.")
                async for piece in answer.aiter_bytes(1 << 16):
                    yield piece
        except httpx.HTTPError as error:
            raise ArtifactUnavailable(f"The artifact {sha256} cannot be had: {_said(error)}.") from error

    async def _ask(self, method: str, path: str, kind: type[_M], body: BaseModel | None = None, **how: Any) -> _M:
        answer = await self._send(method, path, body, **how)
        try:
            # A control plane is upgraded before its agents: what they do not know yet is left out.
            return kind.model_validate_json(answer.content, extra="ignore")
        except ValidationError as error:
            raise ApiAway(f"{method} {path} answered something else than a {kind.__name__}.") from error

    async def _send(self, method: str, path: str, body: BaseModel | None = None, **how: Any) -> httpx.Response:
        content = None if body is None else body.model_dump_json(by_alias=True, exclude_defaults=True)
        headers = {**self._headers(), **({"Content-Type": "application/json"} if content else {})}
        try:
            answer = await self._http.request(method, path, content=content, headers=headers, **how)
        except httpx.HTTPError as error:
            raise ApiAway(f"The control plane does not answer: {_said(error)}.") from error
        if answer.is_success:
            return answer
        raise _problem(method, path, answer)

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
        except OSError as error:
            raise ApiAway(f"The token file {self._token_file} cannot be read: {error.strerror}.") from error


def _problem(method: str, path: str, answer: httpx.Response) -> ClonosError:
    try:
        problem = answer.json()
        slug, detail = str(problem["type"]).rpartition("/")[2], str(problem.get("detail") or problem.get("title"))
    except (ValueError, KeyError, TypeError):
        slug, detail = "", answer.reason_phrase
    said = f"{method} {path}: {answer.status_code} {detail}"
    if slug == AgentReplaced.slug:
        return AgentReplaced("A newer agent has registered with the name of this one.")
    if answer.status_code in _AWAY:
        after = answer.headers.get("Retry-After", "")
        return ApiAway(said, after_s=float(after) if after.isdecimal() else 0.0)
    if answer.status_code in (401, 403):
        # A token may be replaced in its file; until then nothing here is to end.
        return ApiAway(said, hint="put a valid token into the token file.")
    if answer.status_code == 410:
        return AgentRemoved(said, status=410)
    return (AgentUnknown if answer.status_code == 404 else ApiRefused)(said, status=answer.status_code)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
