"""Requests of one token at once: others wait, and other tokens do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from clonos.resources.service import Role
from clonos_api.auth.principal import Principal
from clonos_api.auth.rates import Buckets, Refusals
from clonos_api.auth.turns import Turns

pytestmark = pytest.mark.anyio


class Work:
    """An application whose responses begin, and end, when the test says so."""

    def __init__(self) -> None:
        self.running = 0
        self.may_begin, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        await self.may_begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.running -= 1
        await self.may_end.wait()
        await send({"type": "http.response.body"})


async def status(turns: Turns, token: str | None, role: Role = Role.VIEWER, method: str = "GET") -> int:
    statuses: list[int] = []

    async def receive() -> Message:
        raise AssertionError("the body is not read")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": method,
        "path": "/x",
        "clonos.principal": Principal(token, "ada", role, None, None),
    }
    await turns(scope, receive, send)
    return statuses[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_token_has_some_requests_at_once() -> None:
    work = Work()
    turns = Turns(work, at_once=2, wait_s=20)
    async with asyncio.TaskGroup() as group:
        own = [group.create_task(status(turns, "a")) for _ in range(5)]
        await until(lambda: work.running == 2)
        others = [group.create_task(status(turns, token)) for token in ("b", "c")]
        others += [group.create_task(status(turns, "agent", Role.AGENT)) for _ in range(5)]
        await until(lambda: work.running == 9)
        work.may_begin.set()
        await until(
            lambda: work.running == 0
        )  # all have begun: a response that continues, such as a stream, is not a request
        work.may_end.set()
    assert {task.result() for task in (*own, *others)} == {200}


async def test_the_first_refusals_of_a_caller_come_at_once() -> None:
    refusals = Refusals(rate=0.001, burst=3, slow_s=3600)
    async with asyncio.timeout(20):
        for _ in range(3):
            await refusals.pause("a")
        later = asyncio.create_task(refusals.pause("a"))
        await refusals.pause("b")
    assert not later.done()
    later.cancel()


async def test_slow_requests_have_turns_of_their_own() -> None:
    work = Work()
    turns = Turns(work, at_once=1, slow_at_once=2, slow_kind=lambda scope: scope["method"], wait_s=20)
    async with asyncio.TaskGroup() as group:
        for kind in ("upload", "analysis", ""):
            for _ in range(3):
                group.create_task(status(turns, "a", method=kind))
        await until(lambda: work.running == 2 + 2 + 1)
        work.may_begin.set()
        work.may_end.set()
    assert work.running == 0


def used_up(*tokens: str) -> Buckets:
    buckets = Buckets(rate=0.001, burst=10)
    for token in tokens:
        for _ in range(6):
            buckets.take(token)
    return buckets


async def test_a_token_that_sends_many_requests_comes_after_the_others() -> None:
    work = Work()
    turns = Turns(work, at_once=4, wait_s=60, people=used_up("many"), give_way_s=60, rest_s=0)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        few = group.create_task(status(turns, "few"))
        await until(lambda: work.running == 1)
        many = [group.create_task(status(turns, "many")) for _ in range(3)]
        also_few = group.create_task(status(turns, "few"))
        await until(lambda: work.running == 2)  # both of the token with precedence
        assert not any(task.done() for task in many)
        work.may_begin.set()
        work.may_end.set()
    assert {task.result() for task in (few, also_few, *many)} == {200}


async def test_giving_way_ends() -> None:
    """Others that are never idle delay the token, and do not stop it."""
    work = Work()
    turns = Turns(work, at_once=4, wait_s=60, people=used_up("many"), give_way_s=0.05)
    few = asyncio.create_task(status(turns, "few"))
    await until(lambda: work.running == 1)
    many = asyncio.create_task(status(turns, "many"))
    await until(lambda: work.running == 2)
    work.may_begin.set()
    work.may_end.set()
    assert await few == await many == 200


async def test_a_token_that_gave_way_rests() -> None:
    work = Work()
    work.may_begin.set()
    work.may_end.set()
    turns = Turns(work, at_once=4, wait_s=0.05, people=used_up("many"), rest_s=3600)
    assert await status(turns, "many") == await status(turns, "many") == 200, "alone, it need not rest"
    assert await status(turns, "few") == 200
    assert await status(turns, "many") == 200
    assert await status(turns, "many") == 429
    assert await status(turns, "few") == 200


async def test_nobody_gives_way_to_an_upload() -> None:
    work = Work()
    turns = Turns(
        work, at_once=4, wait_s=60, people=used_up("many"), give_way_s=3600, slow_kind=lambda scope: scope["method"]
    )
    upload = asyncio.create_task(status(turns, "few", method="upload"))
    await until(lambda: work.running == 1)
    many = asyncio.create_task(status(turns, "many", method=""))
    await until(lambda: work.running == 2)
    work.may_begin.set()
    work.may_end.set()
    assert await upload == await many == 200


async def test_a_request_does_not_wait_for_ever() -> None:
    work = Work()
    turns = Turns(work, at_once=1, wait_s=0.05)
    first = asyncio.create_task(status(turns, "a"))
    await until(lambda: work.running == 1)
    assert await status(turns, "a") == 429
    work.may_begin.set()
    work.may_end.set()
    assert await first == 200
    assert await status(turns, "a") == 200
