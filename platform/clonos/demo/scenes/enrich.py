"""``examples/enrich`` as the demo plays it.

- *expected*: for each acknowledged event one record, in ``enriched`` or in ``dead``. In ``dead`` belong events that
  do not decode, and those that the server refused or gave no answer for; in ``enriched`` all others;
- *contradiction*: an answer that the server never gave, or two of them for one question of one task and epoch, and
  a dead letter whose cause is not true.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from enum import StrEnum
from http import HTTPStatus

import msgspec

from clonos.demo.evidence import Answer, Evidence, Place, Published, Source
from clonos.demo.scene import Scene
from clonos.demo.verdict import Fault, Findings, Verdict, once_in_order, readable, where

_HEADER = "clonos.error."
_SERVICE = "ServiceError"
_ANSWER = re.compile(r"\b(\d{3}) from ([\w-]+)")
_SILENCE = "gave no answer in"


class Contradiction(StrEnum):
    """What cannot be."""

    UNEXPECTED = "record for an event that is not in the source"
    UNKNOWN_ANSWER = "answer that the server never gave"
    OTHER_ANSWER = "answer that the server gave for another device or with other words"
    TWO_ANSWERS = "two answers for one device of one task and epoch"
    POISON_ENRICHED = "enriched event that does not decode"
    FALSE_CAUSE = "dead letter whose cause is not true"


class Event(msgspec.Struct, frozen=True):
    """The value of a source record that decodes."""

    event: str
    device: str
    reading: float


class EnrichedValue(msgspec.Struct, frozen=True):
    """The value of a record in ``enriched``."""

    source: Source
    event: str
    device: str
    reading: float
    answer: str
    site: str
    epoch: int

    @property
    def place(self) -> Place:
        """The event's place in the source."""
        return self.source.place


class DeadLetter(msgspec.Struct, frozen=True):
    """A record in ``dead``: the source record as it was, with the cause in headers."""

    place: Place
    value: bytes
    cause: str
    message: str
    epoch: int


_EVENT = msgspec.json.Decoder(Event)
_ENRICHED = msgspec.json.Decoder(EnrichedValue)


def read_event(value: bytes) -> Event | None:
    """The event in a source record; None if it does not decode."""
    try:
        return _EVENT.decode(value)
    except msgspec.MsgspecError:
        return None


def _read_enriched(record: Published) -> EnrichedValue | None:
    try:
        return _ENRICHED.decode(record.value)
    except msgspec.MsgspecError:
        return None


def _read_dead(record: Published) -> DeadLetter | None:
    headers = {name.removeprefix(_HEADER): value.decode() for name, value in record.headers.items()}
    try:
        place = Place(headers["topic"], int(headers["partition"]), int(headers["offset"]))
        return DeadLetter(place, record.value, headers["class"], headers["message"], int(headers["epoch"]))
    except (KeyError, ValueError):
        return None


class _Judgement:
    def __init__(self, evidence: Evidence) -> None:
        self.found = Findings()
        self.answers = evidence.answers
        self.events = {sent.place: sent.value for sent in evidence.sent}
        self.given: dict[Hashable, set[str]] = defaultdict(set)
        self.silences: dict[str, set[Hashable]] = defaultdict(set)
        self.used: set[str] = set()

    def enriched(self, record: Published, value: EnrichedValue) -> None:
        at = f"{value.event!r} of {tuple(value.place)} at {where(record)}"
        if value.place not in self.events:
            self.found.add(Contradiction.UNEXPECTED, at)
            return
        event = read_event(self.events[value.place])
        if event is None:
            self.found.add(Contradiction.POISON_ENRICHED, at)
            return
        if event != Event(value.event, value.device, value.reading):
            self.found.add(Contradiction.UNEXPECTED, at)
        self._answered(value.place, value.epoch, value.device, value.answer)
        answer = self.answers.get(value.answer)
        if answer is None:
            self.found.add(Contradiction.UNKNOWN_ANSWER, f"{value.answer!r} for {at}")
        elif (answer["device"], answer["status"], answer.get("site")) != (value.device, HTTPStatus.OK, value.site):
            self.found.add(Contradiction.OTHER_ANSWER, f"{value.answer!r} for {at}")

    def dead(self, record: Published, letter: DeadLetter) -> None:
        at = f"{letter.cause} of {tuple(letter.place)} at {where(record)}"
        if self.events.get(letter.place) != letter.value:
            self.found.add(Contradiction.UNEXPECTED, at)
            return
        event = read_event(letter.value)
        if event is None or letter.cause != _SERVICE:
            if event is not None or letter.cause == _SERVICE:
                self.found.add(Contradiction.FALSE_CAUSE, at)
            return
        refusal = _ANSWER.search(letter.message)
        self._answered(letter.place, letter.epoch, event.device, refusal.group(2) if refusal else letter.message)
        if refusal is None:
            if _SILENCE in letter.message:
                self.silences[event.device].add((letter.place[:2], letter.epoch))
            else:
                self.found.add(Contradiction.FALSE_CAUSE, f"{at}: {letter.message}")
            return
        answer: Answer | None = self.answers.get(refusal.group(2))
        if answer is None:
            self.found.add(Contradiction.UNKNOWN_ANSWER, f"{refusal.group(2)!r} for {at}")
        elif (answer["device"], answer["status"]) != (event.device, int(refusal.group(1))):
            self.found.add(Contradiction.OTHER_ANSWER, f"{refusal.group(2)!r} for {at}")
        elif answer["status"] == HTTPStatus.OK:
            self.found.add(Contradiction.FALSE_CAUSE, f"{at}: {letter.message}")

    def _answered(self, place: Place, epoch: int, device: str, answer: str) -> None:
        # Within one task and epoch equal arguments share one call, so a second answer means that a
        # replay asked again. The task is named by what it reads: a topic partition.
        self.given[place.topic, place.partition, epoch, device].add(answer)
        self.used.add(answer)

    def questions(self) -> None:
        # A question that got no answer in time leaves one behind that the server gave too late for anybody to use.
        unused = Counter(
            given["device"]
            for answer, given in self.answers.items()
            if given["status"] == HTTPStatus.OK and answer not in self.used
        )
        for device, questions in self.silences.items():
            if len(questions) > unused[device]:
                self.found.add(Contradiction.FALSE_CAUSE, f"{device}: no answer to {len(questions)} questions")
        for question, answers in self.given.items():
            if len(answers) > 1:
                self.found.add(
                    Contradiction.TWO_ANSWERS, f"{question}: {', '.join(sorted(answers))}", times=len(answers) - 1
                )


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    judged = _Judgement(evidence)
    found = judged.found
    enriched = readable(evidence.output("enriched"), _read_enriched, found)
    dead = readable(evidence.output("dead"), _read_dead, found)
    seen: dict[Place, object] = dict(once_in_order("enriched event", enriched, found))
    letters: Mapping[Place, DeadLetter] = once_in_order("dead letter", dead, found)
    for place in seen.keys() & letters.keys():
        found.add(Fault.DUPLICATE, f"event of {tuple(place)} enriched and dead")
    for place in judged.events.keys() - seen.keys() - letters.keys():
        found.add(Fault.LOST, f"event of {tuple(place)}")
    for record, value in enriched:
        judged.enriched(record, value)
    for record, letter in dead:
        judged.dead(record, letter)
    judged.questions()
    return found.verdict(
        records_in=len(evidence.sent),
        expected=len(judged.events),
        published=len(evidence.output("enriched")) + len(evidence.output("dead")),
    )


ENRICH = Scene(name="enrich", source="events", outputs=("enriched", "dead"), check=check, server="devices.py")
