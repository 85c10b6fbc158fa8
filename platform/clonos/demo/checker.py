"""The verdict: what was published against what had to be, worked out without the job's help.

The checker is pure (`Evidence` in, `Verdict` out) and knows nothing of Kafka or Spark:

- *expected*: one record for each word of each acknowledged line, one sample record for each word published as
  sampled, one final total for each window and word that has published words that are not banned;
- *duplicate*: one source place published twice for one output kind, or a total published twice
  (same window, word and total, or same window, word and epoch);
- *lost*: an expected record that was never published;
- *order break*: within one output partition the places of one source partition, or the totals of one key, go back;
- *contradiction*: records that cannot all be true (`Fault` names each kind).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from clonos.demo.evidence import Evidence, Line, Place, Published, TotalValue, WordValue, read_total, read_word

_WORD = re.compile(r"[a-z']+")
_FINDINGS_KEPT = 20

Total = tuple[int, str]
"""A window (its start in milliseconds) and a word."""


class Fault(StrEnum):
    """What can be wrong with the output."""

    DUPLICATE = "duplicate"
    LOST = "lost"
    ORDER = "order break"
    UNREADABLE = "unreadable record"
    UNEXPECTED = "record for a word that is not in the source"
    UNKNOWN_ANSWER = "answer that the server never gave"
    OTHER_ANSWER = "answer that the server gave for another word or with another verdict"
    TWO_ANSWERS = "two answers for one word of one task and epoch"
    WRONG_TOTAL = "final total that is not the number of published words"
    SAMPLE_MISMATCH = "sample record that does not agree with its words record"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, with the words a person needs to look it up."""

    fault: Fault
    detail: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts, and the first few findings behind them.

    Attributes:
        pending: Expected records not there yet, and totals not final yet; zero once the output has settled.
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
class _Findings:
    counts: Counter[Fault] = field(default_factory=Counter)
    kept: list[Finding] = field(default_factory=list)

    def add(self, fault: Fault, detail: str, times: int = 1) -> None:
        self.counts[fault] += times
        if len(self.kept) < _FINDINGS_KEPT:
            self.kept.append(Finding(fault, detail))


def words_of(text: str) -> list[str]:
    """The words of a line: runs of letters and apostrophes, in lower case."""
    return _WORD.findall(text.lower())


def expected_words(lines: Iterable[Line]) -> dict[Place, str]:
    """Every word that must be published, by its place in the source."""
    return {
        Place(line.topic, line.partition, line.offset, index): word
        for line in lines
        for index, word in enumerate(words_of(line.text))
    }


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    found = _Findings()
    expected = expected_words(evidence.lines)
    words = _checked_words(evidence, expected, found)
    samples_expected, samples = _checked_samples(evidence, words, found)
    totals_expected, totals_published = _checked_totals(evidence, words, found)
    counts = found.counts
    contradictions = sum(
        times for fault, times in counts.items() if fault not in (Fault.DUPLICATE, Fault.LOST, Fault.ORDER)
    )
    return Verdict(
        records_in=len(evidence.lines),
        expected=len(expected) + samples_expected + totals_expected,
        published=len(evidence.words) + samples + totals_published,
        duplicates=counts[Fault.DUPLICATE],
        lost=counts[Fault.LOST],
        order_breaks=counts[Fault.ORDER],
        contradictions=contradictions,
        pending=counts[Fault.LOST] + counts[Fault.WRONG_TOTAL],
        findings=tuple(found.kept),
    )


def _in_log_order(records: Sequence[Published]) -> list[Published]:
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _readable(records: Sequence[Published], found: _Findings) -> Iterator[tuple[Published, WordValue]]:
    for record in _in_log_order(records):
        value = read_word(record.value)
        if value is None:
            found.add(Fault.UNREADABLE, f"{_where(record)}: {record.value[:80]!r}")
        else:
            yield record, value


def _where(record: Published) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"


def _placed_once(kind: str, values: Sequence[tuple[Published, WordValue]], found: _Findings) -> set[Place]:
    """Check duplicates and order of one output kind; return the places seen."""
    seen: set[Place] = set()
    last: dict[tuple[int, str, int], tuple[int, int]] = {}
    for record, value in values:
        place = value.place
        if place in seen:
            found.add(Fault.DUPLICATE, f"{kind} of {tuple(place)} again at {_where(record)}")
        seen.add(place)
        stream = (record.partition, place.topic, place.partition)
        position = (place.offset, place.nth)
        if stream in last and position <= last[stream]:
            found.add(Fault.ORDER, f"{_where(record)} goes back from {last[stream]} to {position}")
        last[stream] = position
    return seen


