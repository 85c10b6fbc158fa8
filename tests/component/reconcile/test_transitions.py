"""The table of transitions: each pair of states, with each possible request."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.transitions import RULES, TRANSIENT, Intent, allowed, page, rule_of, settled

S, D = JobState, DesiredState
RUN, RESTART, STOP, CANCEL = Intent(D.RUNNING), Intent(D.RUNNING, True), Intent(D.STOPPED), Intent(D.CANCELED)
INTENTS = (RUN, RESTART, STOP, Intent(D.STOPPED, True), CANCEL, Intent(D.CANCELED, True))

# A second, independent copy: source → target → r(un), a (restart), s(top), c(ancel). Other pairs are never allowed.
EXPECTED = {
    S.CREATED: {S.STARTING: "ra", S.CANCELED: "c"},
    S.STARTING: {
        S.RUNNING: "ra", S.RECOVERING: "ra", S.STOPPING: "ras", S.STOPPED: "s",
        S.CANCELLING: "c", S.CANCELED: "c", S.FAILED: "ra", S.FINISHED: "ra",
    },
    S.RUNNING: {
        S.RECOVERING: "ra", S.STOPPING: "ras", S.STOPPED: "s",
        S.CANCELLING: "c", S.CANCELED: "c", S.FAILED: "ra", S.FINISHED: "rasc",
    },
    S.RECOVERING: {
        S.RUNNING: "ra", S.STOPPING: "ras", S.STOPPED: "s",
        S.CANCELLING: "c", S.CANCELED: "c", S.FAILED: "ra", S.FINISHED: "ra",
    },
    S.STOPPING: {S.STOPPED: "s", S.STARTING: "ra", S.FINISHED: "rasc", S.CANCELLING: "c", S.CANCELED: "c"},
    S.STOPPED: {S.STARTING: "ra", S.CANCELED: "c"},
    S.CANCELLING: {S.CANCELED: "c"},
    S.CANCELED: {},
    S.FAILED: {S.STARTING: "a", S.STOPPED: "s", S.CANCELED: "c"},
    S.FINISHED: {S.STARTING: "a", S.CANCELED: "c"},
}  # fmt: skip


def _letter(intent: Intent) -> str:
    if intent.desired is D.RUNNING:
        return "a" if intent.restart else "r"
    return "s" if intent.desired is D.STOPPED else "c"


@pytest.mark.parametrize(("source", "target"), list(product(S, S)), ids=str)
def test_pair_of_states_is_allowed_only_for_its_requests(source: JobState, target: JobState) -> None:
    expected = EXPECTED[source].get(target, "")
    for intent in INTENTS:
        assert allowed(source, target, intent) == (_letter(intent) in expected), intent


def test_table_has_each_pair_at_most_once() -> None:
    pairs = [(rule.source, rule.target) for rule in RULES]
    assert len(pairs) == len(set(pairs))
    assert all(source is not target for source, target in pairs)


def test_transitions_into_starting_begin_a_new_start() -> None:
    for source, target in product(S, S):
        rule = rule_of(source, target)
        begins = rule is not None and rule.new_start
        assert begins == (target is S.STARTING and target in EXPECTED[source])


@pytest.mark.parametrize("source", list(S), ids=str)
def test_unsettled_job_can_reach_its_desired_state(source: JobState) -> None:
    goals = {D.RUNNING: {S.RUNNING}, D.STOPPED: {S.STOPPED, S.FINISHED}, D.CANCELED: {S.CANCELED}}
    for intent in (RUN, RESTART, STOP, CANCEL):
        if settled(source, intent) or (source is S.CANCELLING and intent is not CANCEL):
            continue  # a cancel request is final
        reached, edge = {source}, {source}
        while edge:
            edge = {target for state in edge for target in S if allowed(state, target, intent)} - reached
            reached |= edge
        assert reached & goals[intent.desired], (intent, reached)


def test_a_slot_is_reserved_once_for_the_next_driver_of_a_job() -> None:
    reserving = {(rule.source, rule.target, to) for rule in RULES for to in D if rule.reserves_slot(to)}
    starts = {(state, S.STARTING, to) for state in (S.CREATED, S.STOPPED, S.FAILED, S.FINISHED) for to in D}
    leaves = {(state, S.STOPPING, D.RUNNING) for state in (S.STARTING, S.RUNNING, S.RECOVERING)}
    assert reserving == starts | leaves, "STOPPING has reserved the slot of its STARTING"


def test_transient_states_are_never_settled() -> None:
    assert not any(settled(state, intent) for state in TRANSIENT for intent in INTENTS)
    assert all(any(settled(state, intent) for intent in INTENTS) for state in set(S) - TRANSIENT)


def test_canceled_is_final() -> None:
    assert not any(allowed(S.CANCELED, target, intent) for target in S for intent in INTENTS)


def test_page_is_generated_from_the_table() -> None:
    stored = Path(__file__).parents[3] / "docs" / "job-states.md"
    assert stored.read_text() == page(), "python -m clonos_api.reconcile.transitions > docs/job-states.md"
