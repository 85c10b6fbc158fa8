"""Bodies of a job's figures over time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource

SeriesRange = Literal["5m", "1h", "24h", "7d"]


class SeriesPoint(Resource):
    """The figures of one query in one interval. There is no point for an interval without epochs."""

    at: Moment
    """Beginning of the interval."""
    epochs: int
    """Number of epochs that finished in it."""
    replayed: int
    """Number of replays among them."""
    records_in_per_s: float
    """Records read and published per second."""
    records_out_per_s: float
    """Records read and published per second."""
    epoch_ms_p50: float | None
    """Duration of its epochs, at most 19 % above the exact percentile."""
    epoch_ms_p99: float | None
    """Duration of its epochs, at most 19 % above the exact percentile."""
    latency_ms_p50: float | None = None
    """End-to-end latency of its records, from the timestamp in Kafka to the commit of their epoch. It is at most 27 %
    above the exact percentile. None: no record with a timestamp was read.
    """
    latency_ms_p99: float | None = None
    """End-to-end latency of its records, from the timestamp in Kafka to the commit of their epoch. It is at most 27 %
    above the exact percentile. None: no record with a timestamp was read.
    """
    lag: dict[str, int] = Field(default_factory=dict)
    """Source topic → unread records; empty: not reported in this interval."""


class Annotation(Resource):
    """Something that happened to the job, for a chart."""

    kind: Literal["recovery", "version", "savepoint"]
    """What happened."""
    at: Moment
    until: Moment | None = None
    """End of a recovery; None: it is in progress, or it was a moment."""
    text: str
    """The cause of the recovery, the number of the version, or the name of the savepoint."""


class Series(Resource):
    """A job's figures over time."""

    range: SeriesRange
    """The requested period."""
    since: Moment
    until: Moment
    """End of the period."""
    interval_s: float
    """Length of an interval in seconds."""
    queries: dict[str, list[SeriesPoint]]
    """Query → its intervals, oldest first."""
    annotations: list[Annotation]
    """What happened to the job in this range, oldest first."""