def _checked_words(evidence: Evidence, expected: dict[Place, str], found: _Findings) -> list[WordValue]:
    values = list(_readable(evidence.words, found))
    seen = _placed_once("words record", values, found)
    for place in expected.keys() - seen:
        found.add(Fault.LOST, f"word {expected[place]!r} of {tuple(place)}")
    answers_of: dict[tuple[str, int, int, str], set[str]] = defaultdict(set)
    for record, value in values:
        if expected.get(value.place) != value.word:
            found.add(Fault.UNEXPECTED, f"{value.word!r} of {tuple(value.place)} at {_where(record)}")
        _check_answer(evidence, record, value, found)
        # Within one task and epoch equal arguments share one call, so a second answer means that a
        # replay asked again. The task is named by what it reads: a topic partition.
        answers_of[value.place.topic, value.place.partition, value.epoch, value.word].add(value.answer)
    for (topic, partition, epoch, word), ids in answers_of.items():
        if len(ids) > 1:
            found.add(
                Fault.TWO_ANSWERS,
                f"{word!r} in epoch {epoch} of {topic}[{partition}]: {', '.join(sorted(ids))}",
                times=len(ids) - 1,
            )
    return [value for _, value in values]


def _check_answer(evidence: Evidence, record: Published, value: WordValue, found: _Findings) -> None:
    answer = evidence.answers.get(value.answer)
    if answer is None:
        found.add(Fault.UNKNOWN_ANSWER, f"{value.answer!r} for {value.word!r} at {_where(record)}")
    elif (answer.word, answer.banned) != (value.word, value.banned):
        found.add(Fault.OTHER_ANSWER, f"{value.answer!r} for {value.word!r} at {_where(record)}")


def _checked_samples(evidence: Evidence, words: Sequence[WordValue], found: _Findings) -> tuple[int, int]:
    """Check the sample; return how many records it must have and how many it has."""
    values = list(_readable(evidence.samples, found))
    seen = _placed_once("sample record", values, found)
    sampled: dict[Place, list[WordValue]] = defaultdict(list)
    for word in words:
        if word.sampled:
            sampled[word.place].append(word)
    for record, value in values:
        if value not in sampled.get(value.place, ()):
            found.add(Fault.SAMPLE_MISMATCH, f"{value.word!r} of {tuple(value.place)} at {_where(record)}")
    for place in sampled.keys() - seen:
        found.add(Fault.LOST, f"sample of {tuple(place)}")
    return len(sampled), len(evidence.samples)


def _checked_totals(evidence: Evidence, words: Sequence[WordValue], found: _Findings) -> tuple[int, int]:
    """Check the totals; return how many final ones there must be and how many there are, doubles included."""
    said: Counter[Total] = Counter((word.window, word.word) for word in words if not word.banned)
    final: dict[Total, TotalValue] = {}
    seen_totals: set[tuple[Total, int]] = set()
    seen_epochs: set[tuple[Total, int]] = set()
    doubled = 0
    for record in _in_log_order(evidence.totals):
        value = read_total(record.value)
        if value is None:
            found.add(Fault.UNREADABLE, f"{_where(record)}: {record.value[:80]!r}")
            continue
        key = (value.window, value.word)
        if (key, value.total) in seen_totals or (key, value.epoch) in seen_epochs:
            doubled += 1
            found.add(Fault.DUPLICATE, f"total of {key} in epoch {value.epoch} again at {_where(record)}")
        seen_totals.add((key, value.total))
        seen_epochs.add((key, value.epoch))
        if key in final and value.total < final[key].total:
            found.add(Fault.ORDER, f"total of {key} goes back from {final[key].total} to {value.total}")
        final[key] = value
    for key in said.keys() | final.keys():
        if key not in final:
            found.add(Fault.LOST, f"total of {key}")
        elif final[key].total != said[key]:
            found.add(Fault.WRONG_TOTAL, f"{key}: total {final[key].total}, published words {said[key]}")
    return len(said), len(final) + doubled
