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
    """What happens if the driver of a running job fails now."""

    warm: bool
    """Whether a standby is READY on a reachable host; otherwise a new driver starts."""
    host: str | None = None
    """The host of that standby, or of the one that warms up; None: there is none."""
    estimate_s: float | None = None
    """Expected time without output in seconds; None: nothing shows it."""
    basis: Basis | None = None
    """What shows it: ``job`` (the median of its recoveries), ``rehearsals`` (of its standby, and the other steps of
    takeovers of the platform), ``benchmark`` (rehearsals, and the other steps as the benchmark measured them), or
    ``platform`` (the median of other jobs).
    """
    ready_in_s: float | None = None
    """Expected seconds until the standby is READY; None: it is, or the time is unknown."""


class JobStatus(Resource):
    """The health of one job."""

    id: str
    name: str
    state: str
    health: JobHealth
    """Summary of its state."""
    reasons: list[str]
    """Why it is not healthy; empty if it is."""
    silent_since: Moment | None = None
    """Since when a job should publish and does not; None: it publishes, has no input, or is not to run."""
    forecast: Forecast | None = None
    """What happens if its driver fails now; None: it does not run."""


class Dependencies(Resource):
    """Kafka and other systems, as the drivers of running jobs see them."""

    brokers: int | None
    """Smallest number of brokers that a driver sees; None: no driver has reported it."""
    silent: list[str]
    """Jobs whose driver gets no answer of Kafka."""
    waiting: list[str]
    """Jobs whose driver waits for another system, such as a Schema Registry."""
    under_replicated: int
    """Number of partitions of causal logs without all of their replicas in sync."""
    open_transactions: int
    """Number of topics whose readers wait for an open transaction."""


class Status(Resource):
    """The state of all jobs, as on the dashboard's overview."""

    at: Moment
    health: JobHealth
    """The worst of all jobs, hosts and dependencies."""
    summary: str
    """The same in sentences."""
    led: bool
    """Whether a replica of the control plane leads. Without one, nothing takes over, starts or stops."""
    counts: dict[JobHealth, int]
    """Number of jobs by health."""
    hosts: dict[str, str]
    """Name → state; SILENT: it missed heartbeats; DISCONNECTED: its lease has expired, and it is not LOST yet."""
    dependencies: Dependencies
    """What all jobs need, such as Kafka."""
    jobs: list[JobStatus]
    """The jobs; those that need attention first."""
