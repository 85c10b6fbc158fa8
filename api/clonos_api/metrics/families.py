"""A reading as Prometheus' metric families. Names begin with ``eos_``; a job's name is the label ``job_name``, because
``job`` is Prometheus' own.

Counters are the store's sums: they outlive drivers, replicas and retention, and every replica tells the same ones, so
a query over several replicas takes ``max by (job_name)`` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from clonos.resources.jobs import JobState
from clonos_api.metrics.reading import Job, Reading

_JOB: Final = ["job_name"]
# Name, help, and the counter that it is (`CounterRow`).
_SUMS: Final = (
    ("eos_job_restarts", "Claims of the causal log after a job's first one: restarts, takeovers, moves.", "restarts"),
    ("eos_recoveries", "Recoveries that ended with an epoch.", "recoveries"),
    ("eos_records_in", "Records that ended epochs have read.", "records_in"),
    ("eos_records_out", "Records that ended epochs have published.", "records_out"),
    ("eos_dedup_dropped", "Lanes that a replay found published, and did not publish again.", "skipped_lanes"),
    ("eos_audit_diverged", "Lanes whose replay computed something else than what is published.", "diverged_lanes"),
    ("eos_dead_letters", "Records that were published as dead letters.", "dead_letters"),
    ("eos_determinants_recorded", "Determinants that were written to the causal log.", "recorded_determinants"),
    ("eos_determinants_recorded_bytes", "Bytes that recorded determinants took in the causal log.", "recorded_bytes"),
    ("eos_determinants_replayed", "Determinants that a replay read from the causal log.", "replayed_determinants"),
)
# With the Kafka sink and delivery exactly once a lane is a transaction.
_TRANSACTIONS: Final = {"committed": "published_lanes", "skipped": "skipped_lanes"}
_CHECKPOINTS: Final = {"completed": "epochs", "failed": "epochs_failed", "replayed": "epochs_replayed"}


def exposition(reading: Reading, *, leads: bool) -> bytes:
    """The text that Prometheus scrapes.

    Args:
        reading: What there is.
        leads: Whether this replica leads.
    """
    registry = CollectorRegistry()
    registry.register(_Collected([*_families(reading), _gauge("eos_leader", "Whether this replica leads.", leads)]))
    return generate_latest(registry)


class _Collected:
    """What a registry asks once."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _families(reading: Reading) -> Iterator[Metric]:
    jobs = reading.jobs
    yield _labelled(
        "eos_job_state", "1 for the state that a job is in.", ["state"], (((one.name, one.state), 1) for one in jobs)
    )
    yield _labelled(
        "eos_job_generation", "The newest claim of a job's causal log.", [], (((j.name,), j.generation) for j in jobs)
    )
    yield _labelled(
        "eos_job_standbys_wanted", "Standbys that a job asks for.", [], (((j.name,), j.standbys_wanted) for j in jobs)
    )
    yield _labelled(
        "eos_job_trigger_interval_seconds",
        "At least so long between epochs.",
        [],
        (((j.name,), j.interval_s) for j in jobs),
    )
    yield _labelled(
        "eos_job_last_epoch_timestamp_seconds",
        "When a job's newest epoch ended.",
        [],
        (((job.name,), job.epoch_at.timestamp()) for job in jobs if job.epoch_at is not None),
    )
    for name, text, counter in _SUMS:
        family = CounterMetricFamily(name, text, labels=_JOB)
        for job in jobs:
            family.add_metric([job.name], job.counters.get(counter, 0))
        yield family
    checkpoints = CounterMetricFamily(
        "eos_checkpoints", "Epochs by how they ended; what failed before its end is replayed.", labels=[*_JOB, "status"]
    )
    for job in jobs:
        for status, counter in _CHECKPOINTS.items():
            checkpoints.add_metric([job.name, status], job.counters.get(counter, 0))
    yield checkpoints
    durations = SummaryMetricFamily("eos_checkpoint_duration_seconds", "What epochs took that ended.", labels=_JOB)
    transactions = CounterMetricFamily(
        "eos_transactions",
        "Lanes: committed with their epochs, or found published and skipped by a replay.",
        labels=[*_JOB, "outcome"],
    )
    for job in jobs:
        told = job.counters
        durations.add_metric([job.name], told.get("epochs_timed", 0), told.get("epochs_ms", 0) / 1000)
        for outcome, counter in _TRANSACTIONS.items():
            transactions.add_metric([job.name, outcome], told.get(counter, 0))
    yield durations
    yield transactions
    moment = datetime.now(UTC)
    yield _labelled(
        "eos_open_transaction_age_seconds",
        "For so long readers of a topic that a running job writes wait for a transaction, anybody's.",
        ["topic"],
        (
            ((job.name, topic), max(0.0, (moment - since).total_seconds()))
            for job in jobs
            if job.state == JobState.RUNNING
            for topic, since in job.open_transactions.items()
        ),
    )
    yield _labelled(
        "eos_source_lag_records",
        "Records of a topic that a query has not read.",
        ["query", "topic"],
        ((labels, lag) for job in jobs for labels, lag in _lags(job)),
    )
    yield _labelled(
        "eos_source_retention_unread_ratio",
        "Unread share of what a topic holds, where that deletes records and most is unread.",
        ["query", "topic"],
        (
            ((job.name, query, topic), share / 100)
            for job in jobs
            for query, told in job.queries.items()
            for topic, share in (told.get("retention") or {}).items()
        ),
    )
    yield _labelled(
        "eos_last_checkpoint_size_bytes",
        "Files of a query's checkpoint, as the driver's agent measured them.",
        ["query"],
        (((job.name, query), size) for job in jobs for query, size in job.checkpoint_bytes.items()),
    )
    yield from _of_standbys(reading)
    yield from _of_recoveries(reading)
    yield from _of_hosts(reading)


