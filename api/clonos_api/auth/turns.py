"""Requests in progress at once: how many of one token, and whose begin first."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.auth.rates import Buckets, too_many
from clonos_api.http.problems import problem_response

_RECENT_S: Final = 1.0


class SharedTurns:
    """At most `at_once` holders of a key at once; others wait in order. Keys without holders take no memory."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Semaphore:
        """Return the turns of a key; keep the object while it is used."""
        turns = self._turns.get(key)
        if turns is None:
            turns = self._turns[key] = asyncio.Semaphore(self.at_once)
        return turns


class Precedence:
    """Requests of tokens that use most of their burst come after requests of other tokens.

    They begin when no request of the others is in progress, or after `longest_s` seconds. As in a fair scheduler, the
    least used comes first: ten users notice little of a script that sends as many requests as it may.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._in_progress = 0
        self._none_in_progress = asyncio.Event()
        self._none_in_progress.set()
        self._newest_at = -math.inf

    @property
    def has_others(self) -> bool:
        """Whether a request with precedence began within the last second."""
        return time.monotonic() < self._newest_at + _RECENT_S

    def begin(self) -> None:
        """Record that a request with precedence begins."""
        self._in_progress += 1
        self._newest_at = time.monotonic()
        self._none_in_progress.clear()

    def end(self) -> None:
        """Record that a request with precedence ends."""
        self._in_progress -= 1
        if not self._in_progress:
            self._none_in_progress.set()

    async def give_way(self) -> None:
        """Wait until no request with precedence is in progress."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._longest_s):
                await self._none_in_progress.wait()


class Turns:
    """Middleware after `RateLimits`: a token has `at_once` requests in progress; others wait, at most `wait_s` seconds.

    A request is in progress until its response begins: event streams do not count. Requests of one token then cannot
    take all connections to the database. Requests of agents, which poll, and without a token are not limited.

    A token that has used most of its burst (`people`) gives way to the others (`Precedence`). Beside them it has one
    request in progress, and rests `rest_s` seconds after each.

    Slow requests have turns of their own, `slow_at_once` for each kind that `slow_kind` names: they take disk and time
    of other writers, and no other requests wait for them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        at_once: int,
        slow_at_once: int = 1,
        slow_kind: Callable[[Scope], str] = lambda _: "",
        wait_s: float = 10.0,
        people: Buckets | None = None,
        give_way_s: float = 0.5,
        rest_s: float = 0.1,
    ) -> None:
        self._app = app
        self._turns = SharedTurns(at_once)
        self._slow_turns = SharedTurns(slow_at_once)
        self._slow_kind = slow_kind
        self._wait_s = wait_s
        self._people = people
        self._precedence = Precedence(give_way_s)
        self._low_turns = SharedTurns(1)
        self._rest_s = rest_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        principal = scope.get("clonos.principal")
        if not isinstance(principal, Principal) or principal.token is None or principal.role is Role.AGENT:
            await self._app(scope, receive, send)
            return
        kind = self._slow_kind(scope)
        low = self._people is not None and self._people.is_low(principal.token)
        first = not low and not kind
        shared = self._slow_turns if kind else self._low_turns if low else self._turns
        turns = shared.of(f"{kind} {principal.token}")
        try:
            async with asyncio.timeout(self._wait_s):
                await turns.acquire()
        except TimeoutError:
            error, headers = too_many(f"This token has {shared.at_once} such requests in progress.", 1)
            await problem_response(error, instance=scope["path"], headers=headers)(scope, receive, send)
            return
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                if first:
                    self._precedence.end()
                if low and self._precedence.has_others:
                    asyncio.get_running_loop().call_later(self._rest_s, turns.release)
                else:
                    turns.release()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                begin()
            await send(message)

        if first:
            self._precedence.begin()
        try:
            if low:
                await self._precedence.give_way()
            await self._app(scope, receive, sending)
        finally:
            begin()
