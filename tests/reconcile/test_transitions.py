"""The table of transitions: every pair of states, under everything that can have been asked for."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile import diagram
from clonos_api.reconcile.transitions import TABLE, TRANSIENT, Asked, allowed, settled

S, D = JobState, DesiredState
RUN, ANEW, STOP, CANCEL = Asked(D.RUNNING), Asked(D.RUNNING, True), Asked(D.STOPPED), Asked(D.CANCELED)
ASKED = (RUN, ANEW, STOP, Asked(D.STOPPED, True), CANCEL, Asked(D.CANCELED, True))

# Written down once more, by hand: source → target → r(un), a(new), s(top), c(ancel). What is not here is never allowed.
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


def _letter(asked: Asked) -> str:
    if asked.desired is D.RUNNING:
        return "a" if asked.anew else "r"
    return "s" if asked.desired is D.STOPPED else "c"


@pytest.mark.parametrize(("source", "target"), list(product(S, S)), ids=str)
def test_each_pair(source: JobState, target: JobState) -> None:
    expected = EXPECTED[source].get(target, "")
    for asked in ASKED:
        assert allowed(source, target, asked) == (_letter(asked) in expected), asked


def test_a_pair_is_in_the_table_once() -> None:
    pairs = [(one.source, one.target) for one in TABLE]
    assert len(pairs) == len(set(pairs))
    assert all(source is not target for source, target in pairs)


@pytest.mark.parametrize("source", list(S), ids=str)
def test_what_is_not_settled_can_get_to_where_it_was_asked_to_be(source: JobState) -> None:
    """In a few steps, whatever was asked for; and what is settled is where that ends."""
    goals = {D.RUNNING: {S.RUNNING}, D.STOPPED: {S.STOPPED, S.FINISHED}, D.CANCELED: {S.CANCELED}}
    for asked in (RUN, ANEW, STOP, CANCEL):
        if settled(source, asked) or (source is S.CANCELLING and asked is not CANCEL):
            continue  # nobody can ask for anything else after a cancel
        reached, edge = {source}, {source}
        while edge:
            edge = {to for at in edge for to in S if allowed(at, to, asked)} - reached
            reached |= edge
        assert reached & goals[asked.desired], (asked, reached)


def test_what_waits_is_never_settled() -> None:
    assert not any(settled(state, asked) for state in TRANSIENT for asked in ASKED)
    assert all(any(settled(state, asked) for asked in ASKED) for state in set(S) - TRANSIENT)


def test_cancelled_is_for_good() -> None:
    assert not any(allowed(S.CANCELED, to, asked) for to in S for asked in ASKED)


def test_the_page_is_drawn_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "job-states.md"
    assert page.read_text() == diagram.page(), "python -m clonos_api.reconcile.diagram > docs/job-states.md"
