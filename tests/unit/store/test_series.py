"""Classes of durations, percentiles and intervals of figures over time."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from clonos_api.store.columns import Tally, plain, read
from clonos_api.store.series import LONG_S, SHORT_S, duration_class, percentile, places


def tally(*durations_ms: float) -> Tally:
    return Tally(epochs=len(durations_ms), durations=Counter(map(duration_class, durations_ms)))


@pytest.mark.parametrize("duration_ms", [0.0, 0.4, 1.0, 1.2, 50.0, 99.9, 1000.0, 3.6e6])
def test_a_class_is_at_most_19_percent_wide(duration_ms: float) -> None:
    longest_ms = percentile(tally(duration_ms).durations, 1.0)
    assert longest_ms is not None
    assert max(1.0, duration_ms) <= longest_ms * (1 + 1e-9)
    assert longest_ms <= max(1.0, duration_ms) * 2**0.25 * (1 + 1e-9)


def test_percentiles_are_at_most_19_percent_above_the_exact_ones() -> None:
    moments = random.Random(3)
    durations = sorted(moments.lognormvariate(5, 1) for _ in range(1000))
    half, all_ = tally(*durations[::2]), tally(*durations[1::2])
    all_.add(half)
    assert all_.epochs == 1000
    for share in (0.5, 0.99):
        exact = durations[round(share * 1000) - 1]
        estimate = percentile(all_.durations, share)
        assert estimate is not None
        assert exact <= estimate <= exact * 1.2


def test_latencies_have_percentiles_of_their_own() -> None:
    latencies = Counter({duration_class(100.0): 98, duration_class(4000.0): 2})
    some = Tally(epochs=2, durations=Counter({duration_class(5.0): 2}), latencies=latencies)
    some.add(Tally(latencies=Counter({duration_class(100.0): 1})))
    assert percentile(some.latencies, 0.5) == pytest.approx(100, rel=0.2)
    assert percentile(some.latencies, 0.99) == pytest.approx(4000, rel=0.2)
    assert percentile(some.durations, 0.99) == pytest.approx(5, rel=0.2)
    assert read(Tally, plain(some)) == some


def test_rows_of_earlier_versions_have_no_latencies() -> None:
    body = plain(Tally(epochs=1))
    del body["latencies"]
    assert percentile(read(Tally, body).latencies, 0.5) is None


def test_no_epoch_has_no_percentile() -> None:
    assert percentile({}, 0.5) is None


def test_the_newest_lag_of_each_topic_counts() -> None:
    earlier = Tally(lag={"in": 5, "more": 1})
    earlier.add(Tally(epochs=1))
    earlier.add(Tally(lag={"in": 3}))
    assert earlier.lag == {"in": 3, "more": 1}


def test_a_moment_has_a_short_and_a_long_interval() -> None:
    at = datetime(2026, 1, 1, 12, 34, 56, 789_000, UTC)
    short, long = places("job", "out", at, now=at)
    assert (short.width_s, short.start) == (SHORT_S, datetime(2026, 1, 1, 12, 34, 50, tzinfo=UTC))
    assert (long.width_s, long.start) == (LONG_S, datetime(2026, 1, 1, 12, 30, tzinfo=UTC))


def test_moments_that_are_not_kept_have_no_interval() -> None:
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)

    def widths(at: datetime) -> list[int]:
        return [place.width_s for place in places("job", "out", at, now=now)]

    assert widths(now + timedelta(minutes=9)) == [SHORT_S, LONG_S]
    assert widths(now + timedelta(minutes=11)) == []
    assert widths(now - timedelta(hours=3)) == [LONG_S]
    assert widths(now - timedelta(days=9)) == []
