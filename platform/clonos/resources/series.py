"""Bodies of a job's figures over time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from clonos.resources.base import Moment, Resource

SeriesRange = Literal["5m", "1h", "24h", "7d"]


class SeriesPoint(Resource):
    """The figures of one query in one interval. There is no point for an interval without epochs.

    Attributes:
        at: Beginning of the interval.
        epochs: Number of epochs that finished in it.
        replayed: Number of replays among them.
        records_in_per_s, records_out_per_s: Records read and published per second.
        epoch_ms_p50, epoch_ms_p99: Duration of its epochs, at most 19 % above the exact percentile.
        latency_ms_p50, latency_ms_p99: End-to-end latency of its records, from the timestamp in Kafka to the commit of
            their epoch. It is at most 27 % above the exact percentile. None: no record with a timestamp was read.
        lag: Source topic → unread records; empty: not reported in this interval.
    """

    at: Moment
    epochs: int
    replayed: int
    records_in_per_s: float
    records_out_per_s: float
    epoch_ms_p50: float | None
    epoch_ms_p99: float | None
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None
    lag: dict[str, int] = Field(default_factory=dict)


class Annotation(Resource):
    """Something that happened to the job, for a chart.

    Attributes:
        until: End of a recovery; None: it is in progress, or it was a moment.
        text: The cause of the recovery, the number of the version, or the name of the savepoint.
        kind: What happened.
    """

    kind: Literal["recovery", "version", "savepoint"]
    at: Moment
    until: Moment | None = None
    text: str


class Series(Resource):
    """A job's figures over time.

    Attributes:
        interval_s: Length of an interval in seconds.
        queries: Query → its intervals, oldest first.
        annotations: What happened to the job in this range, oldest first.
        range: The requested period.
        until: End of the period.
    """

    range: SeriesRange
    since: Moment
    until: Moment
    interval_s: float
    queries: dict[str, list[SeriesPoint]]
    annotations: list[Annotation]
