"""Bodies for ``GET /status``: the health of all jobs, and the systems on which they depend."""

from __future__ import annotations

from typing import Final, Literal

from clonos.resources.base import Moment, Resource

Basis = Literal["job", "rehearsals", "benchmark", "platform"]
# From what the time without output is estimated.
BASES: Final[dict[Basis, str]] = {
    "job": "earlier recoveries of this job",
    "rehearsals": "the standby's rehearsals, and the other steps of takeovers here",
    "benchmark": "the standby's rehearsals, and the other steps of the benchmark bench.recovery",
    "platform": "earlier recoveries of other jobs",
}
JobHealth = Literal["healthy", "degraded", "changing", "failing", "not running"]


class Forecast(Resource):
    """What happens if the driver of a running job fails now.

    Attributes:
        warm: Whether a standby is READY on a reachable host; otherwise a new driver starts.
        host: The host of that standby, or of the one that warms up; None: there is none.
        estimate_s: Expected time without output in seconds; None: nothing shows it.
        basis: What shows it: ``job`` (the median of its recoveries), ``rehearsals`` (of its standby, and the other
            steps of takeovers of the platform), ``benchmark`` (rehearsals, and the other steps as the benchmark
            measured them), or ``platform`` (the median of other jobs).
        ready_in_s: Expected seconds until the standby is READY; None: it is, or the time is unknown.
    """

    warm: bool
    host: str | None = None
    estimate_s: float | None = None
    basis: Basis | None = None
    ready_in_s: float | None = None


class JobStatus(Resource):
    """The health of one job.

    Attributes:
        reasons: Why it is not healthy; empty if it is.
        silent_since: Since when a job should publish and does not; None: it publishes, has no input, or is
            not to run.
        forecast: What happens if its driver fails now; None: it does not run.
        health: Summary of its state.
    """

    id: str
    name: str
    state: str
    health: JobHealth
    reasons: list[str]
    silent_since: Moment | None = None
    forecast: Forecast | None = None


class Dependencies(Resource):
    """Kafka and other systems, as the drivers of running jobs see them.

    Attributes:
        brokers: Smallest number of brokers that a driver sees; None: no driver has reported it.
        silent: Jobs whose driver gets no answer of Kafka.
        waiting: Jobs whose driver waits for another system, such as a Schema Registry.
        under_replicated: Number of partitions of causal logs without all of their replicas in sync.
        open_transactions: Number of topics whose readers wait for an open transaction.
    """

    brokers: int | None
    silent: list[str]
    waiting: list[str]
    under_replicated: int
    open_transactions: int


class Status(Resource):
    """The state of all jobs, as on the dashboard's overview.

    Attributes:
        health: The worst of all jobs, hosts and dependencies.
        summary: The same in sentences.
        led: Whether a replica of the control plane leads. Without one, nothing takes over, starts or stops.
        counts: Number of jobs by health.
        hosts: Name → state; SILENT: it missed heartbeats; DISCONNECTED: its lease has expired, and it is not LOST yet.
        jobs: The jobs; those that need attention first.
        dependencies: What all jobs need, such as Kafka.
    """

    at: Moment
    health: JobHealth
    summary: str
    led: bool
    counts: dict[JobHealth, int]
    hosts: dict[str, str]
    dependencies: Dependencies
    jobs: list[JobStatus]
