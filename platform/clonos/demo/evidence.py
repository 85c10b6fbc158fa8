"""What the demo saw from outside a job, and how it is read.

Nothing here comes from the job's own log: input is what Kafka acknowledged to the producer, answers are what the
HTTP server wrote down before it sent them, and published records are what a reader got from the output topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Answer = Mapping[str, Any]
"""One answer of the HTTP server, as it wrote it down."""


class Place(NamedTuple):
    """Where a result comes from: a source record, and what number of it (from 0) where it holds several."""

    topic: str
    partition: int
    offset: int
    nth: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """A source record that Kafka acknowledged to the producer."""

    topic: str
    partition: int
    offset: int
    value: bytes

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Published:
    """A record of an output topic.

    Attributes:
        arrived: When the reader got it, in seconds of the monotonic clock.
        written: When its producer made it, in seconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    value: bytes
    headers: Mapping[str, bytes] = field(default_factory=dict)
    arrived: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict rests on.

    Attributes:
        sent: The input.
        answers: What the HTTP server answered, by the unique id of each answer.
        outputs: The output, by the name of the parameter that names its topic.
    """

    sent: Sequence[Sent] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    outputs: Mapping[str, Sequence[Published]] = field(default_factory=dict)

    def output(self, name: str) -> Sequence[Published]:
        """The records of one output topic."""
        return self.outputs.get(name, ())


class Source(msgspec.Struct, frozen=True):
    """A `Place`, as published."""

    topic: str
    partition: int
    offset: int
    index: int = 0

    @property
    def place(self) -> Place:
        """The place."""
        return Place(self.topic, self.partition, self.offset, self.index)


class _OnlySource(msgspec.Struct, frozen=True):
    source: Source


_SOURCE = msgspec.json.Decoder(_OnlySource)


def read_place(value: bytes) -> Source | None:
    """Only the place of a published record, cheaply, for the live view."""
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
            answers[given["answer"]] = given
    return answers
