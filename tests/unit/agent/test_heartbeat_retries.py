"""A heartbeat without a response is repeated in time: four missing ones start a takeover."""

from __future__ import annotations

from clonos.agent.heartbeat_pace import retry_pause_s


def test_the_time_of_the_request_counts_as_part_of_the_pause() -> None:
    assert retry_pause_s(0.25, 0.5) == 0.0
    assert 0.025 <= retry_pause_s(0.25, 0.1) <= 0.15


def test_a_refused_request_is_repeated_after_a_pause() -> None:
    assert 0.5 <= retry_pause_s(1.0, 0.0) <= 1.0
