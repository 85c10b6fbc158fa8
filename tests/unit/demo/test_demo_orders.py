"""The checker of orders finds each kind of fault, and nothing in a clean run."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum

import pytest
from checking import Value, clean_verdict, faults, published

from clonos_demo.evidence import Evidence, Published, Sent
from clonos_demo.example import example_module
from clonos_demo.verdict import Fault, Verdict

checker = example_module("orders", "check")
IDLE_MS = checker.IDLE_MS
LATE_MS = checker.LATE_MS
Contradiction = checker.Contradiction
check = checker.check

T0 = 1_700_000_000_000
EPOCHS = {0: T0, 1: T0 + 1000, 2: T0 + 1000 + IDLE_MS + 1, 3: T0 + 60_000, 4: T0 + 120_000}
# customer, cents, age of the order in milliseconds, epoch
ORDERS = (
    ("ann", 500, 0, 0),
    ("bob", 200, 0, 0),
    ("ann", 30, 100, 1),
    ("bob", 1, 0, 2),
    ("ann", 7, EPOCHS[3] - T0 + LATE_MS + 1, 3),
    ("ann", 8, 0, 3),
)


class World:
    """A clean run that a test may spoil: Ann falls silent after two orders, Bob orders before his timer rings."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.totals: list[Value] = []
        sums: dict[str, list[int]] = {"ann": [], "bob": []}
        for offset, (customer, cents, age, epoch) in enumerate(ORDERS):
            order = {"order": f"o{offset}", "customer": customer, "cents": cents}
            at = EPOCHS[epoch] - age
            self.sent.append(Sent("orders", 0, offset, json.dumps({**order, "at": at}).encode()))
            sums[customer].append(cents)
            self.totals.append(
                {
                    **order,
                    "source": {"topic": "orders", "partition": 0, "offset": offset},
                    "orders": len(sums[customer]),
                    "total": sum(sums[customer]),
                    "late": age > LATE_MS,
                    "sampled": offset in (1, 4),
                    "at": EPOCHS[epoch],
                    "epoch": epoch,
                }
            )
        self.late = [dict(value) for value in self.totals if value["late"]]
        self.samples = [dict(value) for value in self.totals if value["sampled"]]
        self.notices = [notice("ann", 2, 530, 2), notice("bob", 2, 201, 3), notice("ann", 4, 545, 4)]

    def evidence(self) -> Evidence:
        return Evidence(
            self.sent,
            {},
            {
                "totals": published("totals", self.totals),
                "late": published("late", self.late),
                "sample": published("sample", self.samples),
                "inactive": published("inactive", self.notices),
            },
        )

    def verdict(self) -> Verdict:
        return check(self.evidence())


def notice(customer: str, orders: int, total: int, epoch: int) -> Value:
    return {"customer": customer, "orders": orders, "total": total, "at": EPOCHS[epoch], "epoch": epoch}


def test_a_clean_run_has_no_fault() -> None:
    assert World().verdict() == clean_verdict(records_in=6, records=6 + 1 + 2 + 3)


def test_nothing_in_and_nothing_out_is_clean() -> None:
    assert check(Evidence()).clean


def test_output_that_is_not_there_yet_is_pending() -> None:
    world = World()
    world.totals, world.late, world.samples, world.notices = [], [], [], []
    assert world.verdict().pending == 6


def test_a_last_order_waits_for_its_notice_and_is_not_lost() -> None:
    world = World()
    del world.notices[-1]
    verdict = world.verdict()
    assert verdict.clean
    assert verdict.pending == 1


def test_a_timer_that_is_reset_before_an_epoch_can_fire_it_is_not_missed() -> None:
    world = World()
    # Bob's second order comes after the idle time, but no epoch between both orders does.
    assert EPOCHS[2] - EPOCHS[0] > IDLE_MS
    assert world.verdict().clean


def test_customers_may_overtake_each_other() -> None:
    world = World()
    world.totals[0], world.totals[1] = world.totals[1], world.totals[0]
    world.samples.reverse()
    assert world.verdict().clean


def test_one_duplicate_is_counted_as_one() -> None:
    world = World()
    world.totals.insert(1, dict(world.totals[0]))
    verdict = world.verdict()
    assert (verdict.duplicates, verdict.lost, verdict.contradictions) == (1, 0, 0)


def double_order(world: World) -> None:
    world.totals.append(dict(world.totals[-1]))


def count_twice(world: World) -> None:
    """A replay that counted an order again in state restored too new."""
    world.totals.append({**world.totals[-1], "orders": 5, "total": 553})


def double_notice(world: World) -> None:
    world.notices.append(dict(world.notices[-1]))


def double_late(world: World) -> None:
    world.late.append(dict(world.late[0]))


def lose_order(world: World) -> None:
    del world.totals[3]


