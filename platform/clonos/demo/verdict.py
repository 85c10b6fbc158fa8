"""What every example's verdict is made of.

A checker is pure (`Evidence` in, `Verdict` out), knows nothing of Kafka or Spark, and works out without the job's
help what had to be published:

- *duplicate*: one source place published twice for one output kind;
- *lost*: an expected record that was never published;
- *order break*: within one stream of an output partition the places go back;
- *contradiction*: records that cannot all be true. Each example has an enumeration of its own for these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from clonos.demo.evidence import Place, Published

_FINDINGS_KEPT = 20


class Fault(StrEnum):
    """What can be wrong with the output of any example."""

    DUPLICATE = "duplicate"
    LOST = "lost"
    ORDER = "order break"
    UNREADABLE = "unreadable record"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, with the words a person needs to look it up."""

    fault: StrEnum
    detail: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts, and the first few findings behind them.

    Attributes:
        pending: Expected records not there yet, and results not final yet; zero once the output has settled.
    """

    records_in: int
    expected: int
    published: int
    duplicates: int
    lost: int
    order_breaks: int
    contradictions: int
    pending: int
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled, reordered or contradicted."""
        return not (self.duplicates or self.lost or self.order_breaks or self.contradictions)


@dataclass(slots=True)
class Findings:
    """Collects faults. What is no duplicate, loss or order break is a contradiction."""

    counts: Counter[StrEnum] = field(default_factory=Counter)
    kept: list[Finding] = field(default_factory=list)

    def add(self, fault: StrEnum, detail: str, times: int = 1) -> None:
        """One more."""
        self.counts[fault] += times
        if len(self.kept) < _FINDINGS_KEPT:
            self.kept.append(Finding(fault, detail))

    def verdict(self, *, records_in: int, expected: int, published: int, unfinished: int = 0) -> Verdict:
        """The verdict.

        Args:
            records_in: Source records.
            expected: Records that had to be published.
            published: Records that were.
            unfinished: Results that are not lost but have not their final value.
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


class Placed(Protocol):
    """A published value that says where it comes from."""

    @property
    def place(self) -> Place:
        """Where it comes from."""


V = TypeVar("V")
P = TypeVar("P", bound=Placed)


def in_log_order(records: Sequence[Published]) -> list[Published]:
    """Partition by partition, in the order of offsets."""
    return sorted(records, key=lambda record: (record.partition, record.offset))


def where(record: Published) -> str:
    """A record, for a finding."""
    return f"{record.topic}[{record.partition}]@{record.offset}"


def readable(
    records: Sequence[Published], read: Callable[[Published], V | None], found: Findings
) -> list[tuple[Published, V]]:
    """The records in log order with what `read` made of them; those it gives None for are faults."""
    values = []
    for record in in_log_order(records):
        value = read(record)
        if value is None:
            found.add(Fault.UNREADABLE, f"{where(record)}: {record.value[:80]!r}")
        else:
            values.append((record, value))
    return values


def once_in_order(
    kind: str,
    values: Iterable[tuple[Published, P]],
    found: Findings,
    stream: Callable[[P], Hashable] = lambda _value: None,
) -> dict[Place, P]:
    """Check duplicates and order of one output kind; return the first value of each place.

    Args:
        kind: What the records are called.
        values: In log order.
        found: Gets the faults.
        stream: What has an order of its own within a source partition, such as a key after a shuffle.
    """
    seen: dict[Place, P] = {}
    last: dict[Hashable, Place] = {}
    for record, value in values:
        place = value.place
        if place in seen:
            found.add(Fault.DUPLICATE, f"{kind} of {tuple(place)} again at {where(record)}")
        seen.setdefault(place, value)
        of = (record.partition, place.topic, place.partition, stream(value))
        if of in last and place <= last[of]:
            found.add(Fault.ORDER, f"{kind}: {where(record)} goes back from {tuple(last[of])} to {tuple(place)}")
        last[of] = place
    return seen


def copies(
    kind: str,
    values: Sequence[tuple[Published, P]],
    originals: Mapping[Place, P],
    found: Findings,
    fault: StrEnum,
    stream: Callable[[P], Hashable] = lambda _value: None,
) -> None:
    """Check records that repeat some others word for word, such as a sample: all of `originals`, and no more."""
    seen = once_in_order(kind, values, found, stream)
    for record, value in values:
        if originals.get(value.place) != value:
            found.add(fault, f"{kind} of {tuple(value.place)} at {where(record)}")
    for place in originals.keys() - seen.keys():
        found.add(Fault.LOST, f"{kind} of {tuple(place)}")
