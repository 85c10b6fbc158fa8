"""What the demo saw from outside the job, and how it is read.

Nothing here comes from the job's own log: lines are what Kafka acknowledged to the producer, answers are what the
HTTP server wrote down before it sent them, and published records are what a reader got from the output topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    """Where a word stands in the source: the word numbered `nth` (from 0) of one record."""

    topic: str
    partition: int
    offset: int
    nth: int


@dataclass(frozen=True, slots=True)
class Line:
    """A source record that Kafka acknowledged to the producer."""

    topic: str
    partition: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the HTTP server answered under one id."""

    word: str
    banned: bool


@dataclass(frozen=True, slots=True)
class Published:
    """A record of an output topic; `arrived` is when the reader got it, in seconds of a monotonic clock."""

    topic: str
    partition: int
    offset: int
    value: bytes
    arrived: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict rests on."""

    lines: Sequence[Line] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    words: Sequence[Published] = ()
    samples: Sequence[Published] = ()
    totals: Sequence[Published] = ()


class Source(msgspec.Struct, frozen=True):
    """A word's place, as published."""

    topic: str
    partition: int
    offset: int
    index: int


class WordValue(msgspec.Struct, frozen=True):
    """The value of a record in ``words`` and ``sample``."""

    source: Source
    id: str
    word: str
    answer: str
    banned: bool
    sampled: bool
    at: int
    window: int
    epoch: int

    @property
    def place(self) -> Place:
        """The word's place in the source."""
        return Place(self.source.topic, self.source.partition, self.source.offset, self.source.index)


class TotalValue(msgspec.Struct, frozen=True):
    """The value of a record in ``totals``: how often `word` was said in `window` so far."""

    window: int
    word: str
    total: int
    epoch: int


class _OnlySource(msgspec.Struct, frozen=True):
    source: Source


_WORD = msgspec.json.Decoder(WordValue)
_TOTAL = msgspec.json.Decoder(TotalValue)
_SOURCE = msgspec.json.Decoder(_OnlySource)


def read_word(value: bytes) -> WordValue | None:
    """Decode a value of ``words`` or ``sample``; None if it cannot be read."""
    try:
        return _WORD.decode(value)
    except msgspec.MsgspecError:
        return None


def read_total(value: bytes) -> TotalValue | None:
    """Decode a value of ``totals``; None if it cannot be read."""
    try:
        return _TOTAL.decode(value)
    except msgspec.MsgspecError:
        return None


def read_place(value: bytes) -> Source | None:
    """Only the place of a published word, cheaply, for the live view."""
    try:
        return _SOURCE.decode(value).source
    except msgspec.MsgspecError:
        return None


def read_answers(record: Path) -> dict[str, Answer]:
    """Read the file in which the HTTP server wrote its answers."""
    answers: dict[str, Answer] = {}
    with record.open("rb") as file:
        for row in file:
            try:
                given = json.loads(row)
            except ValueError:
                continue  # the torn last line of a server that was killed; it never sent that answer
            answers[given["answer"]] = Answer(given["word"], given["banned"])
    return answers
