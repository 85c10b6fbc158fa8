"""The state of the control partition as a fold over its records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clonos.log.control import RETAINED_EPOCHS, ControlState
from clonos.log.reading import Positioned
from clonos.log.records import (
    AssignLanes,
    Claim,
    Determinants,
    EpochCommitted,
    EpochParts,
    InputSlice,
    LaneAssignment,
    Marker,
    Owner,
    Plan,
    Record,
    Resolution,
)

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
    assert (state.owner, state.plan("q", 0), state.newest_plan("q")) == (None, None, -1)
    assert state.assignments() == ()


def test_the_newest_claim_owns() -> None:
    state = fold(claim(A), claim(B))
    assert state.owner == B


def test_records_of_the_owner_count() -> None:
    state = fold(
        claim(A),
        AssignLanes(A, (LaneAssignment("q", 0, 1),)),
        plan(A, 0),
        Resolution(A, "q", 0, "new-code", "x"),
        EpochCommitted(A, "q", 0, 9),
    )
    assert state.lanes == {("q", 0): 1}
    assert state.plans["q", 0][0] == 4
    assert state.resolutions["q", 0].code == "x"
    assert state.committed == {"q": 0}


def test_the_parts_of_an_epoch_count_until_it_is_committed() -> None:
    parts = EpochParts(A, "q", 0, (b"x",), 9, b"digest")
    assert fold(claim(A), plan(A, 0), parts, claim(B)).parts == {("q", 0): parts}, "a replay commits them"
    assert fold(claim(A), plan(A, 0), parts, EpochCommitted(A, "q", 0, 9)).parts == {}
    assert fold(claim(A), parts, claim(NEW_LINEAGE)).parts == {}
    assert fold(claim(A), claim(B), parts).parts == {}, "of a superseded owner"


@pytest.mark.parametrize(
    "record",
    [
        AssignLanes(A, (LaneAssignment("q", 0, 1),)),
        plan(A, 0),
        EpochCommitted(A, "q", 0, 1),
        Resolution(A, "q", 0, "new-code", "x"),
    ],
)
def test_records_of_others_are_void(record: Record) -> None:
    for state in (fold(claim(A), claim(B), record), fold(record, claim(B))):
        assert (state.lanes, state.plans, state.committed, state.resolutions) == ({}, {}, {}, {})


def test_records_from_before_the_takeover_stay() -> None:
    state = fold(claim(A), plan(A, 0), EpochCommitted(A, "q", 0, 1), plan(A, 1), claim(B), plan(A, 2))
    assert state.newest_plan("q") == 1
    assert state.committed == {"q": 0}


def test_first_plan_of_an_epoch_has_priority() -> None:
    state = fold(claim(A), plan(A, 0, seed=1), plan(A, 0, seed=2), claim(B), plan(B, 0, seed=3))
    plan_0 = state.plan("q", 0)
    assert plan_0 is not None
    assert plan_0.seed == 1


def test_claim_repeats_lane_assignments_and_commits() -> None:
    """After a truncation only the claim is left."""
    state = fold(
        claim(B, assignments=(LaneAssignment("q", 1, 2), LaneAssignment("q", 0, 1)), committed={"q": 7, "r": 3})
    )
    assert state.committed == {"q": 7, "r": 3}
    assert state.assignments() == (LaneAssignment("q", 0, 1), LaneAssignment("q", 1, 2))
    again = fold(claim(B, assignments=state.assignments(), committed=state.committed))
    assert (again.lanes, again.committed) == (state.lanes, state.committed)


def test_committed_epochs_never_decrease() -> None:
    state = fold(claim(A, committed={"q": 7}), EpochCommitted(A, "q", 5, 0), claim(B, committed={"q": 6}))
    assert state.committed == {"q": 7}


def test_new_lineage_drops_plans_but_not_lanes() -> None:
    state = fold(
        claim(A, assignments=(LaneAssignment("q", 0, 1),)),
        plan(A, 0),
        EpochCommitted(A, "q", 0, 1),
        Resolution(A, "q", 1, "new-code", "x"),
        claim(NEW_LINEAGE),
    )
    assert (state.plans, state.committed, state.resolutions) == ({}, {}, {})
    assert state.lanes == {("q", 0): 1}
    state.take(99, plan(NEW_LINEAGE, 0, seed=5))
    plan_0 = state.plan("q", 0)
    assert plan_0 is not None
    assert plan_0.seed == 5


def test_queries_are_independent() -> None:
    state = fold(claim(A), plan(A, 3), plan(A, 5, query="r"), EpochCommitted(A, "r", 5, 0))
    assert (state.newest_plan("q"), state.newest_plan("r")) == (3, 5)
    assert state.committed == {"r": 5}


def test_old_plans_are_dropped() -> None:
    state = fold(claim(A), *(plan(A, epoch) for epoch in range(5 * RETAINED_EPOCHS)))
    assert len(state.plans) == 2 * RETAINED_EPOCHS
    assert state.newest_plan("q") == 5 * RETAINED_EPOCHS - 1


def test_records_of_lanes_are_ignored_on_control() -> None:
    part = InputSlice("range", "t", 0, 0, 1)
    before = fold(claim(A))
    after = fold(claim(A), Marker(A, "q", 0, 0, part, 1, b""), Determinants(A, "q", 0, "o", 0, ()))
    assert before == after


@pytest.mark.parametrize(
    ("record", "known"),
    [
        (claim(B, follows="a"), True),
        (claim(A), True),  # renewed for a truncation
        (claim(B), True),  # without `follows`
        (claim(Owner(1, 9, "z")), False),
        (claim(B, follows="x"), False),
        (plan(A, 1), True),
        (plan(B, 1), False),
        (EpochCommitted(B, "q", 0, 1), False),
    ],
)
def test_a_foreign_record(record: Record, known: bool) -> None:
    assert (fold(claim(A)).foreign(record) == "") == known


def test_claims_after_truncation_and_late_claims_are_not_foreign() -> None:
    assert fold().foreign(claim(B, follows="truncated")) == "", "the oldest claim may follow a truncated one"
    taken_over = fold(claim(A), claim(B, follows="a"))
    assert taken_over.foreign(plan(A, 3)) == "", "a late writer: void, not foreign"
    assert taken_over.foreign(claim(NEW_LINEAGE, follows="a")) == "", "a crash of a broker showed the claim of b late"


def test_the_speed_of_a_query_is_that_of_its_fastest_new_epochs() -> None:
    scans = ((InputSlice("range", "t", 0, 0, 30), InputSlice("range", "t", 1, 5, 15)),)
    read, idle = msgspec.structs.replace(plan(A, 0), scans=scans), plan(A, 1)
    state = fold(claim(A), read, EpochCommitted(A, "q", 0, 9, duration_ms=500), idle, EpochCommitted(A, "q", 1, 0, 70))
    assert state.speeds == {"q": 80.0}
    slower = msgspec.structs.replace(plan(A, 2), scans=(*scans, *scans))
    state.fold([Positioned(20, slower), Positioned(22, EpochCommitted(A, "q", 2, 9, duration_ms=1_000))])
    assert state.speeds == {"q": 72.0}, "40 records per second of each source"
    unknown = EpochCommitted(A, "q", 0, 9)  # of an older Clonos
    assert fold(claim(A), read, unknown).speeds == {}
