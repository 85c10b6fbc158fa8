"""Silence counts while somebody listens."""

from __future__ import annotations

import pytest

from clonos.agent import silence
from clonos.agent.silence import Silence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(silence, "time", clock)
    return clock


def looks(one: Silence, clock: Clock, sign: float | None, *, seconds: int, each: float = 1.0) -> bool:
    for _ in range(int(seconds / each)):
        clock.now += each
        if one.over(sign):
            return True
    return False


def test_it_is_over_after_the_limit_and_not_before(clock: Clock) -> None:
    one = Silence(5.0)
    assert not looks(one, clock, 1.0, seconds=6)  # the first look hears it
    assert looks(one, clock, 1.0, seconds=1)


def test_each_sign_of_life_begins_it_anew(clock: Clock) -> None:
    one = Silence(5.0)
    for sign in range(10):
        assert not looks(one, clock, float(sign), seconds=4)


def test_before_its_first_word_nobody_is_frozen(clock: Clock) -> None:
    assert not looks(Silence(5.0), clock, None, seconds=100)


def test_never_is_never(clock: Clock) -> None:
    assert not looks(Silence(0.0), clock, 1.0, seconds=1000)


def test_who_slept_himself_has_heard_nothing(clock: Clock) -> None:
    """The whole host was away: that says nothing of the driver."""
    one = Silence(5.0)
    assert not looks(one, clock, 1.0, seconds=2)
    clock.now += 3600
    assert not one.over(1.0)
    assert looks(one, clock, 1.0, seconds=3)
