"""The watches of a driver."""

from __future__ import annotations

from clonos.driver.background import Watch
from clonos.telemetry.driver_events import DriverEvent, State


class Reporting(Watch):
    """Is stopped by another thread while it polls."""

    def poll_once(self) -> None:
        self.stop()
        self._emit(State("RUNNING"))


def test_a_poll_in_progress_reports_nothing_after_a_stop() -> None:
    events: list[DriverEvent] = []
    watch = Reporting("example", 0.0, events.append)
    watch.poll_once()
    assert events == []
