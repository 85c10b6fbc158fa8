"""The evidence for a verdict, all of it from outside the job: input, answers of the HTTP server, and published records.

Input is what Kafka acknowledged to the producer. Answers are what the HTTP server recorded before it sent them.
Published records are what a read_committed reader received from the output topics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

Answer = Mapping[str, Any]
"""One answer of the HTTP server, as it wrote it down."""


class SourcePosition(NamedTuple):
    """The position of the source record from which a job computed a result."""

    topic: str
    partition: int
    offset: int
    nth: int = 0  # number of the result among the results of the same record, from 0


@dataclass(frozen=True, slots=True)
class Sent:
    """An input record that Kafka acknowledged to the demo's producer."""

    topic: str
    partition: int
    offset: int
    value: bytes
    at: float = 0.0  # time when it was sent, in seconds of the monotonic clock

    @property
    def position(self) -> SourcePosition:
        """The position of this record, as a job's results name it."""
        return SourcePosition(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Published:
    """A record that a read_committed reader received from an output topic."""

    topic: str
    partition: int
    offset: int
    value: bytes
    headers: Mapping[str, bytes] = field(default_factory=dict)
    arrived: float = 0.0  # time when the reader received the record, in seconds of the monotonic clock
    written: float = 0.0  # Kafka's timestamp of the record, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a verdict is computed from."""

    sent: Sequence[Sent] = ()  # the input records
    answers: Mapping[str, Answer] = field(default_factory=dict)  # answers of the HTTP server, by their unique ids
    # Published records, by the job parameter that names their topic.
    outputs: Mapping[str, Sequence[Published]] = field(default_factory=dict)

    def output(self, name: str) -> Sequence[Published]:
        """Return the records of the topic that the job parameter `name` names."""
        return self.outputs.get(name, ())


class Source(msgspec.Struct, frozen=True):
    """The JSON form of a `SourcePosition` in the records that a job publishes."""

    topic: str
    partition: int
    offset: int
    index: int = 0  # `SourcePosition.nth`

    @property
    def position(self) -> SourcePosition:
        """This position as a `SourcePosition`."""
        return SourcePosition(self.topic, self.partition, self.offset, self.index)


class Sourced(msgspec.Struct, frozen=True):
    """A published JSON value that names the source record from which the job computed it."""

    source: Source

    @property
    def position(self) -> SourcePosition:
        """The position of the source record."""
        return self.source.position


def json_decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """Return a function that decodes JSON as `kind`; it returns None for bytes that are not JSON of this type."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_or_none(value: bytes) -> T | None:
        try:
            return decode(value)
        except msgspec.MsgspecError:
            return None

    return decode_or_none


# Decodes only the source position of a published record, which is cheap enough for the live view.
decode_sourced: Final = json_decoder(Sourced)


def read_answers(record: Path) -> dict[str, Answer]:
    """Read the file in which the HTTP server recorded its answers: answer id → answer."""
    answers: dict[str, Answer] = {}
    with record.open("rb") as file:
        for row in file:
            try:
                answer = json.loads(row)
            except ValueError:
                continue  # the torn last line of a server that was killed; it never sent that answer
            answers[answer["answer"]] = answer
    return answers
