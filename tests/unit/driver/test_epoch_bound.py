"""The bound of epochs without a limit of the user: epochs of a backlog take some seconds at any speed."""

from __future__ import annotations

import pytest

from clonos.driver.epoch_bound import EpochBound, first_records


def drain(rate: float, records: int, overhead_s: float = 0.1) -> list[float]:
    """The durations of the epochs of a backlog, at `rate` records per second."""
    bound, durations = EpochBound(), []
    while records > 0:
        read = min(records, bound.records)
        seconds = overhead_s + read / rate
        bound.update(read=read, seconds=seconds)
        durations.append(seconds)
        records -= read
    return durations


@pytest.mark.parametrize("rate", [50.0, 1_000.0, 5_000.0, 165_000.0])
def test_epochs_of_a_backlog_take_some_seconds(rate: float) -> None:
    durations = drain(rate, records=max(10_000, int(rate * 60)))
    assert max(durations[1:]) < 6.0
    assert sum(duration > 1.0 for duration in durations) > len(durations) / 2 - 4


def test_the_fixed_cost_of_epochs_is_small() -> None:
    durations = drain(165_000.0, records=10_000_000)
    assert sum(durations) < 1.05 * 10_000_000 / 165_000 + 0.5


def test_records_of_many_bytes_bound_it_too() -> None:
    bound = EpochBound()
    bound.update(read=bound.records, seconds=1.0, size=bound.records * 1_000_000)
    assert bound.records * 1_000_000 <= 256 * 1024 * 1024


def test_epochs_of_little_input_do_not_change_it() -> None:
    bound = EpochBound()
    bound.update(read=2_000, seconds=0.1)
    before = bound.records
    assert not bound.update(read=3, seconds=0.05)
    assert not bound.update(read=0, seconds=30.0)
    assert bound.records == before
    assert bound.update(read=30, seconds=60.0), "a slow service"
    assert bound.records == 100


def test_an_epoch_has_the_records_of_the_triggers_interval() -> None:
    """A minute's input takes 12 s. A bound of 4 s of work would be behind for ever."""
    bound, waiting = EpochBound(60.0), 0
    for _ in range(30):
        waiting += 600_000
        read = min(waiting, bound.records)
        bound.update(read=read, seconds=0.1 + read / 50_000)
        waiting -= read
    assert waiting == 0
    assert first_records(0.0) == 2_000
    assert first_records(60.0) == first_records(86_400.0) == 120_000


@pytest.mark.parametrize(("speed", "records"), [(20.0, 5), (0.5, 1), (4_000.0, 1_000), (1e6, 2_000), (None, 2_000)])
def test_the_first_epoch_of_a_known_job_is_short(speed: float | None, records: int) -> None:
    assert EpochBound(speed=speed).records == records


def test_the_epoch_after_a_short_one_has_its_speed() -> None:
    bound = EpochBound(speed=20.0)
    assert bound.update(read=5, seconds=0.1)
    assert bound.records == 200
    slow = EpochBound(speed=20.0)
    slow.update(read=5, seconds=0.6)
    assert slow.records == 100
    fast = EpochBound(speed=4_000.0)
    fast.update(read=1_000, seconds=0.3)
    assert fast.records == 2_000
    fast.update(read=2_000, seconds=0.5)
    assert fast.records == 16_000


def test_a_short_epoch_without_a_backlog_leaves_no_bound() -> None:
    bound = EpochBound(speed=40.0)
    assert not bound.update(read=0, seconds=0.1)
    assert bound.records == 10
    assert bound.update(read=2, seconds=0.1)
    assert bound.records == first_records(0.0)
