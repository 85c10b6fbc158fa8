"""Converts one sample to Prometheus metric families; their names begin with ``clonos_``.

A job's name is the label ``job_name``, because ``job`` is Prometheus' own. Counters are the store's sums: they outlive
drivers, replicas and retention. Every replica exports the same values, so queries take ``max by (job_name)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from clonos.resources.jobs import JobState
from clonos_api.metrics.queries import (
    HostSample,
    JobSample,
    MetricsSample,
    RecoverySample,
    StandbySample,
)
from clonos_api.store.tokens import Expiring

Rows = Iterable[tuple[Sequence[str], float]]  # label values, value

# Metric name, help text and attribute of the sample.
_JOB_GAUGES: Final = (
    ("clonos_job_generation", "The newest claim of a job's causal log.", "generation"),
    ("clonos_job_standbys_wanted", "Standbys in the specification of a job.", "standbys_wanted"),
    ("clonos_job_trigger_interval_seconds", "Longest minimum interval between epochs of a query.", "interval_s"),
)
_HOST_GAUGES: Final = (
    ("clonos_host_slots", "Maximum number of drivers of a host.", "slots"),
    ("clonos_host_slots_used", "Drivers and standbys of a host.", "used"),
    ("clonos_host_pool_drivers", "Warm pool drivers without a job.", "pool_available"),
)
# Metric name, help text and name of the counter (`CounterRow`).
_JOB_COUNTERS: Final = (
    (
        "clonos_job_restarts",
        "Claims of the causal log after a job's first one: restarts, takeovers, moves.",
        "restarts",
    ),
    ("clonos_recoveries", "Recoveries that ended with an epoch.", "recoveries"),
    ("clonos_false_takeovers", "Takeovers from a driver that still worked on a lost host.", "false_takeovers"),
    ("clonos_records_in", "Records read by finished epochs.", "records_in"),
    ("clonos_records_out", "Records published by finished epochs.", "records_out"),
    ("clonos_lanes_skipped", "Lanes that a replay skipped because they were published.", "skipped_lanes"),
    ("clonos_lanes_diverged", "Lanes whose replay differs from the published records.", "diverged_lanes"),
    ("clonos_dead_letters", "Records published as dead letters.", "dead_letters"),
    ("clonos_dropped_records", "Poison records that were dropped, as the job requested.", "dropped"),
    ("clonos_late_rows", "Rows that Spark's stateful steps dropped behind the watermark.", "late_rows"),
    ("clonos_determinants_recorded", "Determinants written to the causal log.", "recorded_determinants"),
    ("clonos_determinants_recorded_bytes", "Bytes of recorded determinants in the causal log.", "recorded_bytes"),
    ("clonos_determinants_replayed", "Determinants that replays read from the causal log.", "replayed_determinants"),
)
# With the Kafka sink and delivery exactly once a lane is a transaction.
_TRANSACTIONS: Final = {"committed": "published_lanes", "skipped": "skipped_lanes"}
_CHECKPOINTS: Final = {"completed": "epochs", "failed": "epochs_failed", "replayed": "epochs_replayed"}


def exposition(sample: MetricsSample, *, leads: bool, free_bytes: int | None = None) -> bytes:
    """Return the text that Prometheus scrapes; `leads`: whether this replica leads; `free_bytes` of the database's
    disk.
    """
    registry = CollectorRegistry()
    registry.register(_CompleteFamilies(metric_families(sample, leads=leads, free_bytes=free_bytes)))
    return generate_latest(registry)


def metric_families(sample: MetricsSample, *, leads: bool, free_bytes: int | None = None) -> list[Metric]:
    """All metric families of the control plane, also without values; the arguments are as for `exposition`."""
    return [
        *_job_gauges(sample.jobs),
        *_job_counters(sample.jobs),
        *_standby_gauges(sample.standbys),
        *_recovery_gauges(sample.recoveries),
        *_host_gauges(sample.hosts),
        *_token_gauges(sample.tokens),
        GaugeMetricFamily("clonos_leader", "Whether this replica leads.", value=leads),
        GaugeMetricFamily(
            "clonos_database_free_bytes", "Free bytes of the disk with the SQLite database.", value=free_bytes
        ),
    ]


class _CompleteFamilies:
    """A collector of families that are already complete."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _job_gauges(jobs: Sequence[JobSample]) -> Iterator[Metric]:
    yield _gauge(
        "clonos_job_state",
        "1 for the current state of a job.",
        ["job_name", "state"],
        (((job.name, job.state), 1) for job in jobs),
    )
    for name, text, attribute in _JOB_GAUGES:
        yield _gauge(name, text, ["job_name"], (((job.name,), getattr(job, attribute)) for job in jobs))
    yield _gauge(
        "clonos_job_last_epoch_timestamp_seconds",
        "End of a job's newest epoch.",
        ["job_name"],
        (((job.name,), job.epoch_at.timestamp()) for job in jobs if job.epoch_at is not None),
    )
    now = datetime.now(UTC)
    yield _gauge(
        "clonos_open_transaction_age_seconds",
        "Age of the oldest open transaction that blocks readers of a topic that a running job writes.",
        ["job_name", "topic"],
        (
            ((job.name, topic), max(0.0, (now - since).total_seconds()))
            for job in jobs
            if job.state == JobState.RUNNING
            for topic, since in job.open_transactions.items()
        ),
    )
    yield _gauge(
        "clonos_kafka_silent_seconds",
        "Time for which Kafka has not answered the driver of a running job; 0 if it answers.",
        ["job_name"],
        (
            ((job.name,), max(0.0, (now - job.kafka_silent_since).total_seconds()) if job.kafka_silent_since else 0)
            for job in jobs
            if job.state == JobState.RUNNING
        ),
    )
    yield _gauge(
        "clonos_output_contradicted",
        "1 if the newest verification of a job's output contradicts its causal log; absent without a verification.",
        ["job_name"],
        (((job.name,), job.contradicted) for job in jobs if job.contradicted is not None),
    )
    yield _gauge(
        "clonos_source_lag_records",
        "Unread records of a topic, per query.",
        ["job_name", "query", "topic"],
        _of_topics(jobs, "lag"),
    )
    yield _gauge(
        "clonos_source_retention_unread_ratio",
        "Unread share of the records in a topic, if the topic deletes records and most are unread.",
        ["job_name", "query", "topic"],
        ((labels, percent / 100) for labels, percent in _of_topics(jobs, "retention")),
    )
    yield _gauge(
        "clonos_last_checkpoint_size_bytes",
        "Size of a query's checkpoint, as measured by the driver's agent.",
        ["job_name", "query"],
        (((job.name, query), size) for job in jobs for query, size in job.checkpoint_bytes.items()),
    )


