"""How often agents are to push."""

from __future__ import annotations

from clonos_api.pace import Pace


def test_it_goes_by_the_drivers_that_are_heard_of() -> None:
    now = 0.0
    pace = Pace(4.0, lambda: now)
    assert pace.forward_ms("a", 10) == 200
    assert pace.forward_ms("b", 100) == 550
    assert pace.forward_ms("b", 100) == 550  # not counted twice
    assert pace.forward_ms("a", 5000) == 10_000
    now = 3.0
    assert pace.forward_ms("b", 90) == 10_000
    now = 5.0  # a is silent
    assert pace.forward_ms("b", 90) == 450
    now = 100.0
    assert pace.forward_ms("b", 50) == 250
