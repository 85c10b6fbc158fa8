"""The lag of a job with several queries."""

from __future__ import annotations

from clonos.resources.lag import lag_of_job


def test_two_queries_of_one_topic_count_its_records_once() -> None:
    assert lag_of_job([{"in": 83}, {"in": 80}]) == 83
    assert lag_of_job([{"orders": 7, "rates": 1}, {"orders": 9}]) == 10


def test_a_job_that_has_not_reported_has_no_lag() -> None:
    assert lag_of_job([]) is None
    assert lag_of_job([{}, {}]) is None
    assert lag_of_job([{}, {"in": 0}]) == 0