def _of_topics(jobs: Sequence[JobSample], figure: str) -> Rows:
    """Return a figure of each source topic of each query."""
    for job in jobs:
        for query, figures in job.queries.items():
            for topic, value in getattr(figures, figure).items():
                yield (job.name, query, topic), value


def _job_counters(jobs: Sequence[JobSample]) -> Iterator[Metric]:
    for name, text, counter in _JOB_COUNTERS:
        yield _counter(name, text, ["job_name"], (((job.name,), job.counters.get(counter, 0)) for job in jobs))
    yield _counter(
        "clonos_checkpoints",
        "Epochs by outcome; failed epochs are replayed.",
        ["job_name", "status"],
        (
            ((job.name, status), job.counters.get(counter, 0))
            for job in jobs
            for status, counter in _CHECKPOINTS.items()
        ),
    )
    yield _counter(
        "clonos_transactions",
        "Lanes committed with their epochs, or skipped by a replay because they were published.",
        ["job_name", "outcome"],
        (
            ((job.name, outcome), job.counters.get(counter, 0))
            for job in jobs
            for outcome, counter in _TRANSACTIONS.items()
        ),
    )
    durations = SummaryMetricFamily(
        "clonos_checkpoint_duration_seconds", "Durations of finished epochs.", labels=["job_name"]
    )
    for job in jobs:
        durations.add_metric([job.name], job.counters.get("epochs_timed", 0), job.counters.get("epochs_ms", 0) / 1000)
    yield durations


def _standby_gauges(standbys: Sequence[StandbySample]) -> Iterator[Metric]:
    yield _gauge(
        "clonos_standby_state",
        "1 for the current state of a waiting standby.",
        ["job_name", "host", "standby", "state"],
        (((standby.job, standby.host, standby.id, standby.state), 1) for standby in standbys),
    )
    yield _gauge(
        "clonos_standby_lag_epochs",
        "Committed epochs that a waiting standby has not read.",
        ["job_name", "host", "standby"],
        (((standby.job, standby.host, standby.id), standby.lag) for standby in standbys if standby.lag is not None),
    )


def _recovery_gauges(recoveries: Sequence[RecoverySample]) -> Iterator[Metric]:
    yield _gauge(
        "clonos_recovery_duration_seconds",
        "Phases of a job's newest ended recovery.",
        ["job_name", "cause", "phase"],
        (((item.job, item.cause, phase), ms / 1000) for item in recoveries for phase, ms in item.phases_ms.items()),
    )
    yield _gauge(
        "clonos_recovery_downtime_seconds",
        "Time without output in a job's newest ended recovery.",
        ["job_name", "cause"],
        (((item.job, item.cause), item.downtime_ms / 1000) for item in recoveries if item.downtime_ms is not None),
    )


def _host_gauges(hosts: Sequence[HostSample]) -> Iterator[Metric]:
    yield _gauge(
        "clonos_host_state",
        "1 for the current state of a host.",
        ["host", "state"],
        (((host.name, host.state), 1) for host in hosts),
    )
    for name, text, attribute in _HOST_GAUGES:
        yield _gauge(name, text, ["host"], (((host.name,), getattr(host, attribute)) for host in hosts))
    yield _gauge(
        "clonos_host_agent_replaced_timestamp_seconds",
        "Unix time of the newest request of a process that another one has replaced as the agent of a host.",
        ["host"],
        (((host.name,), host.rival_at.timestamp()) for host in hosts if host.rival_at is not None),
    )


def _token_gauges(tokens: Expiring) -> Iterator[Metric]:
    labels = ["token", "name", "role"]
    yield _gauge(
        "clonos_tokens_expiring",
        "Tokens in use that expire soon, and were not replaced.",
        [],
        [((), tokens.count)],
    )
    yield _gauge(
        "clonos_token_expiry_timestamp_seconds",
        "Unix time at which such a token expires; of the first ones to expire.",
        labels,
        (((token.id, token.name, token.role), token.expires_at.timestamp()) for token in tokens.first),
    )
    yield _gauge(
        "clonos_token_lifetime_seconds",
        "Time between the creation and the expiry of these tokens.",
        labels,
        (
            ((token.id, token.name, token.role), (token.expires_at - token.created_at).total_seconds())
            for token in tokens.first
        ),
    )


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for values, value in rows:
        family.add_metric(values, value)
    return family
