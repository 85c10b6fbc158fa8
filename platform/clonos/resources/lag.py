"""The lag of a job, from the lags of its queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def lag_of_job(queries: Iterable[Mapping[str, int]]) -> int | None:
    """Return the unread records of a job: for each topic, of the query that is furthest behind.

    A query with an empty mapping has not reported; None: no query has.

    Example:
        >>> lag_of_job([{"orders": 7, "rates": 1}, {"orders": 9}])
        10
    """
    topics: dict[str, int] = {}
    reported = False
    for lags in queries:
        reported = reported or bool(lags)
        for topic, unread in lags.items():
            topics[topic] = max(topics.get(topic, 0), unread)
    return sum(topics.values()) if reported else None
