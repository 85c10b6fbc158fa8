"""The sum of the hashes of some records: it does not depend on their order, and sums can be added and subtracted.

The sum is the second half of `clonos.RecordDigest` (Java): it covers topic, key, value and headers. It leaves out
partition and timestamp, because a reader cannot see whether a row or Kafka chose them. Incremental hashes of multisets:
Clarke et al., ASIACRYPT 2003. XXH64 does not resist an adversary: who may write to the output topic could forge records
with an equal sum.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import xxhash
from confluent_kafka import Message

_SEED: Final = 0x9E3779B97F4A7C15
_MODULUS: Final = 1 << 64
_NOTHING: Final = struct.pack("<i", -1)


class Sum(NamedTuple):
    """The number of some records, and the sum of the hashes of their contents."""

    records: int = 0
    digest: int = 0

    def plus(self, other: Sum) -> Sum:
        """Return the sum of two multisets."""
        return Sum(self.records + other.records, (self.digest + other.digest) % _MODULUS)

    def minus(self, other: Sum) -> Sum:
        """Return the distance from another multiset."""
        return Sum(self.records - other.records, (self.digest - other.digest) % _MODULUS)


def content_hash(message: Message) -> int:
    """Return the hash of a record's topic, key, value and headers."""
    state = _field(message.topic(), _SEED)
    state = _field(message.value(), _field(message.key(), state))
    for header in message.headers() or []:
        state = _field(header[1], _field(header[0], state))
    return state


def _field(data: bytes | str | None, seed: int) -> int:
    """Return the hash of one field: its length, then its bytes."""
    if data is None:
        return xxhash.xxh64_intdigest(_NOTHING, seed)
    raw = data.encode() if isinstance(data, str) else data
    return xxhash.xxh64_intdigest(raw, xxhash.xxh64_intdigest(struct.pack("<i", len(raw)), seed))
