"""The checks that the checkers of all examples share.

A checker is pure (`Evidence` in, `Verdict` out), does not depend on Kafka or Spark, and computes the expected records
independently of the job:

- *duplicate*: the result of one source position, published twice;
- *lost*: an expected record that was never published;
- *order break*: in one output partition, a result of an older record follows a result of a newer one; this counts for
  results of the same source partition, or with a shuffle for results of the same source partition and key;
- *unreadable record*: a published record that cannot be decoded; it counts as a contradiction;
- *contradiction*: records that contradict each other, such as two results of one service call. Each example defines its
  own kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from clonos_demo.evidence import Published, SourcePosition, json_decoder

_FINDINGS_KEPT = 20


class Fault(StrEnum):
    """The kinds of faults in the output that every example can have."""

    DUPLICATE = "duplicate"  # the result of one source record was published twice
    LOST = "lost"  # an expected record was never published
    ORDER = "order break"  # a result of an older record follows a result of a newer one
    UNREADABLE = "unreadable record"  # a published record cannot be decoded


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in the output. `detail` names the record, so that a person can find it."""

    fault: StrEnum
    detail: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of records and faults, and some of the faults."""

    records_in: int  # number of source records
    expected: int  # number of records that the job had to publish
    published: int  # number of records that the job published
    duplicates: int
    lost: int
    order_breaks: int
    contradictions: int  # faults of all other kinds, unreadable records included
    # Number of expected records that are not published and of results that are not final; the demo waits for 0.
    pending: int
    findings: tuple[Finding, ...] = ()  # the first faults

    @property
    def clean(self) -> bool:
        """Whether no record was lost, duplicated, reordered or contradicted."""
        return not (self.duplicates or self.lost or self.order_breaks or self.contradictions)


@dataclass(slots=True)
class Findings:
    """Collects faults for a verdict. A fault that is not a duplicate, loss or order break counts as a contradiction."""

    counts: Counter[StrEnum] = field(default_factory=Counter)  # how often each fault occurred
    kept: list[Finding] = field(default_factory=list)  # the first faults

    def add(self, fault: StrEnum, detail: str, times: int = 1) -> None:
        """Count the fault `times` times; of all faults, the details of the first ones are stored."""
        self.counts[fault] += times
        if len(self.kept) < _FINDINGS_KEPT:
            self.kept.append(Finding(fault, detail))

    def verdict(self, *, records_in: int, expected: int, published: int, unfinished: int = 0) -> Verdict:
        """Return the verdict on all faults so far.

        Args:
            records_in: Number of source records.
            expected: Number of records that the job had to publish.
            published: Number of records that the job published.
            unfinished: Number of results whose final value is not published yet.
        """
        plain = (Fault.DUPLICATE, Fault.LOST, Fault.ORDER)
        return Verdict(
            records_in=records_in,
            expected=expected,
            published=published,
            duplicates=self.counts[Fault.DUPLICATE],
            lost=self.counts[Fault.LOST],
            order_breaks=self.counts[Fault.ORDER],
            contradictions=sum(times for fault, times in self.counts.items() if fault not in plain),
            pending=self.counts[Fault.LOST] + unfinished,
            findings=tuple(self.kept),
        )


class Positioned(Protocol):
    """A published value that names the source record from which the job computed it."""

    @property
    def position(self) -> SourcePosition:
        """The position of the source record."""


V = TypeVar("V")
P = TypeVar("P", bound=Positioned)


def where(record: Published) -> str:
    """Topic, partition and offset of a record as text, for a finding."""
    return f"{record.topic}[{record.partition}]@{record.offset}"


def readable(
    records: Sequence[Published], read: Callable[[Published], V | None], findings: Findings
) -> list[tuple[Published, V]]:
    """Decode the records with `read`, in the order of partitions and offsets; a record for which `read` returns None is
    a fault.
    """
    values = []
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        value = read(record)
        if value is None:
            findings.add(Fault.UNREADABLE, f"{where(record)}: {record.value[:80]!r}")
        else:
            values.append((record, value))
    return values


def json_record(kind: type[V]) -> Callable[[Published], V | None]:
    """Return a function for `readable` that decodes records whose value is JSON of this kind."""
    decode = json_decoder(kind)
    return lambda record: decode(record.value)


def once_in_order(
    kind: str,
    values: Iterable[tuple[Published, P]],
    findings: Findings,
    stream: Callable[[P], Hashable] = lambda _value: None,
) -> dict[SourcePosition, P]:
    """Check that no position of one kind of output occurs twice and that positions never go back; return the first
    value of each position.

    Args:
        kind: Name of the kind of records, for findings.
        values: Records and decoded values, sorted by partition and offset.
        findings: Receives the faults.
        stream: Maps a value to the part of its source partition whose order is kept, such as the key after a shuffle;
            default: the order of the whole source partition is kept.
    """
    seen: dict[SourcePosition, P] = {}
    last: dict[Hashable, SourcePosition] = {}
    for record, value in values:
        position = value.position
        if position in seen:
            findings.add(Fault.DUPLICATE, f"{kind} of {tuple(position)} again at {where(record)}")
        seen.setdefault(position, value)
        of = (record.partition, position.topic, position.partition, stream(value))
        if of in last and position <= last[of]:
            findings.add(Fault.ORDER, f"{kind}: {where(record)} goes back from {tuple(last[of])} to {tuple(position)}")
        last[of] = position
    return seen


def copies(
    kind: str,
    values: Sequence[tuple[Published, P]],
    originals: Mapping[SourcePosition, P],
    findings: Findings,
    fault: StrEnum,
    stream: Callable[[P], Hashable] = lambda _value: None,
) -> None:
    """Check a second output: it must repeat each value in `originals` once, in order, and have no other records.

    Args:
        kind: Name of the kind of records, for findings.
        values: Records and decoded values of the second output, sorted by partition and offset.
        originals: Source position → the value that the second output must repeat.
        findings: Receives the faults.
        fault: The fault of a value that differs from its original.
        stream: Maps a value to the part of its source partition whose order is kept; default: the whole partition.
    """
    seen = once_in_order(kind, values, findings, stream)
    for record, value in values:
        if originals.get(value.position) != value:
            findings.add(fault, f"{kind} of {tuple(value.position)} at {where(record)}")
    for position in originals.keys() - seen.keys():
        findings.add(Fault.LOST, f"{kind} of {tuple(position)}")
