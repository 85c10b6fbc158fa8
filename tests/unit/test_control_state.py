"""What the control partition adds up to."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.log.control import RETAINED_EPOCHS, ControlState
from clonos.log.reading import Positioned
from clonos.log.records import Allot, Allotment, Claim, Determinants, End, Held, Marker, Owner, Plan, Record, Resolution

A, B = Owner(1, 1, "a"), Owner(1, 2, "b")
NEW_LINEAGE = Owner(2, 3, "c")


def fold(*records: Record) -> ControlState:
    return ControlState().fold(Positioned(offset * 2, record) for offset, record in enumerate(records))


def claim(owner: Owner, **more: Any) -> Claim:
    return Claim(owner, 0, **more)


def plan(owner: Owner, epoch: int, seed: int = 0, query: str = "q") -> Plan:
    return Plan(owner, query, epoch, (), (), (), {}, seed, "code", "offsets", 0)


def test_nothing() -> None:
    state = fold()
    assert (state.owner, state.claim_offset, state.plan("q", 0), state.newest_plan("q")) == (None, -1, None, -1)
    assert state.allotments() == ()


def test_the_newest_claim_owns() -> None:
    state = fold(claim(A), claim(B))
    assert state.owner == B
    assert state.claim_offset == 2


def test_records_of_the_owner_count() -> None:
    state = fold(
        claim(A),
        Allot(A, (Allotment("q", 0, 1),)),
        plan(A, 0),
        Resolution(A, "q", 0, "new-code", "x"),
        End(A, "q", 0, 9),
    )
    assert state.lanes == {("q", 0): 1}
    assert state.plans["q", 0][0] == 4
    assert state.resolutions["q", 0].code == "x"
    assert state.ended == {"q": 0}


@pytest.mark.parametrize(
    "record", [Allot(A, (Allotment("q", 0, 1),)), plan(A, 0), End(A, "q", 0, 1), Resolution(A, "q", 0, "new-code", "x")]
)
def test_records_of_others_are_void(record: Record) -> None:
    for state in (fold(claim(A), claim(B), record), fold(record, claim(B))):
        assert (state.lanes, state.plans, state.ended, state.resolutions) == ({}, {}, {}, {})


def test_records_from_before_the_takeover_stay() -> None:
    state = fold(claim(A), plan(A, 0), End(A, "q", 0, 1), plan(A, 1), claim(B), plan(A, 2))
    assert state.newest_plan("q") == 1
    assert state.ended == {"q": 0}


def test_the_first_plan_of_an_epoch_rules() -> None:
    state = fold(claim(A), plan(A, 0, seed=1), plan(A, 0, seed=2), claim(B), plan(B, 0, seed=3))
    found = state.plan("q", 0)
    assert found is not None
    assert found.seed == 1


def test_a_claim_repeats_allotments_and_ends() -> None:
    """As after a truncation: the claim is all that is left."""
    state = fold(claim(B, allotments=(Allotment("q", 1, 2), Allotment("q", 0, 1)), ended={"q": 7, "r": 3}))
    assert state.ended == {"q": 7, "r": 3}
    assert state.allotments() == (Allotment("q", 0, 1), Allotment("q", 1, 2))
    again = fold(claim(B, allotments=state.allotments(), ended=state.ended))
    assert (again.lanes, again.ended) == (state.lanes, state.ended)


def test_ends_never_go_back() -> None:
    state = fold(claim(A, ended={"q": 7}), End(A, "q", 5, 0), claim(B, ended={"q": 6}))
    assert state.ended == {"q": 7}


def test_a_new_lineage_starts_afresh_but_keeps_its_lanes() -> None:
    state = fold(
        claim(A, allotments=(Allotment("q", 0, 1),)),
        plan(A, 0),
        End(A, "q", 0, 1),
        Resolution(A, "q", 1, "new-code", "x"),
        claim(NEW_LINEAGE),
    )
    assert (state.plans, state.ended, state.resolutions) == ({}, {}, {})
    assert state.lanes == {("q", 0): 1}
    state.take(99, plan(NEW_LINEAGE, 0, seed=5))
    found = state.plan("q", 0)
    assert found is not None
    assert found.seed == 5


def test_queries_are_apart() -> None:
    state = fold(claim(A), plan(A, 3), plan(A, 5, query="r"), End(A, "r", 5, 0))
    assert (state.newest_plan("q"), state.newest_plan("r")) == (3, 5)
    assert state.ended == {"r": 5}


def test_old_plans_are_let_go() -> None:
    state = fold(claim(A), *(plan(A, epoch) for epoch in range(5 * RETAINED_EPOCHS)))
    assert len(state.plans) == 2 * RETAINED_EPOCHS
    assert state.newest_plan("q") == 5 * RETAINED_EPOCHS - 1


def test_a_lanes_records_say_nothing_here() -> None:
    held = Held("range", "t", 0, 0, 1)
    before = fold(claim(A))
    after = fold(claim(A), Marker(A, "q", 0, 0, held, 1, b""), Determinants(A, "q", 0, "o", 0, ()))
    assert before == after


@pytest.mark.parametrize(
    ("record", "known"),
    [
        (claim(B, after="a"), True),
        (claim(A), True),  # renewed for a truncation
        (claim(B), True),  # of before claims said whom they follow
        (claim(Owner(1, 9, "z")), False),
        (claim(B, after="x"), False),
        (plan(A, 1), True),
        (plan(B, 1), False),
        (End(B, "q", 0, 1), False),
    ],
)
def test_a_foreign_record(record: Record, known: bool) -> None:
    assert (fold(claim(A)).foreign(record) == "") == known


def test_what_is_not_foreign() -> None:
    assert fold().foreign(claim(B, after="truncated")) == "", "the first that is left may follow one that is not"
    taken_over = fold(claim(A), claim(B, after="a"))
    assert taken_over.foreign(plan(A, 3)) == "", "a late writer: void, not foreign"
    assert taken_over.foreign(claim(NEW_LINEAGE, after="a")) == "", "a crash of a broker showed the claim of b late"
