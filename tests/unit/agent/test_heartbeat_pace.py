"""The announced interval of heartbeats follows the delays of the last minute."""

from __future__ import annotations

import pytest

from clonos.agent.heartbeat_pace import HeartbeatPace

INTERVAL_S = 0.3


class Host:
    """A host that sends heartbeats, each with a delay of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pace = HeartbeatPace(lambda: self.now)

    def beat(self, *delays_s: float) -> float:
        """Send heartbeats; returns the interval that the host announces then."""
        for delay_s in delays_s:
            self.now += INTERVAL_S + delay_s
            self.pace.answered(INTERVAL_S)
        return self.pace.announced_s(INTERVAL_S)


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_punctual_host_announces_its_interval(host: Host) -> None:
    assert host.beat(0.0, 0.1, 0.05, 0.3) == INTERVAL_S


def test_four_intervals_are_twice_the_longest_pause(host: Host) -> None:
    assert 4 * host.beat(0.0, 1.2, 0.1) == pytest.approx(2 * 1.5)
    assert 4 * host.beat(1.7, 0.1) == pytest.approx(2 * 2.0)
    assert host.pace.announced_s(5.0) == 5.0


def test_a_delay_counts_for_a_minute(host: Host) -> None:
    host.beat(0.0, 1.2)
    longer = host.beat(*[0.1] * 100)  # 40 s
    assert longer > INTERVAL_S
    assert host.beat(*[0.1] * 60) == INTERVAL_S


def test_the_announced_interval_is_bounded(host: Host) -> None:
    assert host.beat(0.0, 9.0) == 3.0


def test_a_suspended_machine_and_an_unavailable_control_plane_are_not_delays(host: Host) -> None:
    assert host.beat(0.0, 30.0) == INTERVAL_S
    host.pace.unanswered()
    assert host.beat(5.0, 0.0) == INTERVAL_S


def test_the_first_heartbeat_is_not_a_delay(host: Host) -> None:
    assert host.beat(7.0) == INTERVAL_S
