"""What the causal log holds: one versioned msgpack schema, a tagged union of records.

A Kafka record's value is one version byte followed by the msgpack encoding of a `Record`.
Offsets are Kafka offsets, times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from clonos.errors import CausalLogDamaged, ForeignRecord

VERSION: Final = b"\x01"
_NEWEST_VERSION: Final = b"\x08"  # below any printable character


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Who wrote a record: lineage, generation within it, and the random id of one driver's claim.

    A *lineage* starts with a job, or with a deliberate restore from an older point.
    """

    lineage: int
    generation: int
    driver: str

    def newer_than(self, other: Owner) -> bool:
        """Whether this owner's claim came after `other`'s."""
        return (self.lineage, self.generation) > (other.lineage, other.generation)

    def __str__(self) -> str:
        """Lineage, generation and the start of the driver id, for messages."""
        return f"{self.lineage}.{self.generation}/{self.driver[:8]}"


class Held(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What one sink partition of an epoch is made of, independent of Spark's partition index.

    `kind` is ``range`` (a source range: topic, partition, offsets), ``hash`` (after a shuffle: `partition`
    of `until` hash partitions), ``task`` (Spark's own index, where the plan does not lead
    to a source; the verified order of the scans makes it mean the same in a replay) or ``epoch`` (all
    `until` partitions of the epoch in one lane).
    """

    kind: str
    topic: str = ""
    partition: int = 0
    start: int = 0
    until: int = 0

    def __str__(self) -> str:
        """One word for messages: ``lines[2] 10..20`` or ``hash 3/8``."""
        if self.kind == "range":
            return f"{self.topic}[{self.partition}] {self.start}..{self.until}"
        if self.kind == "epoch":
            return f"all {self.until} partitions"
        return f"{self.kind} {self.partition}/{self.until}"


def whole_epoch(held: tuple[Held, ...]) -> tuple[Held, ...]:
    """One lane made of all partitions of an epoch; none of none."""
    return (Held("epoch", until=len(held)),) if held else ()


class Marker(msgspec.Struct, frozen=True, tag="marker", omit_defaults=True):
    """A lane's part of an epoch is published: the last data record of its transaction.

    `digest` is that of the output as a multiset (`clonos.lanes.MultisetDigest`), 16 bytes.
    """

    owner: Owner
    query: str
    epoch: int
    lane: int
    held: Held
    records: int
    digest: bytes


class Allotment(msgspec.Struct, frozen=True, array_like=True):
    """One lane of one sink owns one partition of the log."""

    sink: str
    lane: int
    partition: int


class Claim(msgspec.Struct, frozen=True, tag="claim", omit_defaults=True):
    """A new owner takes over from here.

    On control it repeats the allotments, the newest ended epoch of each query and the key of the wish that the
    lineage came from, and names the driver whose claim it follows; on a lane it repeats the newest marker it stands
    on, so that one tail record tells all.
    """

    owner: Owner
    at: int
    marker: Marker | None = None
    allotments: tuple[Allotment, ...] = ()
    ended: dict[str, int] = {}
    after: str = ""
    wish: str = ""


class Allot(msgspec.Struct, frozen=True, tag="allot"):
    """New lanes got partitions (control)."""

    owner: Owner
    allotments: tuple[Allotment, ...]


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """What an epoch will do, committed before its tasks start (control).

    Attributes:
        held: What each sink partition is made of, in Spark's task order (one for all in ``atomic-epoch``).
        scans: Per streaming scan of the epoch, its source ranges in task order.
        partitions: The log partition of each lane, by lane.
        since: Per log partition an offset before which nothing of this epoch can be.
        seed: Seed of the derived services, 64 bits.
        code: Hash of the job's code.
        offsets: Spark's own offset-log entry, verbatim.
        at: The epoch's timestamp as Spark logged it.
        pins: What the job asked of Schema Registries when it was defined: question → schema id.
        delivery: The sink's promise when the epoch was planned.
    """

    owner: Owner
    query: str
    epoch: int
    held: tuple[Held, ...]
    scans: tuple[tuple[Held, ...], ...]
    partitions: tuple[int, ...]
    since: dict[int, int]
    seed: int
    code: str
    offsets: str
    at: int
    pins: dict[str, int] = {}
    delivery: str = "exactly-once"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One determinant: what a causal service answered.

    `key` is the 16-byte digest of service and arguments; `value` the msgpack-encoded answer, or an error's
    text where `failed`; `service` its name, for human readers (none in older records).
    """

    key: bytes
    value: bytes
    failed: bool = False
    service: str = ""


class Determinants(msgspec.Struct, frozen=True, tag="determinants"):
    """Determinants of one task of one epoch (any lane partition; acknowledged, not transactional)."""

    owner: Owner
    query: str
    epoch: int
    operator: str
    task: int
    entries: tuple[Entry, ...]


class End(msgspec.Struct, frozen=True, tag="end"):
    """All lanes of the epoch are published; committed before Spark writes ``commits/e`` (control)."""

    owner: Owner
    query: str
    epoch: int
    records: int


class Resolution(msgspec.Struct, frozen=True, tag="resolution"):
    """A user's explicit word about an epoch in doubt (control): ``new-code`` replays it with changed code."""

    owner: Owner
    query: str
    epoch: int
    action: str
    code: str


Record = Claim | Allot | Plan | Determinants | Marker | End | Resolution

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The bytes of `record` as a Kafka value."""
    return VERSION + _encoder.encode(record)


def decode(value: bytes | None, *, where: str) -> Record:
    """The record in a Kafka value; `where` names it in errors.

    Raises:
        ForeignRecord: Not one of ours.
        CausalLogDamaged: It looks like one of a newer version.
    """
    if value is not None and VERSION < value[:1] <= _NEWEST_VERSION:
        raise CausalLogDamaged(
            f"{where} is in version {value[0]} of the log's format, this Clonos knows version {VERSION[0]}.",
            hint="run the job with the version of Clonos that wrote it.",
        )
    try:
        if value is None or value[:1] != VERSION:
            raise ValueError("it does not start with a version")
        return _decoder.decode(memoryview(value)[1:])
    except (ValueError, msgspec.DecodeError) as error:
        raise ForeignRecord(f"{where} holds a record that Clonos did not write: {error}.") from error
