"""Which tokens were valid recently: requests with other ones are refused without the database, once they are many.

Only digests are kept. A token in this cache is still read from the store for each request, because it may be revoked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

_MAX_ENTRIES: Final = 10_000


class RecentTokens:
    """The ids of tokens that were valid on this replica, keyed by the digest of their text; the oldest are dropped."""

    def __init__(self, entries: int = _MAX_ENTRIES) -> None:
        self._entries = entries
        self._ids: OrderedDict[bytes, str] = OrderedDict()

    def find(self, presented: str) -> str | None:
        """Return the id of the token `presented`, if it was valid at its last use."""
        return self._ids.get(digest(presented))

    def remember(self, presented: str, token: str) -> None:
        """Note that the token `presented` with the id `token` is valid."""
        key = digest(presented)
        self._ids[key] = token
        self._ids.move_to_end(key)
        if len(self._ids) > self._entries:
            self._ids.popitem(last=False)

    def forget(self, presented: str) -> None:
        """Note that the token `presented` is not valid."""
        self._ids.pop(digest(presented), None)

    def __len__(self) -> int:
        return len(self._ids)


def digest(presented: str) -> bytes:
    """Return the key of a token in caches: the SHA-256 of its text."""
    return hashlib.sha256(presented.encode()).digest()
