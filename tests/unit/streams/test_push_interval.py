"""The push interval of agents."""

from __future__ import annotations

from clonos_api.streams.push_interval import PushInterval


def test_interval_grows_with_the_drivers_of_reporting_agents() -> None:
    now = 0.0
    interval = PushInterval(4.0, lambda: now)
    assert interval.push_interval_ms("a", 10) == 200
    assert interval.push_interval_ms("b", 100) == 550
    assert interval.push_interval_ms("b", 100) == 550  # not counted twice
    assert interval.push_interval_ms("a", 5000) == 10_000
    now = 3.0
    assert interval.push_interval_ms("b", 90) == 10_000
    now = 5.0  # a has timed out
    assert interval.push_interval_ms("b", 90) == 450
    now = 100.0
    assert interval.push_interval_ms("b", 50) == 250
