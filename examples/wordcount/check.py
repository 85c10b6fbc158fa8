"""Checker of this example: judges a run of the demo by the published records.

- *expected*: one record for each word of each acknowledged line, one sample record for each word published as
  sampled, one final total for each window and word that has published words that are not banned;
- *duplicate*, besides a position published twice: a total published twice (same window, word and total, or same
  window, word and epoch);
- *order break*, besides positions that go back: a total that does.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from clonos_demo.evidence import Evidence, Published, Sent, Sourced, SourcePosition
from clonos_demo.example import Example
from clonos_demo.verdict import Fault, Findings, Verdict, copies, json_record, once_in_order, readable, where

_WORD = re.compile(r"[a-z']+")

Total = tuple[int, str]
"""A window (its start in milliseconds) and a word."""


class Contradiction(StrEnum):
    """What cannot be."""

    UNEXPECTED = "record for a word that is not in the source"
    UNKNOWN_ANSWER = "answer that the server never gave"
    OTHER_ANSWER = "answer that the server gave for another word or with another verdict"
    TWO_ANSWERS = "two answers for one word of one task and epoch"
    WRONG_TOTAL = "final total that is not the number of published words"
    SAMPLE_MISMATCH = "sample record that does not agree with its words record"


class WordValue(Sourced, frozen=True):
    """The value of a record in ``words`` and ``sample``."""

    id: str
    word: str
    answer: str
    banned: bool
    sampled: bool
    at: int
    window: int
    epoch: int


class TotalValue(msgspec.Struct, frozen=True):
    """The value of a record in ``totals``: how often `word` was said in `window` so far."""

    window: int
    word: str
    total: int
    epoch: int


_read_word = json_record(WordValue)
_read_total = json_record(TotalValue)


def words_of(text: str) -> list[str]:
    """The words of a line: runs of letters and apostrophes, in lower case."""
    return _WORD.findall(text.lower())


def expected_words(lines: Iterable[Sent]) -> dict[SourcePosition, str]:
    """Every word that must be published, by its position in the source."""
    return {
        line.position._replace(nth=index): word
        for line in lines
        for index, word in enumerate(words_of(line.value.decode()))
    }


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    findings = Findings()
    expected = expected_words(evidence.sent)
    words = _checked_words(evidence, expected, findings)
    sampled = {word.position: word for word in words if word.sampled}
    samples = readable(evidence.output("sample"), _read_word, findings)
    copies("sample record", samples, sampled, findings, Contradiction.SAMPLE_MISMATCH)
    totals_expected, totals_published = _checked_totals(evidence, words, findings)
    return findings.verdict(
        records_in=len(evidence.sent),
        expected=len(expected) + len(sampled) + totals_expected,
        published=len(evidence.output("words")) + len(evidence.output("sample")) + totals_published,
        unfinished=findings.counts[Contradiction.WRONG_TOTAL],
    )


def _checked_words(evidence: Evidence, expected: Mapping[SourcePosition, str], findings: Findings) -> list[WordValue]:
    values = readable(evidence.output("words"), _read_word, findings)
    seen = once_in_order("words record", values, findings)
    for position in expected.keys() - seen.keys():
        findings.add(Fault.LOST, f"word {expected[position]!r} of {tuple(position)}")
    answers_of: dict[tuple[str, int, int, str], set[str]] = defaultdict(set)
    for record, value in values:
        if expected.get(value.position) != value.word:
            findings.add(Contradiction.UNEXPECTED, f"{value.word!r} of {tuple(value.position)} at {where(record)}")
        _check_answer(evidence, record, value, findings)
        # Within one task and epoch equal arguments share one call, so a second answer means that a
        # replay asked again. Its topic partition identifies the task.
        answers_of[value.position.topic, value.position.partition, value.epoch, value.word].add(value.answer)
    for (topic, partition, epoch, word), ids in answers_of.items():
        if len(ids) > 1:
            findings.add(
                Contradiction.TWO_ANSWERS,
                f"{word!r} in epoch {epoch} of {topic}[{partition}]: {', '.join(sorted(ids))}",
                times=len(ids) - 1,
            )
    return [value for _, value in values]


def _check_answer(evidence: Evidence, record: Published, value: WordValue, findings: Findings) -> None:
    answer = evidence.answers.get(value.answer)
    if answer is None:
        findings.add(Contradiction.UNKNOWN_ANSWER, f"{value.answer!r} for {value.word!r} at {where(record)}")
    elif (answer["word"], answer["banned"]) != (value.word, value.banned):
        findings.add(Contradiction.OTHER_ANSWER, f"{value.answer!r} for {value.word!r} at {where(record)}")


def _checked_totals(evidence: Evidence, words: Sequence[WordValue], findings: Findings) -> tuple[int, int]:
    """Check the totals; return how many final ones there must be and how many there are, doubles included."""
    said: Counter[Total] = Counter((word.window, word.word) for word in words if not word.banned)
    final: dict[Total, TotalValue] = {}
    seen_totals: set[tuple[Total, int]] = set()
    seen_epochs: set[tuple[Total, int]] = set()
    doubled = 0
    for record, value in readable(evidence.output("totals"), _read_total, findings):
        key = (value.window, value.word)
        if (key, value.total) in seen_totals or (key, value.epoch) in seen_epochs:
            doubled += 1
            findings.add(Fault.DUPLICATE, f"total of {key} in epoch {value.epoch} again at {where(record)}")
        seen_totals.add((key, value.total))
        seen_epochs.add((key, value.epoch))
        if key in final and value.total < final[key].total:
            findings.add(Fault.ORDER, f"total of {key} goes back from {final[key].total} to {value.total}")
        final[key] = value
    for key in said.keys() | final.keys():
        if key not in final:
            findings.add(Fault.LOST, f"total of {key}")
        elif final[key].total != said[key]:
            findings.add(Contradiction.WRONG_TOTAL, f"{key}: total {final[key].total}, published words {said[key]}")
    return len(said), len(final) + doubled


EXAMPLE = Example(
    name="wordcount",
    source="lines",
    outputs=("words", "sample", "totals"),
    check=check,
    server="answers.py",
    plain="clonos_demo.plain",
)
