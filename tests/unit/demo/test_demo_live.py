"""The checker of live finds each kind of fault, and nothing in a clean run."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec
import pytest
from checking import Value, clean_verdict, faults, published

from clonos_demo.evidence import Evidence, Sent
from clonos_demo.example import example_module, load_example
from clonos_demo.verdict import Fault, Verdict

checker = example_module("live", "check")


class World:
    """A clean run that a test may spoil."""

    def __init__(self) -> None:
        values = [value for _, value in islice(example_module("live", "generate").messages(random.Random(7)), 5)]
        self.sent = [Sent("payments", 0, offset, value) for offset, value in enumerate(values)]
        payments: list[dict[str, Any]] = [msgspec.json.decode(value) for value in values]
        risk = example_module("live", "job").risk.func
        self.scored: list[Value] = [
            {
                **payment,
                "source": {"topic": "payments", "partition": 0, "offset": offset},
                "risk": risk(payment["card"], payment["cents"]),
            }
            for offset, payment in enumerate(payments)
        ]

    def verdict(self) -> Verdict:
        verdict: Verdict = checker.check(Evidence(self.sent, {}, {"scored": published("scored", self.scored)}))
        return verdict


def test_a_clean_run_is_clean() -> None:
    assert World().verdict() == clean_verdict(records_in=5, records=5)
    assert load_example("live").live


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda world: world.scored.pop(2), Fault.LOST),
        (lambda world: world.scored.append(world.scored[-1]), Fault.DUPLICATE),
        (lambda world: world.scored.reverse(), Fault.ORDER),
        (lambda world: world.scored[1].update(risk=100), checker.Contradiction.OTHER_PAYMENT),
        (lambda world: world.scored[1].update(cents=-1), checker.Contradiction.OTHER_PAYMENT),
        (lambda world: world.sent.pop(), checker.Contradiction.OTHER_PAYMENT),
        (lambda world: world.scored[1].pop("risk"), Fault.UNREADABLE),
    ],
    ids=["lost", "repeated", "out-of-order", "other-risk", "other-payment", "of-nothing", "unreadable"],
)
def test_a_fault_is_found(spoil: Callable[[World], object], fault: StrEnum) -> None:
    world = World()
    spoil(world)
    assert fault in faults(world.verdict())
