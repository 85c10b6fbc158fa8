"""The records of the causal log: one versioned msgpack schema, a tagged union of structs.

A Kafka value is one version byte, then the msgpack map of a `Record`, whose field ``type`` names its kind.
Offsets are Kafka offsets; times are milliseconds since 1970. `docs/log.md` says what a change of the format requires.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
from msgspec.structs import replace

from clonos.errors import ForeignRecord, LogFormatUnsupported
from clonos.log.platform_identity import Platform

VERSION: Final = b"\x03"
_RESERVED_VERSIONS: Final = range(1, 9)  # control characters, which no text starts with


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the driver that writes a record: lineage, generation, and the random id of its claim.

    A *lineage* starts with the job's first claim, or with a deliberate start from an older point. The generation counts
    the claims of all lineages.
    """

    lineage: int
    generation: int
    claim_id: str

    def __str__(self) -> str:
        """For messages: ``1.3/35bffb44``, lineage, generation and the start of the claim id."""
        return f"{self.lineage}.{self.generation}/{self.claim_id[:8]}"


class EpochIdentity(msgspec.Struct, frozen=True):
    """One epoch of one query, and the owner that runs it."""

    job: str
    log_topic: str  # the job's causal log
    query: str  # the query's name, which is also the name of its sink
    epoch: int  # Spark's batch id
    owner: Owner
    replay: bool  # whether the log already held a plan of this epoch


