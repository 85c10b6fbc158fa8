"""Wrong tokens cost few reads of all valid ones; a valid token is found at once, and a new one at the next read."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from clonos_api.auth import valid_tokens
from clonos_api.auth.valid_tokens import ValidTokens

SECRET = secrets.token_bytes(32)
TEXT = f"clonos_t1_{SECRET.hex()}"


class Store:
    def __init__(self) -> None:
        self.digests = {"t1": hashlib.sha256(SECRET).digest()}
        self.reads = 0
        self.duration_s = 0.0
        self.fails = False
        self.reading = False

    async def read(self) -> dict[str, bytes]:
        self.reads += 1
        read = dict(self.digests)
        self.reading = True
        await asyncio.sleep(self.duration_s)
        self.reading = False
        if self.fails:
            raise OSError("the database is away")
        return read


def wrong(token: str = "t1") -> str:
    return f"clonos_{token}_{secrets.token_hex(32)}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(valid_tokens, "_PAUSE_S", 0.1)
    return Store()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_many_wrong_tokens_share_a_read(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read)
        begun = time.monotonic()
        for _ in range(3):
            results = await asyncio.gather(*(valid.find(wrong(f"t{number}")) for number in range(500)))
            assert set(results) == {None}
        assert store.reads <= 1 + (time.monotonic() - begun) / 0.1
        assert store.reads <= 4
        assert [await valid.find(text) for text in ("", "clonos_t1", "clonos_t1_xyz", "other_t1_00")] == [None] * 4
        assert store.reads <= 4, "these are not tokens"

    run(scenario())


def test_a_valid_token_does_not_wait_for_wrong_ones(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read)
        assert await valid.find(TEXT) == "t1"
        store.duration_s = 0.5
        others = [asyncio.create_task(valid.find(wrong())) for _ in range(100)]
        await asyncio.sleep(0.15)
        assert await valid.find(TEXT) == "t1"
        assert not any(other.done() for other in others)
        assert set(await asyncio.gather(*others)) == {None}

    run(scenario())


def test_a_new_token_waits_for_the_next_read(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read)
        assert await valid.find(wrong()) is None
        new = secrets.token_bytes(32)
        store.digests["t2"] = hashlib.sha256(new).digest()
        assert await valid.find(f"clonos_t2_{new.hex()}") == "t2"

    run(scenario())


def test_a_forgotten_token_is_found_only_if_a_read_has_it(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read)
        assert await valid.find(TEXT) == "t1"
        del store.digests["t1"]
        assert await valid.find(TEXT) == "t1", "the store decides"
        valid.forget("t1")
        valid.forget("t1")
        assert await valid.find(TEXT) is None

    run(scenario())


def test_a_slow_store_ends_the_wait_and_keeps_what_was_read(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read, wait_s=0.2)
        assert await valid.find(TEXT) == "t1"
        store.duration_s = 1.0
        first = asyncio.create_task(valid.find(wrong()))
        await asyncio.sleep(0.15)
        assert await valid.find(wrong()) is None
        assert store.reading, "the wait ended before the read"
        assert await valid.find(TEXT) == "t1"
        assert await first is None

    run(scenario())


def test_a_failed_read_is_repeated_after_a_pause(store: Store) -> None:
    async def scenario() -> None:
        valid = ValidTokens(store.read, wait_s=0.25)
        store.fails = True
        results = await asyncio.gather(*(valid.find(wrong()) for _ in range(50)), return_exceptions=True)
        assert store.reads <= 5
        assert all(result is None or isinstance(result, OSError) for result in results)
        store.fails = False
        assert await valid.find(TEXT) == "t1"

    run(scenario())
