"""The checker of wordcount finds each kind of fault, and nothing in a clean run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import pytest
from checking import Value, clean_verdict, faults, published

from clonos_demo.evidence import Answer, Evidence, Published, Sent
from clonos_demo.example import example_module
from clonos_demo.verdict import Fault, Verdict

checker = example_module("wordcount", "check")
Contradiction = checker.Contradiction
check = checker.check
words_of = checker.words_of

WINDOW = 1_700_000_000_000
TEXT = ("the cat, the hat", "A bat!")


def answer_for(word: str, *, banned: bool) -> Answer:
    return {"word": word, "banned": banned}


class World:
    """A clean run that a test may spoil: two lines, one task each, every word in one window."""

    def __init__(self) -> None:
        self.lines = [Sent("lines", number, 0, text.encode()) for number, text in enumerate(TEXT)]
        self.answers: dict[str, Answer] = {}
        self.words: list[Value] = []
        for line in self.lines:
            for index, word in enumerate(words_of(line.value.decode())):
                answer = f"{line.partition}-{word}"
                self.answers[answer] = answer_for(word, banned=word == "a")
                self.words.append(
                    {
                        "source": {"topic": "lines", "partition": line.partition, "offset": 0, "index": index},
                        "id": f"id-{line.partition}-{index}",
                        "word": word,
                        "answer": answer,
                        "banned": word == "a",
                        "sampled": word in ("cat", "bat"),
                        "at": WINDOW + 1234,
                        "window": WINDOW,
                        "epoch": 0,
                    }
                )
        self.samples = [dict(value) for value in self.words if value["sampled"]]
        self.totals: list[Value] = [
            {"window": WINDOW, "word": "the", "total": 1, "epoch": 0},
            {"window": WINDOW, "word": "the", "total": 2, "epoch": 1},
            *({"window": WINDOW, "word": word, "total": 1, "epoch": 1} for word in ("cat", "hat", "bat")),
        ]

    def evidence(self) -> Evidence:
        return Evidence(
            self.lines,
            self.answers,
            {
                "words": published("words", self.words),
                "sample": published("sample", self.samples),
                "totals": published("totals", self.totals),
            },
        )

    def verdict(self) -> Verdict:
        return check(self.evidence())


def test_words_are_letters_and_apostrophes_in_lower_case() -> None:
    assert words_of('"Oh dear!" She\'d 2 say-so') == ["oh", "dear", "she'd", "say", "so"]


def test_a_clean_run_has_no_fault() -> None:
    verdict = World().verdict()
    assert verdict == clean_verdict(records_in=2, records=6 + 2 + 4)
    assert verdict.clean


def test_nothing_in_and_nothing_out_is_clean() -> None:
    assert check(Evidence()).clean


def test_output_that_is_not_there_yet_is_pending() -> None:
    world = World()
    world.words, world.samples, world.totals = [], [], []
    assert world.verdict().pending == 6


def double_word(world: World) -> None:
    world.words.insert(1, dict(world.words[0]))
    world.totals[1]["total"] = 3


def double_sample(world: World) -> None:
    world.samples.insert(1, dict(world.samples[0]))


def double_total(world: World) -> None:
    world.totals.append(dict(world.totals[-1]))


def two_totals_in_one_epoch(world: World) -> None:
    world.totals[0]["epoch"] = 1


def lose_word(world: World) -> None:
    del world.words[2]
    world.totals[1]["total"] = 1
    world.totals[0]["total"] = 0


def lose_sample(world: World) -> None:
    del world.samples[0]


def lose_total(world: World) -> None:
    del world.totals[-1]


def swap_words(world: World) -> None:
    world.words[0], world.words[1] = world.words[1], world.words[0]


def swap_totals(world: World) -> None:
    world.totals[0]["total"], world.totals[1]["total"] = 2, 1


def invent_answer(world: World) -> None:
    world.words[0]["answer"] = world.words[2]["answer"] = "invented"


def borrow_answer(world: World) -> None:
    world.words[3]["answer"] = world.words[1]["answer"]


def turn_verdict(world: World) -> None:
    answer = world.words[3]["answer"]
    world.answers[answer] = answer_for("hat", banned=True)


def ask_twice(world: World) -> None:
    world.answers["again"] = answer_for("the", banned=False)
    world.words[2]["answer"] = "again"


def miscount(world: World) -> None:
    world.totals[-1]["total"] = 7


def total_of_nothing(world: World) -> None:
    world.totals.append({"window": WINDOW, "word": "rabbit", "total": 1, "epoch": 1})


def sample_disagrees(world: World) -> None:
    world.samples[0]["id"] = "another"


def sample_of_unsampled(world: World) -> None:
    world.samples.append({**world.words[-1], "sampled": True} if not world.words[-1]["sampled"] else world.words[0])


def invent_word(world: World) -> None:
    world.words[3]["word"] = "rabbit"
    world.answers[world.words[3]["answer"]] = answer_for("rabbit", banned=False)
    world.totals[3]["word"] = "rabbit"


@pytest.mark.parametrize(
    ("spoil", "fault", "field"),
    [
        (double_word, Fault.DUPLICATE, "duplicates"),
        (double_sample, Fault.DUPLICATE, "duplicates"),
        (double_total, Fault.DUPLICATE, "duplicates"),
        (two_totals_in_one_epoch, Fault.DUPLICATE, "duplicates"),
        (lose_word, Fault.LOST, "lost"),
        (lose_sample, Fault.LOST, "lost"),
        (lose_total, Fault.LOST, "lost"),
        (swap_words, Fault.ORDER, "order_breaks"),
        (swap_totals, Fault.ORDER, "order_breaks"),
        (invent_answer, Contradiction.UNKNOWN_ANSWER, "contradictions"),
        (borrow_answer, Contradiction.OTHER_ANSWER, "contradictions"),
        (turn_verdict, Contradiction.OTHER_ANSWER, "contradictions"),
        (ask_twice, Contradiction.TWO_ANSWERS, "contradictions"),
        (miscount, Contradiction.WRONG_TOTAL, "contradictions"),
        (total_of_nothing, Contradiction.WRONG_TOTAL, "contradictions"),
        (sample_disagrees, Contradiction.SAMPLE_MISMATCH, "contradictions"),
        (sample_of_unsampled, Contradiction.SAMPLE_MISMATCH, "contradictions"),
        (invent_word, Contradiction.UNEXPECTED, "contradictions"),
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
    lose_sample(world)
    verdict = world.verdict()
    assert (verdict.lost, verdict.duplicates, verdict.order_breaks, verdict.contradictions) == (1, 0, 0, 0)


def test_the_same_answer_in_another_epoch_is_not_a_second_answer() -> None:
    world = World()
    world.answers["again"] = answer_for("the", banned=False)
    world.words[2] |= {"answer": "again", "epoch": 1}
    assert world.verdict().clean


def test_a_replay_that_asked_again_is_doubled_and_contradicted() -> None:
    world = World()
    for value in [value for value in world.words if value["source"]["partition"] == 0]:
        again = f"again-{value['word']}"
        world.answers[again] = answer_for(value["word"], banned=False)
        world.words.append({**value, "answer": again, "id": f"again-{value['id']}"})
    verdict = world.verdict()
    assert verdict.duplicates == 4
    assert Contradiction.TWO_ANSWERS in faults(verdict)
    assert verdict.order_breaks == 1


def test_an_unreadable_record_is_a_contradiction() -> None:
    evidence = World().evidence()
    words = [*evidence.output("words"), Published("words", 0, 99, b"{}")]
    spoiled = replace(evidence, outputs={**evidence.outputs, "words": words})
    assert faults(check(spoiled)) == {Fault.UNREADABLE}
