"""Checker of this example: judges a run of the demo by the published records.

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

from clonos_demo.evidence import Answer, Evidence, Published, Sourced, SourcePosition, json_decoder
from clonos_demo.example import Example
from clonos_demo.verdict import Fault, Findings, Verdict, json_record, once_in_order, readable, where

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


class EnrichedValue(Sourced, frozen=True):
    """The value of a record in ``enriched``."""

    event: str
    device: str
    reading: float
    answer: str
    site: str
    epoch: int


class DeadLetter(msgspec.Struct, frozen=True):
    """A record in ``dead``: the source record as it was, with the cause in headers."""

    position: SourcePosition
    value: bytes
    cause: str
    message: str
    epoch: int


read_event = json_decoder(Event)
_read_enriched = json_record(EnrichedValue)


def _read_dead(record: Published) -> DeadLetter | None:
    headers = {name.removeprefix(_HEADER): value.decode() for name, value in record.headers.items()}
    try:
        position = SourcePosition(headers["topic"], int(headers["partition"]), int(headers["offset"]))
        return DeadLetter(position, record.value, headers["class"], headers["message"], int(headers["epoch"]))
    except (KeyError, ValueError):
        return None


class _Judgement:
    def __init__(self, evidence: Evidence) -> None:
        self.findings = Findings()
        self.answers = evidence.answers
        self.events = {sent.position: sent.value for sent in evidence.sent}
        self.answered: dict[Hashable, set[str]] = defaultdict(set)
        self.silences: dict[str, set[Hashable]] = defaultdict(set)
        self.used: set[str] = set()

    def enriched(self, record: Published, value: EnrichedValue) -> None:
        at = f"{value.event!r} of {tuple(value.position)} at {where(record)}"
        if value.position not in self.events:
            self.findings.add(Contradiction.UNEXPECTED, at)
            return
        event = read_event(self.events[value.position])
        if event is None:
            self.findings.add(Contradiction.POISON_ENRICHED, at)
            return
        if event != Event(value.event, value.device, value.reading):
            self.findings.add(Contradiction.UNEXPECTED, at)
        self._answered(value.position, value.epoch, value.device, value.answer)
        answer = self.answers.get(value.answer)
        if answer is None:
            self.findings.add(Contradiction.UNKNOWN_ANSWER, f"{value.answer!r} for {at}")
        elif (answer["device"], answer["status"], answer.get("site")) != (value.device, HTTPStatus.OK, value.site):
            self.findings.add(Contradiction.OTHER_ANSWER, f"{value.answer!r} for {at}")

    def dead(self, record: Published, letter: DeadLetter) -> None:
        at = f"{letter.cause} of {tuple(letter.position)} at {where(record)}"
        if self.events.get(letter.position) != letter.value:
            self.findings.add(Contradiction.UNEXPECTED, at)
            return
        event = read_event(letter.value)
        if event is None or letter.cause != _SERVICE:
            if event is not None or letter.cause == _SERVICE:
                self.findings.add(Contradiction.FALSE_CAUSE, at)
            return
        refusal = _ANSWER.search(letter.message)
        self._answered(letter.position, letter.epoch, event.device, refusal.group(2) if refusal else letter.message)
        if refusal is None:
            if _SILENCE in letter.message:
                self.silences[event.device].add((letter.position[:2], letter.epoch))
            else:
                self.findings.add(Contradiction.FALSE_CAUSE, f"{at}: {letter.message}")
            return
        answer: Answer | None = self.answers.get(refusal.group(2))
        if answer is None:
            self.findings.add(Contradiction.UNKNOWN_ANSWER, f"{refusal.group(2)!r} for {at}")
        elif (answer["device"], answer["status"]) != (event.device, int(refusal.group(1))):
            self.findings.add(Contradiction.OTHER_ANSWER, f"{refusal.group(2)!r} for {at}")
        elif answer["status"] == HTTPStatus.OK:
            self.findings.add(Contradiction.FALSE_CAUSE, f"{at}: {letter.message}")

    def _answered(self, position: SourcePosition, epoch: int, device: str, answer: str) -> None:
        # Within one task and epoch equal arguments share one call, so a second answer means that a
        # replay asked again. Its topic partition identifies the task.
        self.answered[position.topic, position.partition, epoch, device].add(answer)
        self.used.add(answer)

    def questions(self) -> None:
        # A request that timed out leaves an unused answer: the server responded too late.
        unused = Counter(
            answer["device"]
            for answer_id, answer in self.answers.items()
            if answer["status"] == HTTPStatus.OK and answer_id not in self.used
        )
        for device, questions in self.silences.items():
            if len(questions) > unused[device]:
                self.findings.add(Contradiction.FALSE_CAUSE, f"{device}: no answer to {len(questions)} questions")
        for question, answers in self.answered.items():
            if len(answers) > 1:
                self.findings.add(
                    Contradiction.TWO_ANSWERS, f"{question}: {', '.join(sorted(answers))}", times=len(answers) - 1
                )


def check(evidence: Evidence) -> Verdict:
    """Judge the evidence."""
    judged = _Judgement(evidence)
    findings = judged.findings
    enriched = readable(evidence.output("enriched"), _read_enriched, findings)
    dead = readable(evidence.output("dead"), _read_dead, findings)
    seen: dict[SourcePosition, object] = dict(once_in_order("enriched event", enriched, findings))
    letters: Mapping[SourcePosition, DeadLetter] = once_in_order("dead letter", dead, findings)
    for position in seen.keys() & letters.keys():
        findings.add(Fault.DUPLICATE, f"event of {tuple(position)} enriched and dead")
    for position in judged.events.keys() - seen.keys() - letters.keys():
        findings.add(Fault.LOST, f"event of {tuple(position)}")
    for record, value in enriched:
        judged.enriched(record, value)
    for record, letter in dead:
        judged.dead(record, letter)
    judged.questions()
    return findings.verdict(
        records_in=len(evidence.sent),
        expected=len(judged.events),
        published=len(evidence.output("enriched")) + len(evidence.output("dead")),
    )


EXAMPLE = Example(name="enrich", source="events", outputs=("enriched", "dead"), check=check, server="devices.py")
