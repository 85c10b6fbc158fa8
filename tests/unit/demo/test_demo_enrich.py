"""The checker of enrich finds each kind of fault, and nothing in a clean run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import pytest
from checking import Value, clean_verdict, faults, published

from clonos_demo.evidence import Answer, Evidence, Published, Sent
from clonos_demo.example import example_module
from clonos_demo.verdict import Fault, Verdict

checker = example_module("enrich", "check")
Contradiction = checker.Contradiction
check = checker.check

POISON = b'{"event": "e4"}'
SILENCE = "The service describe gave no answer in 0.5 s."


@dataclass
class Letter:
    value: bytes
    headers: dict[str, str]

    def copy(self) -> Letter:
        return Letter(self.value, dict(self.headers))


class World:
    """A clean run that a test may spoil: two enriched, one refused, one without an answer, one that is poison."""

    def __init__(self) -> None:
        devices = ("d1", "d2", "x1", "d3")
        self.events = [{"event": f"e{n}", "device": device, "reading": 1.5} for n, device in enumerate(devices)]
        self.sent = [
            Sent("events", 0, offset, value)
            for offset, value in enumerate([*(json.dumps(event).encode() for event in self.events), POISON])
        ]
        self.answers: dict[str, Answer] = {
            "a1": {"device": "d1", "status": 200, "site": "north-1"},
            "a2": {"device": "d2", "status": 200, "site": "east-2"},
            "a3": {"device": "x1", "status": 404},
            "a4": {"device": "d3", "status": 200, "site": "west-0"},
            "a5": {"device": "d2", "status": 503},
        }
        self.enriched: list[Value] = [
            {
                **self.events[offset],
                "source": {"topic": "events", "partition": 0, "offset": offset},
                "answer": answer,
                "site": self.answers[answer]["site"],
                "epoch": 0,
            }
            for offset, answer in ((0, "a1"), (1, "a2"))
        ]
        refused = "The service describe failed: OSError: 404 from a3."
        self.dead = [
            self.letter(2, "ServiceError", refused),
            self.letter(3, "ServiceError", SILENCE),
            self.letter(4, "ValidationError", "Object missing required field `device`"),
        ]

    def letter(self, offset: int, cause: str, message: str) -> Letter:
        causes = {"topic": "events", "partition": 0, "offset": offset, "class": cause, "message": message, "epoch": 0}
        return Letter(self.sent[offset].value, {f"clonos.error.{name}": str(value) for name, value in causes.items()})

    def verdict(self) -> Verdict:
        dead = [
            Published("dead", 0, at, letter.value, {name: text.encode() for name, text in letter.headers.items()})
            for at, letter in enumerate(self.dead)
        ]
        return check(
            Evidence(self.sent, self.answers, {"enriched": published("enriched", self.enriched), "dead": dead})
        )


def test_a_clean_run_has_no_fault() -> None:
    assert World().verdict() == clean_verdict(records_in=5, records=5)


def test_nothing_in_and_nothing_out_is_clean() -> None:
    assert check(Evidence()).clean


def test_output_that_is_not_there_yet_is_pending() -> None:
    world = World()
    world.enriched, world.dead = [], []
    assert world.verdict().pending == 5


def test_the_same_question_in_another_epoch_may_get_another_answer() -> None:
    world = World()
    ask_again(world)
    world.enriched[-1]["epoch"] = 1
    assert world.verdict().clean


def ask_again(world: World) -> None:
    world.sent.append(Sent("events", 0, 5, world.sent[0].value))
    world.answers["again"] = {**world.answers["a1"], "site": "south-5"}
    source = {"topic": "events", "partition": 0, "offset": 5}
    world.enriched.append({**world.enriched[0], "source": source, "answer": "again", "site": "south-5"})


def refuse_again(world: World) -> None:
    world.sent.append(Sent("events", 0, 5, world.sent[2].value))
    world.answers["again"] = dict(world.answers["a3"])
    world.dead.append(world.letter(5, "ServiceError", "The service describe failed: OSError: 404 from again."))


def enriched_and_refused_in_one_epoch(world: World) -> None:
    world.sent.append(Sent("events", 0, 5, world.sent[1].value))
    world.dead.append(world.letter(5, "ServiceError", "The service describe failed: OSError: 503 from a5."))


def double_event(world: World) -> None:
    world.enriched.append(dict(world.enriched[-1]))


def double_letter(world: World) -> None:
    world.dead.append(world.dead[-1].copy())


def enriched_and_dead(world: World) -> None:
    world.dead.insert(0, world.letter(1, "ServiceError", "The service describe failed: OSError: 503 from a5."))


def lose_event(world: World) -> None:
    del world.enriched[0]


def lose_refused(world: World) -> None:
    del world.dead[0]


def lose_poison(world: World) -> None:
    del world.dead[-1]


def swap_events(world: World) -> None:
    world.enriched.reverse()


def swap_letters(world: World) -> None:
    world.dead.reverse()


def invent_answer(world: World) -> None:
    world.enriched[0]["answer"] = "invented"


def invent_refusal(world: World) -> None:
    world.dead[0].headers["clonos.error.message"] = "The service describe failed: OSError: 404 from invented."


def borrow_answer(world: World) -> None:
    world.enriched[0] |= {"answer": "a2", "site": "east-2"}


def move_site(world: World) -> None:
    world.enriched[0]["site"] = "south-9"


def borrow_refusal(world: World) -> None:
    world.dead[0].headers["clonos.error.message"] = "The service describe failed: OSError: 503 from a5."


def refuse_what_was_answered(world: World) -> None:
    del world.enriched[0]
    world.dead.insert(0, world.letter(0, "ServiceError", "The service describe failed: OSError: 200 from a1."))


def blame_the_server(world: World) -> None:
    """An answer is said not to have come, but all that the server gave about that device were used."""
    del world.enriched[0], world.answers["a1"]
    world.dead.insert(0, world.letter(0, "ServiceError", SILENCE))


def blame_the_event(world: World) -> None:
    world.dead[0].headers["clonos.error.class"] = "ValidationError"


def enrich_poison(world: World) -> None:
    del world.dead[-1]
    source = {"topic": "events", "partition": 0, "offset": 4}
    world.enriched.append({**world.enriched[1], "source": source, "event": "e4"})


def change_reading(world: World) -> None:
    world.enriched[0]["reading"] = 2.5


def change_letter(world: World) -> None:
    world.dead[-1].value = b"something else"


def invent_event(world: World) -> None:
    world.enriched.append({**world.enriched[0], "source": {"topic": "events", "partition": 0, "offset": 77}})


@pytest.mark.parametrize(
    ("spoil", "fault", "field"),
    [
        (double_event, Fault.DUPLICATE, "duplicates"),
        (double_letter, Fault.DUPLICATE, "duplicates"),
        (enriched_and_dead, Fault.DUPLICATE, "duplicates"),
        (lose_event, Fault.LOST, "lost"),
        (lose_refused, Fault.LOST, "lost"),
        (lose_poison, Fault.LOST, "lost"),
        (swap_events, Fault.ORDER, "order_breaks"),
        (swap_letters, Fault.ORDER, "order_breaks"),
        (ask_again, Contradiction.TWO_ANSWERS, "contradictions"),
        (refuse_again, Contradiction.TWO_ANSWERS, "contradictions"),
        (enriched_and_refused_in_one_epoch, Contradiction.TWO_ANSWERS, "contradictions"),
        (invent_answer, Contradiction.UNKNOWN_ANSWER, "contradictions"),
        (invent_refusal, Contradiction.UNKNOWN_ANSWER, "contradictions"),
        (borrow_answer, Contradiction.OTHER_ANSWER, "contradictions"),
        (move_site, Contradiction.OTHER_ANSWER, "contradictions"),
        (borrow_refusal, Contradiction.OTHER_ANSWER, "contradictions"),
        (refuse_what_was_answered, Contradiction.FALSE_CAUSE, "contradictions"),
        (blame_the_server, Contradiction.FALSE_CAUSE, "contradictions"),
        (blame_the_event, Contradiction.FALSE_CAUSE, "contradictions"),
        (enrich_poison, Contradiction.POISON_ENRICHED, "contradictions"),
        (change_reading, Contradiction.UNEXPECTED, "contradictions"),
        (change_letter, Contradiction.UNEXPECTED, "contradictions"),
        (invent_event, Contradiction.UNEXPECTED, "contradictions"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[World], None], fault: StrEnum, field: str) -> None:
    world = World()
    spoil(world)
    verdict = world.verdict()
    assert not verdict.clean
    assert fault in faults(verdict)
    assert getattr(verdict, field) >= 1


def test_one_loss_is_counted_as_one_loss_only() -> None:
    world = World()
    lose_poison(world)
    verdict = world.verdict()
    assert (verdict.lost, verdict.duplicates, verdict.order_breaks, verdict.contradictions) == (1, 0, 0, 0)


def test_a_letter_without_its_place_is_unreadable() -> None:
    world = World()
    del world.dead[0].headers["clonos.error.offset"]
    assert Fault.UNREADABLE in faults(world.verdict())
