"""Which tokens are valid, for callers whose address has too many failures.

Their tokens are not looked up one by one: any number of wrong ones would be as many queries. But after a restart of
this replica also valid ones are unknown, and a caller with wrong tokens must not lock out others of its address. So the
replica reads the ids and hashes of all valid tokens at once, and rarely.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from clonos_api.store.tokens import parse

_PAUSE_S: Final = 0.5  # between two reads
_LONGEST_PAUSE_S: Final = 10.0
_SHARE: Final = 20  # reads take at most a twentieth of the time
_WAIT_S: Final = 5.0


class ValidTokens:
    """The hashes of all valid tokens, as they were at the newest read.

    Args:
        read: Returns the hash of each valid token's secret by the token's id, from the store.
        wait_s: Maximum wait for the reads of others.
    """

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, bytes]]], *, wait_s: float = _WAIT_S) -> None:
        self._read = read
        self._wait_s = wait_s
        self._digests: dict[str, bytes] = {}
        self._turn = asyncio.Lock()
        self._began_at = float("-inf")  # when the newest complete read began
        self._next_at = float("-inf")

    async def find(self, presented: str) -> str | None:
        """Return the id of the token `presented`, if it was valid at the newest read; otherwise at the next one.

        A token that was created a moment ago waits for that read. If it does not begin in time, the result is None.
        """
        parsed = parse(presented)
        if parsed is None:
            return None
        if not self._has(*parsed):
            await self._read_after(time.monotonic())
        return parsed[0] if self._has(*parsed) else None

    def forget(self, token: str) -> None:
        """Note that the token with the id `token` is no longer valid: it costs one look-up, not one per request."""
        self._digests.pop(token, None)

    def _has(self, token: str, digest: bytes) -> bool:
        known = self._digests.get(token)
        return known is not None and hmac.compare_digest(known, digest)

    async def _read_after(self, asked_at: float) -> None:
        """Read the tokens, unless another caller began to after `asked_at`."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turn.acquire()
        except TimeoutError:
            return
        try:
            if self._began_at > asked_at:
                return
            await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
            began_at = time.monotonic()
            try:
                self._digests = dict(await self._read())
                self._began_at = began_at
            finally:
                duration = time.monotonic() - began_at
                self._next_at = time.monotonic() + min(max(_PAUSE_S, _SHARE * duration), _LONGEST_PAUSE_S)
        finally:
            self._turn.release()