def lose_late(world: World) -> None:
    del world.late[0]


def lose_sample(world: World) -> None:
    del world.samples[0]


def lose_notice(world: World) -> None:
    del world.notices[0]


def swap_orders(world: World) -> None:
    world.totals[0], world.totals[2] = world.totals[2], world.totals[0]


def swap_notices(world: World) -> None:
    world.notices.reverse()


def wrong_total(world: World) -> None:
    world.totals[3]["total"] += 1


def wrong_count(world: World) -> None:
    world.totals[3]["orders"] = 3


def forget_state(world: World) -> None:
    """A restart that began with an empty account."""
    world.totals[5] |= {"orders": 1, "total": 8}


def wrong_cents(world: World) -> None:
    world.totals[0]["cents"] = 501


def invent_order(world: World) -> None:
    world.totals.append({**world.totals[-1], "source": {"topic": "orders", "partition": 0, "offset": 99}})


def mark_late(world: World) -> None:
    world.totals[0]["late"] = True
    world.late.insert(0, dict(world.totals[0]))


def mark_in_time(world: World) -> None:
    world.totals[4]["late"] = False
    world.late.clear()


def sample_disagrees(world: World) -> None:
    world.samples[0]["total"] = 999


def sample_the_unsampled(world: World) -> None:
    world.samples.insert(0, dict(world.totals[0]))


def two_times(world: World) -> None:
    world.totals[1]["at"] += 1
    world.samples[0]["at"] += 1


def back_in_time(world: World) -> None:
    world.totals[5]["epoch"], world.totals[5]["at"] = 1, EPOCHS[1]


def notice_too_early(world: World) -> None:
    world.notices[1] |= {"at": EPOCHS[2] + IDLE_MS - 1, "epoch": 2}


def notice_of_another_total(world: World) -> None:
    world.notices[0]["total"] = 500


def notice_after_the_next_order(world: World) -> None:
    world.notices[0] |= {"epoch": 3, "at": EPOCHS[3]}


def notice_of_nobody(world: World) -> None:
    world.notices.append(notice("eve", 1, 1, 4))


@pytest.mark.parametrize(
    ("spoil", "fault", "field"),
    [
        (double_order, Fault.DUPLICATE, "duplicates"),
        (count_twice, Fault.DUPLICATE, "duplicates"),
        (double_notice, Fault.DUPLICATE, "duplicates"),
        (double_late, Fault.DUPLICATE, "duplicates"),
        (lose_order, Fault.LOST, "lost"),
        (lose_late, Fault.LOST, "lost"),
        (lose_sample, Fault.LOST, "lost"),
        (lose_notice, Fault.LOST, "lost"),
        (swap_orders, Fault.ORDER, "order_breaks"),
        (swap_notices, Fault.ORDER, "order_breaks"),
        (wrong_total, Contradiction.WRONG_TOTAL, "contradictions"),
        (wrong_count, Contradiction.WRONG_TOTAL, "contradictions"),
        (forget_state, Contradiction.WRONG_TOTAL, "contradictions"),
        (wrong_cents, Contradiction.UNEXPECTED, "contradictions"),
        (invent_order, Contradiction.UNEXPECTED, "contradictions"),
        (mark_late, Contradiction.WRONG_LATE, "contradictions"),
        (mark_in_time, Contradiction.WRONG_LATE, "contradictions"),
        (sample_disagrees, Contradiction.COPY_MISMATCH, "contradictions"),
        (sample_the_unsampled, Contradiction.COPY_MISMATCH, "contradictions"),
        (two_times, Contradiction.TWO_TIMES, "contradictions"),
        (back_in_time, Contradiction.EPOCH_BACK, "contradictions"),
        (notice_too_early, Contradiction.EARLY_NOTICE, "contradictions"),
        (notice_of_another_total, Contradiction.WRONG_NOTICE, "contradictions"),
        (notice_after_the_next_order, Contradiction.WRONG_NOTICE, "contradictions"),
        (notice_of_nobody, Contradiction.WRONG_NOTICE, "contradictions"),
    ],
)
def test_each_fault_is_found(spoil: Callable[[World], None], fault: StrEnum, field: str) -> None:
    world = World()
    spoil(world)
    verdict = world.verdict()
    assert not verdict.clean
    assert fault in faults(verdict)
    assert getattr(verdict, field) >= 1


@pytest.mark.parametrize("topic", ["totals", "late", "sample", "inactive"])
def test_an_unreadable_record_is_a_contradiction(topic: str) -> None:
    evidence = World().evidence()
    outputs = {**evidence.outputs, topic: [*evidence.output(topic), Published(topic, 0, 99, b"{}")]}
    verdict = check(Evidence(evidence.sent, {}, outputs))
    assert faults(verdict) == {Fault.UNREADABLE}
    assert verdict.contradictions == 1
