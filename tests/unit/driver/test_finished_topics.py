"""Deleted topics of a pattern: which were read to their end, by the plans of the causal log."""

from __future__ import annotations

import json

import pytest

from clonos.driver.finished_topics import finished_topics, with_replay, without
from clonos.log.control import ControlState
from clonos.log.records import InputSlice, Owner, Plan

OWNER = Owner(1, 1, "a")


def plan(epoch: int, *topics: str, finished: frozenset[str] = frozenset(), known: tuple[str, ...] = ("gone",)) -> Plan:
    scan = tuple(InputSlice("range", topic, 0, 10, 20) for topic in topics)
    offsets = "\n".join(["v1", "{}", json.dumps({topic: {"0": 20} for topic in known})])
    return Plan(OWNER, "q", epoch, (), (scan,), (), {}, 0, "code", offsets, 0, finished_topics=finished)


@pytest.mark.parametrize(
    ("plans", "finished"),
    [
        ([plan(4, "gone", finished=frozenset({"gone"}))], True),
        ([plan(4, "gone")], False),
        ([plan(3, "gone"), plan(4, "other")], True),
        ([plan(4, "other"), plan(5, "gone", finished=frozenset({"gone"}))], False),
        ([plan(4, "gone"), plan(5, known=("other",))], True),
        ([plan(4, "gone"), plan(5, "other")], False),
        ([], False),
    ],
    ids=[
        "read to its end",
        "unread",
        "no newer record",
        "replayed",
        "left",
        "in doubt",
        "no plan",
    ],
)
def test_a_deleted_topic_was_read_to_its_end(plans: list[Plan], finished: bool) -> None:
    state = ControlState(plans={("q", plan.epoch): (plan.epoch, plan) for plan in plans})
    assert finished_topics(state, "q", 4, {"gone"}) == (frozenset({"gone"}) if finished else frozenset())
    assert finished_topics(state, "q", 4, ()) == frozenset()


def test_a_replay_needs_the_first_offset_of_each_partition() -> None:
    scans = ((InputSlice("range", "a", 0, 7, 9), InputSlice("range", "b", 1, 5, 6), InputSlice("range", "b", 1, 3, 5)),)
    replayed = Plan(OWNER, "q", 0, (), scans, (), {}, 0, "code", "", 0)
    start = {"a": {0: 7, 1: 2}}
    assert with_replay(start, replayed) == {"a": {0: 7, 1: 2}, "b": {1: 3}}
    assert start == {"a": {0: 7, 1: 2}}
    assert with_replay(start, None) == start
    assert without(start, {"a"}) == {}
