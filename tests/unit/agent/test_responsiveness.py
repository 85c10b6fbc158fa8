"""The responsiveness timer counts only while the agent itself runs."""

from __future__ import annotations

import pytest

from clonos.agent import run_attempt
from clonos.agent.run_attempt import ResponsivenessTimer
from support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_attempt, "time", clock)
    return clock


def expires(timer: ResponsivenessTimer, clock: Clock, sign: float | None, *, seconds: int, each: float = 1.0) -> bool:
    for _ in range(int(seconds / each)):
        clock.now += each
        if timer.expired(sign):
            return True
    return False


def test_timer_expires_after_the_limit(clock: Clock) -> None:
    timer = ResponsivenessTimer(5.0)
    assert not expires(timer, clock, 1.0, seconds=6)  # the first check counts as a heartbeat
    assert expires(timer, clock, 1.0, seconds=1)


def test_sign_of_life_resets_the_timer(clock: Clock) -> None:
    timer = ResponsivenessTimer(5.0)
    for sign in range(10):
        assert not expires(timer, clock, float(sign), seconds=4)


def test_driver_without_a_first_sign_never_expires(clock: Clock) -> None:
    assert not expires(ResponsivenessTimer(5.0), clock, None, seconds=100)


def test_limit_of_zero_never_expires(clock: Clock) -> None:
    assert not expires(ResponsivenessTimer(0.0), clock, 1.0, seconds=1000)


def test_suspension_of_the_agent_does_not_count(clock: Clock) -> None:
    """If the whole host was suspended, the driver could not give a heartbeat."""
    timer = ResponsivenessTimer(5.0)
    assert not expires(timer, clock, 1.0, seconds=2)
    clock.now += 3600
    assert not timer.expired(1.0)
    assert expires(timer, clock, 1.0, seconds=3)