def _lags(job: Job) -> Iterator[tuple[tuple[str, ...], float]]:
    for query, told in job.queries.items():
        for topic, lag in (told.get("lag") or {}).items():
            yield (job.name, query, topic), lag


def _of_standbys(reading: Reading) -> Iterator[Metric]:
    found = reading.standbys
    yield _labelled(
        "eos_standby_state",
        "1 for the state that a waiting standby is in.",
        ["host", "standby", "state"],
        (((one.job, one.host, one.id, one.state), 1) for one in found),
    )
    yield _labelled(
        "eos_standby_lag_epochs",
        "Ended epochs that a waiting standby has not read of.",
        ["host", "standby"],
        (((one.job, one.host, one.id), one.lag) for one in found if one.lag is not None),
    )


def _of_recoveries(reading: Reading) -> Iterator[Metric]:
    yield _labelled(
        "eos_recovery_duration_seconds",
        "Phases of a job's newest recovery that has ended.",
        ["cause", "phase"],
        (((o.job, o.cause, phase), ms / 1000) for o in reading.recoveries for phase, ms in o.phases_ms.items()),
    )
    yield _labelled(
        "eos_recovery_gap_seconds",
        "Time without output around a job's newest recovery that has ended.",
        ["cause"],
        (((one.job, one.cause), one.gap_ms / 1000) for one in reading.recoveries if one.gap_ms is not None),
    )


def _of_hosts(reading: Reading) -> Iterator[Metric]:
    texts = {
        "eos_host_slots": ("Drivers that a host may run at once.", [one.slots for one in reading.hosts]),
        "eos_host_slots_used": ("Drivers and standbys that a host runs.", [one.used for one in reading.hosts]),
        "eos_host_spares": ("Warm drivers without a job.", [one.spares for one in reading.hosts]),
    }
    names = [one.name for one in reading.hosts]
    state = GaugeMetricFamily("eos_host_state", "1 for the state that a host is in.", labels=["host", "state"])
    for one in reading.hosts:
        state.add_metric([one.name, one.state], 1)
    yield state
    for name, (text, values) in texts.items():
        family = GaugeMetricFamily(name, text, labels=["host"])
        for host, value in zip(names, values, strict=True):
            family.add_metric([host], value)
        yield family


def _labelled(
    name: str, text: str, labels: list[str], rows: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[*_JOB, *labels])
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
