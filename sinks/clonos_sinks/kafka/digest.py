"""A digest of a lane's output as a multiset: the same for the same records in any order."""

from __future__ import annotations

import msgspec
import xxhash

from clonos_sinks.kafka.rows import Row

_encode = msgspec.msgpack.Encoder().encode
_MODULUS = 1 << 128


class MultisetDigest:
    """Sum modulo 2^128 of a 128-bit hash of each record.

    A sum, unlike an exclusive or, does not lose records that appear twice. The hash (XXH3) is fast and
    not meant against an adversary: job authors are trusted.
    """

    def __init__(self) -> None:
        self._sum = 0
        self.records = 0

    def add(self, row: Row) -> None:
        """Take in one record, with all that a consumer can see of it; default timestamps are left out."""
        self._sum += xxhash.xxh3_128_intdigest(_encode(row))
        self.records += 1

    def value(self) -> bytes:
        """The digest so far, 16 bytes."""
        return (self._sum % _MODULUS).to_bytes(16, "big")
