"""The driver's state machine and its table of transitions."""

from __future__ import annotations

import itertools

import pytest

from clonos.driver.states import TRANSITIONS, DriverState, IllegalTransition, StateMachine

TERMINAL = {DriverState.STOPPED, DriverState.FINISHED, DriverState.SUPERSEDED, DriverState.FAILED}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(DriverState, repeat=2)))
def test_machine_allows_only_transitions_of_the_table(before: DriverState, after: DriverState) -> None:
    machine = StateMachine()
    machine.state = before
    if after in TRANSITIONS[before]:
        machine.to(after)
        assert machine.state is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before} → {after}"):
            machine.to(after)
        assert machine.state is before


def test_table_contains_every_state() -> None:
    assert set(TRANSITIONS) == set(DriverState)


@pytest.mark.parametrize("state", DriverState)
def test_terminal(state: DriverState) -> None:
    assert (not TRANSITIONS[state]) == (state in TERMINAL)


def test_every_state_is_reachable_and_none_is_a_trap() -> None:
    def from_(start: DriverState) -> set[DriverState]:
        seen, todo = {start}, [start]
        while todo:
            for after in TRANSITIONS[todo.pop()] - seen:
                seen.add(after)
                todo.append(after)
        return seen

    assert from_(StateMachine().state) == set(DriverState)
    for state in DriverState:
        assert from_(state) & TERMINAL


@pytest.mark.parametrize("state", sorted(set(DriverState) - TERMINAL))
def test_every_state_may_fail(state: DriverState) -> None:
    assert DriverState.FAILED in TRANSITIONS[state]


@pytest.mark.parametrize(
    "state", [DriverState.CLAIMING, DriverState.RECONCILING, DriverState.RUNNING, DriverState.RESTARTING]
)
def test_states_that_write_the_log_may_be_superseded(state: DriverState) -> None:
    """Reconciling writes to control as well (the user's decision about new code)."""
    assert DriverState.SUPERSEDED in TRANSITIONS[state]