class InputSlice(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The input of one sink partition of an epoch.

    It identifies the same input in a replay, which Spark's partition index alone does not.
    """

    # ``range``: a source range, `topic`, `partition`, `start`, `until`. ``hash``: hash partition `partition` of `until`
    # after a shuffle. ``task``: Spark's partition index, where the plan does not lead to a source; the verified order
    # of the scans gives it the same meaning in a replay. ``epoch``: all `until` partitions of the epoch in one lane.
    # ``live``: a lane of publisher `start` of a live epoch, which has `until` lanes.
    kind: str
    topic: str = ""
    partition: int = 0
    start: int = 0
    until: int = 0

    def __str__(self) -> str:
        """For messages: ``lines[2] 10..20`` or ``hash 3/8``."""
        if self.kind == "range":
            return f"{self.topic}[{self.partition}] {self.start}..{self.until}"
        if self.kind == "live":
            return f"steps of task {self.start}"
        if self.kind == "epoch":
            return f"all {self.until} partitions"
        return f"{self.kind} {self.partition}/{self.until}"


def whole_epoch(slices: tuple[InputSlice, ...]) -> tuple[InputSlice, ...]:
    """One input slice that stands for all partitions of an epoch, for a sink with one lane; empty for an epoch
    without partitions.
    """
    return (InputSlice("epoch", until=len(slices)),) if slices else ()


def show_scans(scans: tuple[tuple[InputSlice, ...], ...]) -> str:
    """Return the source ranges of an epoch (one tuple for each streaming source) as text, for error messages."""
    return " and ".join("[" + ", ".join(map(str, scan)) + "]" for scan in scans) or "nothing"


class Marker(msgspec.Struct, frozen=True, tag="marker", omit_defaults=True):
    """Proof that a lane of an epoch is published: the last record of the lane's transaction.

    `records` is the number of records of the lane, and `digest` their multiset digest (`clonos.RecordDigest`
    in Java), 16 bytes.
    """

    owner: Owner
    query: str
    epoch: int
    lane: int
    input_slice: InputSlice
    records: int
    digest: bytes
    # Of a live epoch, which is published in steps. In the order of their numbers, the lanes have the steps in turn.
    step: int = 0  # the step's number in the epoch, from 1; 0: the lane has one marker for the whole epoch
    total: int = 0  # number of records of the epoch's steps up to this one
    # Topic → partition → next offset of each source partition: what was read before it is published.
    next_offsets: dict[str, dict[int, int]] = {}
    time_ms: int = 0  # the step's time: no `clonos.now()` in its rows is later


class LaneAssignment(msgspec.Struct, frozen=True, array_like=True):
    """The assignment of a log partition to one lane of one sink."""

    sink: str
    lane: int
    partition: int


class Claim(msgspec.Struct, frozen=True, tag="claim", omit_defaults=True):
    """The record that makes a driver the owner of the log. It fences the earlier owners.

    A claim repeats the state before it, so that a reader needs only the newest claim or marker of a partition.
    """

    owner: Owner
    timestamp_ms: int
    marker: Marker | None = None  # on a lane's partition: the newest marker before this claim
    assignments: tuple[LaneAssignment, ...] = ()  # on control: all lanes of the job
    committed: dict[str, int] = {}  # on control: query → newest committed epoch
    follows: str = ""  # on control: the claim id of the owner before this one; empty in a first or renewed claim
    request_key: str = ""  # on control: the request key that the lineage was started with
    code: str = ""  # on control: hash of the owner's code
    code_parts: dict[str, str] = {}  # on control: the parts of that code, name → hash or version
    topic_ids: dict[str, str] = {}  # on control: topic → Kafka's id of it, for all topics of the lineage's plans
    dropped: tuple[str, ...] = ()  # on control: queries that the job had before, and dropped
    platform: Platform | None = None  # on control: the platform of the owner; None: an older version, or unknown


class AssignLanes(msgspec.Struct, frozen=True, tag="assign-lanes"):
    """A record of the control partition: log partitions are assigned to new lanes."""

    owner: Owner
    assignments: tuple[LaneAssignment, ...]


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """The plan of an epoch, committed to the control partition before the epoch's tasks start."""

    owner: Owner
    query: str
    epoch: int
    # Input of each lane, in Spark's task order; one slice for the whole epoch with ``atomic-epoch``.
    input_slices: tuple[InputSlice, ...]
    scans: tuple[tuple[InputSlice, ...], ...]  # source ranges of each streaming source, in Spark's task order
    log_partitions: tuple[int, ...]  # log partition of each lane, by lane number
    start_offsets: dict[int, int]  # log partition → an offset before which it holds no record of this epoch
    seed: int  # seed of the derived services, 63 bits
    code: str  # hash of the job's code
    offsets: str  # Spark's offset-log entry, verbatim
    timestamp_ms: int  # the epoch's timestamp as Spark logged it
    pins: dict[str, int] = {}  # Schema Registry request → schema id, for the requests of the job's definition
    delivery: str = "exactly-once"  # the sink's delivery mode
    # Topic → Kafka's id of it, for topics that are in no earlier record; or ``deleted ID``: it is not read any more.
    topic_ids: dict[str, str] = {}
    static_inputs: dict[str, str] = {}  # location of files that the query is joined with → their fingerprint
    finished_topics: frozenset[str] = frozenset()  # topics of a pattern that the epoch reads to the end
    # Whether the epoch is published in steps while its tasks read. Its ranges are empty, and `offsets` is the entry
    # before the epoch; once it has ended, its own.
    live: bool = False
    # Above 0: the epoch reads and publishes nothing; it repartitions the query's state into this many partitions.
    rescaled_to: int = 0

    @property
    def records(self) -> int:
        """Number of records that the epoch reads."""
        return self.records_by_topic.total()

    @property
    def records_by_topic(self) -> Counter[str]:
        """Topic → number of records that the epoch reads. A record that several scans read counts once."""
        counts: Counter[str] = Counter()
        ends: dict[tuple[str, int], int] = {}
        for part in sorted({part for scan in self.scans for part in scan}):
            key = (part.topic, part.partition)
            start = max(part.start, ends.get(key, part.start))
            counts[part.topic] += max(part.until - start, 0)
            ends[key] = max(part.until, ends.get(key, part.until))
        return counts


class Determinant(msgspec.Struct, frozen=True, array_like=True):
    """One recorded answer of a causal service."""

    key: bytes  # digest of service and arguments, 16 bytes
    value: bytes  # the answer as msgpack; the error's text where `failed`
    failed: bool = False
    service: str = ""  # the service's name, for people who read the log


class Determinants(msgspec.Struct, frozen=True, tag="determinants"):
    """A record with determinants of one task of one epoch.

    The record may be in any lane's partition. Kafka has acknowledged it, but it is in no transaction.
    """

    owner: Owner
    query: str
    epoch: int
    operator: str
    task: int
    determinants: tuple[Determinant, ...]


class EpochParts(msgspec.Struct, frozen=True, tag="epoch-parts"):
    """A record of the control partition: the parts of an epoch that a sink commits next.

    A replay commits these parts, and not those that it computes. It is written for targets that keep no marker.
    """

    owner: Owner
    query: str
    epoch: int
    payloads: tuple[bytes, ...]  # what the sink returned for each part
    records: int  # number of records of all parts
    digest: bytes  # multiset digest of the records, 16 bytes


class EpochCommitted(msgspec.Struct, frozen=True, tag="epoch-committed"):
    """A record of the control partition: all lanes of the epoch are published.

    It is committed before Spark writes ``commits/e``. `records` is the number of records of all lanes, and
    `duration_ms` the time that the driver spent on the epoch; 0: unknown.
    """

    owner: Owner
    query: str
    epoch: int
    records: int
    duration_ms: int = 0
    offsets: str = ""  # of a live epoch: the offset-log entry with its end


class Resolution(msgspec.Struct, frozen=True, tag="resolution"):
    """A record of the control partition: the user's decision about an epoch in doubt."""

    owner: Owner
    query: str
    epoch: int
    action: str  # ``new-code``: the epoch is replayed with changed code; or a `clonos.extend.sink.Decision`
    code: str  # hash of the code that the decision is for
    topic: str = ""  # for ``dead-letter``: the topic of the records
    decided_by: Owner | None = None  # in a renewed record: the owner that wrote the first one; else `owner` did


Record = Claim | AssignLanes | Plan | Determinants | Marker | EpochParts | EpochCommitted | Resolution

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Encode a record of the causal log as a Kafka value."""
    return VERSION + _encoder.encode(record)


def marker_head(marker: Marker) -> bytes:
    """Return a marker as a Kafka value without its last fields, the number of records and the digest.

    A lane's task appends them in Java (`clonos.LaneTask`), once it has computed its rows.
    """
    return encode(marker).removesuffix(
        _encoder.encode("records")
        + _encoder.encode(marker.records)
        + _encoder.encode("digest")
        + _encoder.encode(marker.digest)
    ) + _encoder.encode("records")


def step_head(marker: Marker) -> bytes:
    """Return a marker as a Kafka value without its fields from `records` on: `clonos.StepMarkers` appends them."""
    whole = replace(marker, records=0, digest=b"", step=1, total=1, next_offsets={"": {}}, time_ms=1)
    tail = {"records": 0, "digest": b"", "step": 1, "total": 1, "next_offsets": {"": {}}, "time_ms": 1}
    return encode(whole).removesuffix(_encoder.encode(tail)[1:])


def decode(value: bytes | None, *, where: str) -> Record:
    """Decode a Kafka value of the causal log; `where` is its position, for errors.

    Raises:
        LogFormatUnsupported: Another version of Clonos wrote the value.
        ForeignRecord: Clonos did not write the value.
    """
    if value is not None and _other_version(value):
        raise LogFormatUnsupported(
            f"{where} has version {value[0]} of the causal log's format; this Clonos reads version {VERSION[0]}."
        )
    try:
        if value is None or value[:1] != VERSION:
            raise ValueError("it does not start with a version")
        return _decoder.decode(memoryview(value)[1:])
    except (ValueError, msgspec.DecodeError) as error:
        raise ForeignRecord(f"{where} holds a record that Clonos did not write: {error}.") from error


def _other_version(value: bytes) -> bool:
    """Whether a Clonos with another log format wrote `value`; most other programs do not write such bytes."""
    if not value or value[0] in (0, VERSION[0]):
        return False
    if value[0] in _RESERVED_VERSIONS:
        return True
    try:
        return "type" in msgspec.msgpack.decode(memoryview(value)[1:], type=dict[str, msgspec.Raw])
    except (ValueError, msgspec.DecodeError):
        return False
